"""Bad input through the public interface: the right error, both types, the user's own line, and nothing lost."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from models import SineMLP, sine_loss, sine_predict
from tracegrad import nn, optim
from tracegrad.nn.module import Module
from tracegrad.runtime import adapter_probe

HERE = Path(__file__)
SOURCE = HERE.read_text(encoding="utf-8").splitlines()
GOOD = {"x": np.linspace(-1, 1, 16, dtype=np.float32)[:, None], "y": np.linspace(0, 1, 16, dtype=np.float32)[:, None]}
INPUTS = {"x": (16, 1), "y": (16, 1)}


def assert_names_line(text: str, marker: str) -> None:
    """The error ends with the file, the number and the text of the line of this file that has `marker` as a comment."""
    number = next(k for k, line in enumerate(SOURCE, 1) if line.rstrip().endswith(f"# HERE {marker}"))
    assert f"at {HERE}:{number}\n" in text, f"not line {number}:\n{text}"
    assert SOURCE[number - 1].strip() in text


def compiled(**changes: Any) -> tg.CompiledTraining:
    arguments = {"model": SineMLP(8), "loss": sine_loss, "inputs": INPUTS, "optimizer": optim.adam(lr=0.01)}
    return tg.compile(**{**arguments, **changes}, device="cpu", seed=0)


@pytest.fixture
def train() -> Iterator[tg.CompiledTraining]:
    """A training that must end as if whatever happened in between had not."""
    with compiled() as t, compiled() as untouched:
        for each in (t, untouched):
            assert each.step(GOOD).result().step == 1
        yield t
        params, expected = t.download_params(), untouched.download_params()
        assert all(np.array_equal(params[n], expected[n]) for n in expected)
        after = [t.step(GOOD).result() for _ in range(2)]
        assert [r.step for r in after] == [2, 3]
        assert [r.loss for r in after] == [untouched.step(GOOD).loss for _ in range(2)]


# --- inputs of a call: Failed, never raised ---

CALLS = {
    "unknown": ({**GOOD, "z": 1}, ["z: unknown", "x f32[16,1]", "y f32[16,1]"]),
    "missing": ({"x": GOOD["x"]}, ["y: missing", "f32[16,1]"]),
    "shape": ({**GOOD, "y": GOOD["y"][:4]}, ["y: ", "f32[16,1]", "f32[4,1]"]),
    "rank": ({**GOOD, "y": GOOD["y"][:, 0]}, ["y: ", "f32[16,1]", "f32[16]"]),
    "dtype": ({**GOOD, "x": GOOD["x"].astype(np.complex64)}, ["x: ", "complex64", "f32"]),
    "object": ({**GOOD, "x": [["a"]] * 16}, ["x: "]),
    "overflow": ({**GOOD, "x": GOOD["x"].astype(np.float64) * 1e300}, ["x: ", "float64", "f32"]),
    "everything": ({"x": GOOD["x"][:3], "z": 1}, ["3 problems", "z: unknown", "y: missing", "f32[16,1]", "f32[3,1]"]),
}


@pytest.mark.parametrize("name", CALLS)
def test_bad_inputs_of_a_step(train: tg.CompiledTraining, name: str) -> None:
    bad, parts = CALLS[name]
    r = train.step(bad).result()  # HERE step
    assert isinstance(r, tg.Failed) and type(r.error) is tg.InputError
    for part in parts:
        assert part in str(r.error)
    assert_names_line(str(r.error), "step")


@pytest.mark.parametrize("name", CALLS)
def test_bad_inputs_of_run_steps(train: tg.CompiledTraining, name: str) -> None:
    bad, parts = CALLS[name]
    r = train.run_steps(2, bad).result()  # HERE run_steps
    assert isinstance(r, tg.Failed) and type(r.error) is tg.InputError
    for part in parts:
        assert part in str(r.error)
    assert_names_line(str(r.error), "run_steps")


def test_bad_inputs_of_a_run(train: tg.CompiledTraining) -> None:
    infer = train.attach(forward=sine_predict, inputs={"x": (None, 1)})
    for bad, parts in (
        ({"x": np.zeros((3, 2), np.float32)}, ["x: ", "1]", "f32[3,2]"]),
        ({"x": np.zeros(3, np.float32)}, ["x: ", "f32[3]"]),
        ({"q": np.zeros((3, 1), np.float32)}, ["q: unknown", "x: missing"]),
        ({}, ["x: missing"]),
    ):
        r = infer.run(bad).result()  # HERE run
        assert isinstance(r, tg.Failed) and type(r.error) is tg.InputError
        for part in parts:
            assert part in str(r.error)
        assert_names_line(str(r.error), "run")
    assert infer.run(x=GOOD["x"]).output.shape == (16, 1)


def test_inputs_that_are_not_given_by_name(train: tg.CompiledTraining) -> None:
    r = train.step([1, 2]).result()  # HERE list  # type: ignore[arg-type]
    assert isinstance(r, tg.Failed) and type(r.error) is tg.InputError and "list" in str(r.error)
    twice = train.step({"x": GOOD["x"]}, **GOOD).result()
    assert isinstance(twice, tg.Failed) and "given twice" in str(twice.error)


# --- out-of-range indices ---


class Lookup(tg.Module):
    """A table of 5 rows and a classifier of 3 classes."""

    def __init__(self) -> None:
        self.table, self.head = nn.Embedding(5, 4), nn.Linear(4, 3)


def classify(m: Lookup, tokens: tg.Tensor, label: tg.Tensor) -> tg.Tensor:
    return tg.cross_entropy(m.head(m.table(tokens)), label)


def picked(m: Lookup, tokens: tg.Tensor, label: tg.Tensor) -> tg.Tensor:
    return tg.mean(tg.take(m.table.W, tokens, 0)) + tg.mean(tg.one_hot(label, 3) * m.head.b)


@pytest.mark.parametrize("loss", [classify, picked])
@pytest.mark.parametrize(
    ("name", "value", "most"), [("tokens", 5, 4), ("tokens", -1, 4), ("label", 3, 2), ("label", -7, 2)]
)
def test_an_index_out_of_range(loss: Any, name: str, value: int, most: int) -> None:
    inputs = {"tokens": tg.i32[6], "label": tg.i32[6]}
    good = {"tokens": np.arange(6, dtype=np.int32) % 5, "label": np.arange(6, dtype=np.int32) % 3}
    with compiled(model=Lookup(), loss=loss, inputs=inputs) as train:
        before = train.download_params()
        bad = {**good, name: good[name].copy()}
        bad[name][4] = value
        r = train.step(bad).result()  # HERE index
        assert isinstance(r, tg.Failed) and type(r.error) is tg.InputError
        for part in (f"{name}: ", f"value {value} at [4]", f"0 to {most}"):
            assert part in str(r.error)
        assert_names_line(str(r.error), "index")
        assert all(np.array_equal(x, before[n]) for n, x in train.download_params().items())
        assert train.step(good).result().step == 1


def test_a_float_where_an_index_belongs() -> None:
    inputs = {"tokens": tg.i32[6], "label": tg.i32[6]}
    with compiled(model=Lookup(), loss=classify, inputs=inputs) as train:
        r = train.step(tokens=np.full(6, 0.5), label=np.zeros(6, np.int32)).result()
        assert isinstance(r, tg.Failed) and type(r.error) is tg.InputError
        assert "float64" in str(r.error) and "i32" in str(r.error)
        assert train.step(tokens=np.zeros(6, np.int64), label=np.zeros(6, np.int32)).result().step == 1


# --- at compile: raised, with the line of the model ---


def wrong_shapes(m: SineMLP, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    return tg.mean(x @ tg.zeros((3, 2)))  # HERE shapes


def wrong_broadcast(m: SineMLP, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    return tg.mean(x + tg.zeros((7, 5)))  # HERE broadcast


def wrong_dtype(m: SineMLP, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    return tg.mean(x + tg.arange(16))  # HERE dtype


def truncated(m: SineMLP, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    return tg.mean(tg.cast(tg.arange(3) * 0.5, tg.f32)) + tg.mean(m.l1.W)  # HERE truncated


def wrong_axis(m: SineMLP, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    return tg.mean(tg.sum(x, axis=2))  # HERE axis


def wrong_reshape(m: SineMLP, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    return tg.mean(x.reshape(5, -1))  # HERE reshape


def not_scalar(m: SineMLP, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    return tg.square(sine_predict(m, x) - y)  # HERE scalar


def not_float(m: SineMLP, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    return tg.sum(tg.cast(x, tg.i32))  # HERE float


def parameter_inside(m: SineMLP, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    return tg.mean(nn.Linear(1, 1)(x))  # HERE parameter


class Growing(Module):
    """Makes a parameter on call."""

    def __init__(self) -> None:
        self.l = nn.Linear(1, 1)

    def __call__(self, x: tg.Tensor) -> tg.Tensor:
        return self.l(x) + self.param((1,))  # HERE call


def growing(m: Growing, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    return tg.mean(m(x))


def branching(m: SineMLP, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    loss = sine_loss(m, x, y)
    return loss * 2 if loss > 1 else loss  # HERE branch


def counting(m: SineMLP, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    loss = sine_loss(m, x, y)
    return loss * float(loss)  # HERE number


def numpy_inside(m: SineMLP, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    return tg.mean(np.asarray(sine_predict(m, x)))  # HERE numpy


LEAKED: list[tg.Tensor] = []


def leaking(m: SineMLP, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    LEAKED.append(m.l1(x))
    return sine_loss(m, x, y)


def leaked(m: SineMLP, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    return sine_loss(m, x, y) + tg.mean(LEAKED[0])  # HERE leaked


TRACES: dict[str, tuple[Callable[..., Any], type[Exception], list[str]]] = {
    "shapes": (wrong_shapes, tg.ShapeError, ["matmul", "f32[16,1]", "f32[3,2]"]),
    "broadcast": (wrong_broadcast, tg.ShapeError, ["add", "f32[16,1]", "f32[7,5]"]),
    "dtype": (wrong_dtype, tg.DTypeError, ["add", "f32[16,1]", "i32[16]"]),
    "truncated": (truncated, tg.DTypeError, ["mul", "0.5", "i32"]),
    "axis": (wrong_axis, tg.ShapeError, ["sum", "f32[16,1]", "2"]),
    "reshape": (wrong_reshape, tg.ShapeError, ["reshape", "f32[16,1]", "5"]),
    "scalar": (not_scalar, tg.CompileError, ["not_scalar", "f32[]", "f32[16,1]"]),
    "float": (not_float, tg.CompileError, ["not_float", "f32[]", "i32[]"]),
    "parameter": (parameter_inside, tg.TraceError, ["__init__"]),
    "call": (growing, tg.TraceError, ["__init__"]),
    "branch": (branching, tg.TraceError, ["bool[]", "tg.where"]),
    "number": (counting, tg.TraceError, ["f32[]", "not known while tracing"]),
    "numpy": (numpy_inside, tg.TraceError, ["f32[16,1]", "NumPy"]),
    "leaked": (leaked, tg.TraceError, []),
}


@pytest.mark.parametrize("marker", TRACES)
def test_errors_in_a_loss(train: tg.CompiledTraining, marker: str) -> None:
    """Nor does it matter to a training that runs meanwhile: see the fixture."""
    loss, kind, parts = TRACES[marker]
    if marker == "leaked" and not LEAKED:
        compiled(loss=leaking).close()
    model = Growing() if loss is growing else SineMLP(8)
    with pytest.raises(kind) as e:
        compiled(model=model, loss=loss)
    assert type(e.value) is kind
    for part in parts:
        assert part in str(e.value)
    assert_names_line(str(e.value), marker)


def test_a_forward_that_fails_leaves_the_training(train: tg.CompiledTraining) -> None:
    def forward(m: SineMLP, x: tg.Tensor) -> tg.Tensor:
        return m.l2(m.l1(x)) + tg.zeros((3, 3))  # HERE forward

    with pytest.raises(tg.ShapeError, match=re.escape("f32[3,3]")) as e:
        train.attach(forward=forward, inputs={"x": (16, 1)})
    assert_names_line(str(e.value), "forward")


class Misfit(SineMLP):
    """Its layers do not fit each other."""

    def __init__(self) -> None:
        super().__init__(8)
        self.l3 = nn.Linear(5, 1)


def test_a_model_that_does_not_compile_leaves_the_training(train: tg.CompiledTraining) -> None:
    with pytest.raises(tg.ShapeError, match=re.escape("f32[5,1]")):
        train.replace_model(Misfit())


class Empty(tg.Module):
    """Nothing to train."""


def test_a_model_without_parameters() -> None:
    with pytest.raises(tg.CompileError, match="Empty has no parameters") as e:
        tg.compile(model=Empty(), loss=sine_loss, inputs=INPUTS, optimizer=optim.adam(), device="cpu")  # HERE empty
    assert_names_line(str(e.value), "empty")


def test_errors_of_python_in_a_trace_for_new_sizes_arrive_as_they_are() -> None:
    tables = {6: 1.0}

    def forward(m: Any, x: Any) -> Any:
        return m(x) * tables[x.shape[0]]

    inputs = {"x": (None, 3)}
    with tg.compile_forward(model=nn.Linear(3, 2), forward=forward, inputs=inputs, device="cpu", seed=0) as infer:
        with pytest.raises(KeyError, match="4"):
            _ = infer.run(x=np.ones((4, 3))).output
        assert infer.run(x=np.ones((6, 3))).output.shape == (6, 2)


def test_a_model_with_nothing_to_train() -> None:
    class Frozen(tg.Module):
        def __init__(self) -> None:
            self.w = self.param((2,), trainable=False)

    with pytest.raises(tg.CompileError, match="trainable"):
        compiled(model=Frozen(), loss=lambda m, x, y: tg.mean(m.w) + tg.mean(x - y))


NAMES = {
    "undeclared": ({"x": (16, 1)}, ["'y'", "not declared"]),
    "unknown": ({**INPUTS, "z": (3,)}, ["'z'", "does not take"]),
    "misspelt": ({"x": (16, 1), "Y": (16, 1)}, ["'Y'", "'y'"]),
}


@pytest.mark.parametrize("name", NAMES)
def test_inputs_that_the_loss_does_not_take(name: str) -> None:
    inputs, parts = NAMES[name]
    with pytest.raises(tg.InputError) as e:
        tg.compile(model=SineMLP(8), loss=sine_loss, inputs=inputs, optimizer=optim.adam(), device="cpu")  # HERE names
    for part in parts:
        assert part in str(e.value)
    assert_names_line(str(e.value), "names")


@pytest.mark.parametrize("spec", [(0, 1), (-2,), "no name", (1.5,), {"a": 1}, True])
def test_input_types_that_are_none(spec: Any) -> None:
    with pytest.raises(tg.InputError, match="'x'") as e:
        inputs = {"x": spec, "y": (16, 1)}
        tg.compile(model=SineMLP(8), loss=sine_loss, inputs=inputs, optimizer=optim.adam())  # HERE spec
    assert_names_line(str(e.value), "spec")


@pytest.mark.parametrize("inputs", [None, (2, 1), [("x", (2, 1))], {0: (2, 1)}, tg.i32, tg.i32[2]], ids=repr)
def test_inputs_that_are_no_dict(inputs: Any) -> None:
    says = re.escape(f'names to shapes or types, such as {{"x": (64, 784)}}; got {inputs!r}')
    with pytest.raises(tg.InputError, match=says):
        tg.compile(model=SineMLP(8), loss=sine_loss, inputs=inputs, optimizer=optim.sgd(lr=0.1))
    with pytest.raises(tg.InputError, match=says):
        tg.compile_forward(model=SineMLP(8), forward=sine_predict, inputs=inputs)


def test_traced_tensors_outside_their_trace() -> None:
    """Ops on values run at once; a tensor that a trace left behind has none."""
    kept: list[tg.Tensor] = []
    tg.trace_forward(model=nn.Linear(2, 2), forward=lambda m, x: kept.append(x) or m(x), inputs={"x": (1, 2)})
    (x,) = kept
    for fn in (lambda: tg.dropout(x, 0.5), lambda: tg.capture("a", x), lambda: x + 1.0):
        with pytest.raises(tg.TraceError) as e:
            fn()
        assert f"at {HERE}:" in str(e.value) and "there is no trace here" in str(e.value)


def test_a_leaked_tensor_is_of_no_use_later() -> None:
    compiled(loss=leaking).close()
    with pytest.raises(tg.TraceError):
        compiled(loss=lambda m, x, y: tg.mean(LEAKED[0]) + sine_loss(m, x, y))


# --- parameter names, files, values, devices ---


def test_unknown_and_wrong_parameters(train: tg.CompiledTraining) -> None:
    good = np.full((8,), 9, np.float32)
    for record, parts in (
        ({"l1.b": good, "l9.W": good}, ["l9.W", "l1.W"]),
        ({"l1.b": good, "l2.W": good}, ["l2.W", "f32[8,8]", "f32[8]"]),
        ({"l1.b": good.astype(np.complex64)}, ["l1.b", "complex64"]),
    ):
        with pytest.raises(tg.InputError) as e:
            train.upload_params(record)  # HERE upload
        for part in parts:
            assert part in str(e.value)
        assert_names_line(str(e.value), "upload")
    with pytest.raises(tg.InputError, match=re.escape("l3.b")):
        train.upload_params({"l1.b": good}, strict=True)


def test_unknown_hyperparameters(train: tg.CompiledTraining) -> None:
    with pytest.raises(tg.InputError, match="momentum") as e:
        train.set(momentum=0.5)  # HERE set
    assert "beta1" in str(e.value)
    assert_names_line(str(e.value), "set")


def test_files_that_are_no_checkpoint(train: tg.CompiledTraining, tmp_path: Path) -> None:
    (tmp_path / "junk").write_bytes(b"\x10\0\0\0\0\0\0\0not json at all!")
    with pytest.raises(tg.InputError):
        train.load(tmp_path / "junk")
    with compiled(model=SineMLP(4)) as other:
        other.save(tmp_path / "other")
    with pytest.raises(tg.InputError, match=re.escape("l1.W")):
        train.load(tmp_path / "other")
    with pytest.raises(FileNotFoundError):
        train.load(tmp_path / "nothing")
    with compiled(optimizer=optim.sgd(lr=0.1)) as other:
        other.save(tmp_path / "sgd")
        weights = other.download_params()
    with pytest.raises(tg.InputError, match=r"opt/m/l1.W: missing.*(\n.*)*the parameters fit.*optimizer=False") as e:
        train.load(tmp_path / "sgd")
    remedy = re.search(r"write (train\.load\(.*\))", str(e.value))
    assert remedy is not None
    with compiled() as again:
        eval(remedy[1], {"train": again, "path": tmp_path / "sgd"})
        read = again.download_params()
    assert {n: x.tolist() for n, x in read.items()} == {n: x.tolist() for n, x in weights.items()}


def test_a_device_that_is_none() -> None:
    with pytest.raises(tg.DeviceError, match="'tpu'") as e:
        tg.compile(model=SineMLP(8), loss=sine_loss, inputs=INPUTS, optimizer=optim.adam(), device="tpu")  # HERE device
    assert_names_line(str(e.value), "device")


def test_a_missing_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter_probe, "ask", lambda *_: adapter_probe.Answer(reason="no-driver"))
    with pytest.raises(tg.DeviceError) as e:
        model, adam = SineMLP(8), optim.adam()
        tg.compile(model=model, loss=sine_loss, inputs=INPUTS, optimizer=adam, device="webgpu")  # HERE adapter
    assert "adapter" in str(e.value)
    assert_names_line(str(e.value), "adapter")
    with compiled() as train:
        assert train.step(GOOD).result().step == 1


@pytest.mark.parametrize("seed", [-1, 2**32, 0.5, "0"])
def test_seeds_that_are_none(seed: Any) -> None:
    with pytest.raises(tg.InputError, match="seed") as e:
        tg.compile(model=SineMLP(8), loss=sine_loss, inputs=INPUTS, optimizer=optim.adam(), seed=seed)  # HERE seed
    assert_names_line(str(e.value), "seed")


def test_a_loss_that_is_not_finite_names_its_line(train: tg.CompiledTraining) -> None:
    r = train.step(x=GOOD["x"] * np.float32(np.inf), y=GOOD["y"]).result()
    assert isinstance(r, tg.Failed) and type(r.error) is tg.NonFiniteError
    assert "nothing was changed" in str(r.error) and "'x'" in str(r.error)


def test_the_line_of_an_op_that_makes_a_nan() -> None:
    def loss(m: SineMLP, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
        bad = tg.log(x)  # HERE log
        return tg.mean(bad) + sine_loss(m, x, y)

    with compiled(loss=loss) as train:
        before = train.download_params()
        r = train.step(GOOD).result()
        assert isinstance(r, tg.Failed) and type(r.error) is tg.NonFiniteError
        assert "log" in str(r.error) and "f32[16,1]" in str(r.error)
        assert_names_line(str(r.error) + "\n", "log")
        assert all(np.array_equal(x, before[n]) for n, x in train.download_params().items())
        assert train.step({**GOOD, "x": GOOD["x"] + 3}).result().step == 1


def test_a_closed_training() -> None:
    train = compiled()
    train.close()
    r = train.step(GOOD).result()
    assert isinstance(r, tg.Aborted)
    with pytest.raises(tg.AbortedError):
        train.download_params()
    with pytest.raises(tg.AbortedError, match="this CompiledTraining is closed"):
        train.attach(forward=sine_predict, inputs={"x": (None, 1)})


# --- tracebacks ---


def frames(error: BaseException) -> list[tuple[str, str]]:
    """(file, function) of each frame of the traceback."""
    return [(Path(f.filename).name, f.name) for f in traceback.extract_tb(error.__traceback__)]


def bad_loss(m: Any, x: Any, y: Any) -> Any:
    return tg.vmap(lambda x: tg.mean(sine_predict(m, x) @ y))(x)


def raised(error: type[BaseException], loss: Callable[..., Any] = bad_loss) -> list[tuple[str, str]]:
    with pytest.raises(error) as e:
        compiled(loss=loss)
    return frames(e.value)


def test_a_traceback_has_the_frames_of_the_user_and_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    own = [("test_errors.py", name) for name in ("raised", "compiled", "bad_loss", "<lambda>")]
    found = raised(tg.ShapeError)
    assert [f for f in found if f[0] == HERE.name] == own
    assert len(found) == len(own) + 1  # the op that raised
    monkeypatch.setenv("TRACEGRAD_TRACEBACK", "full")
    assert len(raised(tg.ShapeError)) > 15


def test_errors_that_are_not_the_librarys_keep_all_frames() -> None:
    def loss(m: Any, x: Any, y: Any) -> Any:
        return {}["a key"]

    assert len(raised(KeyError, loss)) > 10


def test_the_error_of_a_step_does_not_show_the_worker(train: tg.CompiledTraining) -> None:
    with pytest.raises(tg.InputError) as e:
        print(train.step(x=GOOD["x"]).loss)
    found = frames(e.value)
    assert found[0] == (HERE.name, "test_the_error_of_a_step_does_not_show_the_worker")
    assert [f for f, _ in found[1:3]] == ["pending.py"] * 2
    assert len(found) == 4


GARBAGE = {
    "tg.jvp: fn must be a function, as in tg.jvp(fn, ...); got 3": lambda: tg.jvp(3, (1.0,), (1.0,)),
    "tg.vjp: fn must be a function": lambda: tg.vjp("a", 2.0),
    "tg.scan: fn must be a function": lambda: tg.scan(3, 0.0, np.ones(3)),
    "tg.tree_map: fn must be a function": lambda: tg.tree_map(3, {"a": 1}),
    "tg.custom_vjp: fn must be a function": lambda: tg.custom_vjp(3),
    "defvjp: bwd must be a function": lambda: tg.custom_vjp(tg.sin).defvjp(lambda x: (x, x), None),
    "scale_by_muon: only: parameters are chosen by a pattern": lambda: optim.scale_by_muon(only=True),
    "optim.chain: takes transforms, such as optim.scale_by_adam(); got optim.adam": lambda: optim.chain(optim.adam()),
    "optim.custom: takes transforms, such as optim.scale_by_adam()": lambda: optim.custom(optim.adam()),
    "optim.chain: takes transforms, pass them one by one": lambda: optim.chain([optim.scale_by_adam()]),
    "Conv2d: in_ch must be an integer, got None": lambda: nn.Conv2d(None, 3, 3),
    "ConvTranspose1d: out_ch must be an integer, got '8'": lambda: nn.ConvTranspose1d(3, "8", 3),
    "GroupNorm: groups must be an integer, got None": lambda: nn.GroupNorm(None, 8),
    "InstanceNorm: dim must be an integer, got 'a'": lambda: nn.InstanceNorm("a"),
    "MultiheadAttention: n_heads must be an integer, got None": lambda: nn.MultiheadAttention(64, None),
    "MultiheadAttention: kv_heads must be an integer, got '2'": lambda: nn.MultiheadAttention(64, 8, kv_heads="2"),
    "nn.stack: n must be an integer, got None": lambda: nn.stack(nn.Linear(1, 1), None),
    "meshgrid: needs at least one vector": lambda: tg.meshgrid(),
    "the class float32 is neither a tensor": lambda: tg.init.literal(np.float32),
}


@pytest.mark.parametrize("text", GARBAGE)
def test_arguments_of_another_kind_are_told_what_to_be(text: str) -> None:
    with pytest.raises(tg.TracegradError) as e:
        GARBAGE[text]()
    assert text in str(e.value)
