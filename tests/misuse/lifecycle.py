"""Closed and aborted things, parameters and files that do not fit, captures and patches."""

import tempfile
from pathlib import Path

import numpy as np

import tracegrad as tg
from misuse.table import MLP, X, Y, compiled, loss, predict, program, training
from tracegrad import nn, optim


@program("closed", "with block", raises=tg.AbortedError)
def step_after_the_with():
    with compiled() as train:
        pass
    return train.step(x=X, y=Y).loss


@program("closed", raises=tg.AbortedError)
def parameters_after_the_with():
    with compiled() as train:
        pass
    train.download_params()


@program("closed", raises=tg.AbortedError)
def save_after_the_with():
    with compiled() as train:
        pass
    train.save(Path(tempfile.gettempdir()) / "never.safetensors")


@program("closed", raises=tg.AbortedError)
def forward_of_a_closed_training():
    with compiled() as train:
        infer = train.attach(forward=predict, inputs={"x": (8, 3)})
    return infer.run(x=X).output


@program("closed", raises=tg.AbortedError)
def run_of_a_closed_forward():
    with compiled() as train:
        infer = train.attach(forward=predict, inputs={"x": (8, 3)})
        infer.close()
        return infer.run(x=X).output


@program("closed", raises=tg.AbortedError)
def fit_of_a_closed_training():
    with compiled() as train:
        pass
    train.fit([(X, Y)], progress=False)


@program("closed", raises=tg.AbortedError)
def new_model_for_a_closed_training():
    with compiled() as train:
        pass
    train.replace_model(MLP())


@training("keep_grads", raises=tg.InputError)
def gradients_that_were_not_kept(train):
    train.download_grads()


@training("ema=", raises=tg.InputError)
def averages_that_were_not_kept(train):
    train.download_params(ema=True)


@training("l9.W", "no such parameter", "l1.W")
def upload_of_an_unknown_name(train):
    train.upload_params({"l9.W": X})


@training("weight", "l1.W", "tg.from_torch")
def upload_of_names_of_pytorch(train):
    train.upload_params({"l1.weight": np.zeros((4, 3), np.float32)})


@training("l1.W", "f32[3,4]", "f32[4,3]", "transpose")
def upload_of_a_transposed_weight(train):
    train.upload_params({"l1.W": np.zeros((4, 3), np.float32)})


@training("l1.W", "complex64")
def upload_of_a_wrong_dtype(train):
    train.upload_params({"l1.W": np.zeros((3, 4), np.complex64)})


@training("l1.W", "missing")
def upload_that_is_not_complete(train):
    train.upload_params({"l1.b": np.zeros(4, np.float32)}, strict=True)


@training("l1", "l1.W")
def upload_of_a_nested_dict(train):
    train.upload_params({"l1": {"W": np.zeros((3, 4), np.float32)}})


@training("set_params: nothing was written", "l1.weight", "l1.W")
def set_params_by_the_names_of_pytorch(train):
    train.set_params({"l1.weight": np.zeros((4, 3), np.float32)})


@training("upload_params", "MLP", "dict")
def upload_of_a_model(train):
    train.upload_params(MLP())


@training("nothing.safetensors", raises=FileNotFoundError, late=True)
def load_of_a_missing_file(train):
    train.load("nothing.safetensors")


@training("folder", raises=OSError, late=True)
def save_into_a_missing_folder(train):
    with tempfile.TemporaryDirectory() as folder:
        train.save(Path(folder) / "missing" / "model.safetensors")


@program("safetensors", late=True)
def load_of_another_kind_of_file():
    with compiled() as train, tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder) / "model.npy", X)
        train.load(Path(folder) / "model.npy")


@program("l1.W", "f32[3,4]", "f32[3,6]")
def load_of_another_model():
    with compiled() as train, compiled(model=MLP(6)) as other, tempfile.TemporaryDirectory() as folder:
        other.save(Path(folder) / "other.safetensors")
        train.load(Path(folder) / "other.safetensors")


