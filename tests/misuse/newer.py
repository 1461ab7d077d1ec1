"""Mistakes with states, groups of parameters, callbacks, metrics of held-out data, and weights of PyTorch."""

import copy
import pickle
import tempfile
from pathlib import Path

import numpy as np

import tracegrad as tg
from misuse.table import MLP, SHAPES, X, Y, compiled, loss, mse, program, shared, training
from tracegrad import nn, optim


class Counting(tg.Module):
    """A layer, and a state that counts steps."""

    def __init__(self):
        self.layer, self.seen = nn.Linear(3, 2), self.state((1,))


@program("the state 'seen' was replaced", "write m.seen.assign(value)")
def state_that_is_set_as_an_attribute():
    def loss(m, x, y):
        m.seen = m.seen + 1
        return tg.mse_loss(m.layer(x), y)

    compiled(model=Counting(), loss=loss)


@program("the state 'seen' was replaced", "write m.seen.assign(value)")
def state_that_is_added_to():
    def loss(m, x, y):
        m.seen += tg.mean(x)
        return tg.mse_loss(m.layer(x), y)

    compiled(model=Counting(), loss=loss)


@program("freeze", "a pattern such as 'backbone.*'", "got <Linear")
def freezing_a_layer():
    shared().freeze(nn.Linear(3, 4))


@program("callbacks", "the class EarlyStopping", "EarlyStopping(...)")
def callback_that_is_a_class():
    shared().fit(x=X, y=Y, batch_size=8, progress=False, callbacks=[tg.EarlyStopping])


@program("evaluate returned 'error' of shape (3,)", "return a number")
def evaluation_that_returns_an_array():
    compiled().fit(x=X, y=Y, batch_size=8, progress=False, evaluate=lambda train: {"error": np.zeros(3)})


@program("takes 'target', which is not declared", "inputs declares x, y")
def metric_of_predictions_and_targets():
    metrics = {"mae": lambda predicted, target: tg.mean(tg.abs(predicted - target))}
    compiled().fit(x=X, y=Y, batch_size=8, progress=False, validation=(X, Y), metrics=metrics)


def _weights():
    return {f"{k}.{name}": np.ones(s) for k, name, s in ((0, "weight", (4, 3)), (0, "bias", 4), (2, "weight", (2, 4)))}


@program("from_torch", "no name fits", "rename={'0': 'l1'}")
def weights_of_numbered_layers():
    tg.from_torch(_weights(), shared())


@program("from_torch", "got <MLP", "tg.compile")
def weights_for_a_model():
    tg.from_torch(_weights(), MLP())


@program("to_torch", "got <MLP", "tg.compile")
def weights_of_a_model():
    tg.to_torch(MLP())


@program("tanh", "tensors and lists in it", "take one of several results")
def all_results_of_a_recurrence():
    class Net(tg.Module):
        def __init__(self):
            self.cell = nn.LSTM(3, 4)

    tg.trace_forward(model=Net(), forward=lambda m, x: tg.tanh(m.cell(x)), inputs={"x": (2, 5, 3)})


@program("run_steps: n must be an integer from 1 to 1000000", "got 2147483648")
def steps_without_an_end():
    return shared().run_steps(2**31, x=X, y=Y).loss


@program("one_hot: n must not be negative, got -1")
def classes_to_be_inferred():
    tg.trace_forward(model=MLP(), forward=lambda m, x: tg.one_hot(tg.argmax(m(x), 1), -1), inputs={"x": (8, 3)})


@program("segment_sum: n must not be negative, got -1")
def segments_to_be_inferred():
    def forward(m, x):
        return tg.segment_sum(x, tg.argmax(m(x), 1), -1)

    tg.trace_forward(model=MLP(), forward=forward, inputs={"x": (8, 3)})


@program("broadcast_to: a size must not be negative, got [-1,8,3]")
def sizes_to_be_kept():
    tg.trace_forward(model=MLP(), forward=lambda m, x: tg.broadcast_to(x, (-1, 8, 3)), inputs={"x": (8, 3)})


def _several():
    rates = {"d": optim.sgd(lr=0.1), "g": optim.sgd(lr=0.1)}
    return tg.compile(model=MLP(), losses={"d": mse, "g": mse}, inputs=SHAPES, optimizer=rates, device="cpu", seed=0)


@program("the file has several losses", "this training has one")
def load_of_several_losses_into_one():
    with compiled(optimizer=optim.sgd(lr=0.1)) as train, _several() as other, tempfile.TemporaryDirectory() as folder:
        other.save(Path(folder) / "other.safetensors")
        train.load(Path(folder) / "other.safetensors")


@program("the file has one loss", "this training has ['d', 'g']")
def load_of_one_loss_into_several():
    with _several() as train, compiled(optimizer=optim.sgd(lr=0.1)) as other, tempfile.TemporaryDirectory() as folder:
        other.save(Path(folder) / "other.safetensors")
        train.load(Path(folder) / "other.safetensors")


@program("Sequential: entry 0", "write nn.Sequential(*layers)")
def layers_in_one_list():
    nn.Sequential([nn.Linear(3, 4), tg.relu, nn.Linear(4, 2)])


@training("seed of a CompiledTraining", "train.reset(seed=3)", raises=AttributeError)
def seed_that_is_assigned(train):
    train.seed = 3


@training("model of a CompiledTraining", "train.replace_model", raises=AttributeError)
def model_that_is_assigned(train):
    train.model = nn.Linear(3, 2)


@training("training of a CompiledTraining", "a flag of your own", raises=AttributeError)
def mode_that_is_assigned(train):
    train.training = False


@training("step of a CompiledTraining", "cannot be assigned", raises=AttributeError)
def counter_of_steps_that_is_assigned(train):
    train.step = 0


@training("a History has no items", ".loss and .metrics", raises=TypeError)
def loss_of_a_history_by_its_name(train):
    train.fit(x=X, y=Y, batch_size=8, shuffle=False, progress=False)["loss"]


@training("plot", "'log'", "set_yscale", raises=TypeError)
def plot_of_a_history_with_a_logarithm(train):
    train.fit(x=X, y=Y, batch_size=8, shuffle=False, progress=False).plot(log=True)


@training("cannot be pickled or copied", "train.save(path)", raises=TypeError)
def pickle_of_a_training(train):
    pickle.dumps(train)


@training("cannot be pickled or copied", "tg.load_forward", raises=TypeError)
def copy_of_a_forward(train):
    copy.deepcopy(train.attach(forward=lambda m, x: m(x), inputs={"x": (8, 3)}))


@program("a schedule is not a function", "schedule.at(step)", raises=TypeError)
def schedule_that_is_called():
    tg.lr.linear(1.0, 0.0, 5)(3)


@program("tg.f32 is a type", "tg.cast(x, tg.f32)", raises=TypeError)
def dtype_that_is_called():
    tg.f32(X)


@loss("x.type", "f32[8,2]", "tg.cast", raises=TypeError)
def type_of_a_tensor_that_is_called(m, x, y):
    return tg.mean(m(x).type(tg.f32) - y)


@program("argnums=0", "by position, as in f(x)")
def gradient_by_an_argument_that_is_named():
    tg.grad(lambda x: tg.sum(x))(x=X)


@program("'b2'", "beta2=0.9", raises=TypeError)
def betas_with_the_names_of_optax():
    optim.adamw(1e-3, b2=0.9)


@program("'mode'", "one mode", raises=TypeError)
def mode_of_compilation():
    tg.compile(model=nn.Linear(3, 2), mode="max-autotune")


@program("pass its name, 'cpu'", raises=RuntimeError)
def device_that_is_an_object():
    model = nn.Linear(3, 2)
    tg.compile_forward(model=model, forward=lambda m, x: m(x), inputs={"x": (8, 3)}, device=tg.devices()[0])


@program("got Linear", "optim.adam(lr=1e-3)", raises=ValueError)
def schedule_as_optimizer():
    compiled(optimizer=tg.lr.linear(1.0, 0.0, 5))


@program("entry 0 must be a layer or a function")
def dtype_as_layer():
    nn.Sequential(tg.f32)


@program("loss must be a function", "got f32", raises=ValueError)
def dtype_as_loss():
    compiled(loss=tg.f32)


@training("callbacks has Linear", "none of the methods", raises=ValueError)
def schedule_as_callback(train):
    train.fit(x=X, y=Y, batch_size=8, callbacks=[tg.lr.linear(1.0, 0.0, 5)])


@training("run of a CompiledForward", "tg.compile_forward makes another", raises=AttributeError)
def run_of_a_forward_that_is_assigned(train):
    train.attach(forward=lambda m, x: m(x), inputs={"x": (8, 3)}).run = print