@program("opt/m", "train.load(path, optimizer=False)")
def load_of_another_optimizer():
    with (
        compiled() as train,
        compiled(optimizer=optim.sgd(lr=0.1)) as other,
        tempfile.TemporaryDirectory() as folder,
    ):
        other.save(Path(folder) / "other.safetensors")
        train.load(Path(folder) / "other.safetensors")


@training("matmul", "f32[8,3]", "f32[5,2]", raises=tg.ShapeError)
def replacement_that_does_not_fit(train):
    class Wider(tg.Module):
        def __init__(self):
            self.l = nn.Linear(5, 2)

        def __call__(self, x):
            return self.l(x)

    train.replace_model(Wider())


@training("replace_model", "MLP", "call")
def replacement_that_is_a_class(train):
    train.replace_model(MLP)


@training("l9", "MLP")
def attached_forward_of_another_model(train):
    train.attach(forward=lambda m, x: m.l9(x), inputs={"x": (8, 3)})


@training("attach", "'x'", "'z'")
def attached_forward_of_other_inputs(train):
    train.attach(forward=predict, inputs={"z": (8, 3)})


@training("attach", "forward", raises=TypeError)
def attach_without_inputs(train):
    train.attach(predict)


@training("forward", "'predict'", "function")
def attached_forward_as_text(train):
    train.attach(forward="predict", inputs={"x": (8, 3)})


@loss("capture", "'h'", "number the layers")
def capture_of_one_name_twice(m, x, y):
    h = tg.capture("h", m.l1(x))
    return tg.mean(tg.capture("h", m.l2(h)) - y)


@loss("capture", "name must come first", "tg.capture(")
def capture_with_arguments_swapped(m, x, y):
    return tg.mean(tg.capture(m(x), "h") - y)


@loss("capture", "list", "tg.stack")
def capture_of_a_list(m, x, y):
    tg.capture("h", [m.l1(x), m(x)])
    return tg.mean(m(x) - y)


@loss("patch", "'h'", "number the layers")
def patch_of_one_name_twice(m, x, y):
    h = tg.patch("h", m.l1(x))
    return tg.mean(m.l2(tg.patch("h", h)) - y)


def patched(m, x):
    return m.l2(tg.patch("hidden", tg.relu(m.l1(x))))


@program("patches", "hiden", "hidden")
def patch_that_is_misspelt():
    with compiled() as train:
        return train.attach(forward=patched, inputs={"x": (8, 3)}).run(x=X, patches={"hiden": 0.0}).output


@program("patches", "hidden", "f32[8,4]", "f32[8,3]")
def patch_of_another_shape():
    with compiled() as train:
        return train.attach(forward=patched, inputs={"x": (8, 3)}).run(x=X, patches={"hidden": X}).output


@program("patches", "dict", "list")
def patches_as_a_list():
    with compiled() as train:
        return train.attach(forward=patched, inputs={"x": (8, 3)}).run(x=X, patches=["hidden"]).output


@program("another trace", "f32[8,3]", "inputs")
def tensor_kept_from_another_trace():
    kept = []
    tg.trace_forward(model=MLP(), forward=lambda m, x: kept.append(m.l1(x)) or m(x), inputs={"x": (8, 3)})
    compiled(loss=lambda m, x, y: tg.mean(m.l2(kept[0]) - y)).close()


@program("trace", "f32[8,4]")
def tensor_used_after_its_trace():
    kept = []
    tg.trace_forward(model=MLP(), forward=lambda m, x: kept.append(m.l1(x)) or m(x), inputs={"x": (8, 3)})
    kept[0] + 1.0


@program("aborted", "closed", raises=tg.AbortedError)
def result_that_was_aborted():
    with compiled() as train:
        steps = [train.step(x=X, y=Y) for _ in range(200)]
        train.close()
        return [s.loss for s in steps]


@training("profile", "steps", "0")
def profile_of_no_steps(train):
    train.profile(0)
