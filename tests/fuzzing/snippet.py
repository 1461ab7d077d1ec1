"""A program as Python text: each step is called on names instead of tensors, which write down what is done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fuzzing.apply import attributes
from fuzzing.compare import Finding
from fuzzing.differentiated import types_of, weight, weights
from fuzzing.program import Input, Program, Step
from fuzzing.table import OPS

WRITTEN_OUT = 40  # elements of an array that stands in the text itself
OPERATORS = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "pow": "**", "matmul": "@", "lt": "<",
             "mod": "%", "floordiv": "//"}  # fmt: skip


class Text:
    """An expression. What is done to it makes a longer one."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __getattr__(self, name: str) -> Text:
        if name.startswith("__"):
            raise AttributeError(name)
        return Text(f"{self.text}.{name}")

    def __call__(self, *args: Any, **named: Any) -> Text:
        shown = [written(a) for a in args] + [f"{n}={written(a)}" for n, a in named.items()]
        return Text(f"{self.text}({', '.join(shown)})")

    def __getitem__(self, index: Any) -> Text:
        parts = index if isinstance(index, tuple) else (index,)
        return Text(f"{self.text}[{', '.join(_sliced(i) for i in parts)}]")


def _operator(sign: str, turned: bool) -> Callable[[Text, Any], Text]:
    def apply(self: Text, other: Any) -> Text:
        a, b = (other, self) if turned else (self, other)
        return Text(f"({written(a)} {sign} {written(b)})")

    return apply


for _name, _sign in OPERATORS.items():
    setattr(Text, f"__{_name}__", _operator(_sign, turned=False))
    setattr(Text, f"__r{_name}__", _operator(_sign, turned=True))


def _sliced(i: Any) -> str:
    if not isinstance(i, slice):
        return written(i)
    start, stop, step = ("" if part is None else str(part) for part in (i.start, i.stop, i.step))
    return f"{start}:{stop}:{step}" if step else f"{start}:{stop}"


def written(value: Any) -> str:
    """An argument as Python."""
    if isinstance(value, Text):
        return value.text
    if isinstance(value, (tuple, list)):
        inside = ", ".join(map(written, value))
        return f"[{inside}]" if isinstance(value, list) else f"({inside}{',' if len(value) == 1 else ''})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{written(k)}: {written(x)}" for k, x in value.items()) + "}"
    if callable(value):
        return _function(value)
    if isinstance(value, np.ndarray):
        return f"np.array({value.tolist()}, np.{value.dtype})"
    return repr(value)


_open: list[Any] = []  # functions that are being written: a function inside one reads its arguments, too


def _function(value: Any) -> str:
    depth = str(len(_open) or "")
    names = [Text(n + depth) for n in "abcdefgh"[: value.__code__.co_argcount or getattr(value, "arity", 1)]]
    _open.append(value)
    try:
        return f"lambda {', '.join(n.text for n in names)}: {written(value(*names))}"
    finally:
        _open.pop()


def _step(step: Step, args: list[Text]) -> Text:
    """What a step does to some expressions."""
    if step.op == "case":
        return Text(f"CASES[{step.attrs['name']!r}].fn")(*args)
    if step.op == "layer":
        attrs = attributes(step, "ours", None)
        layer = Text(f"made({attrs['kind']!r}, {attrs['taken']}, {attrs['how']})")
        return OPS["layer"].ours(Text("tg"), *args, **attrs, layer=layer)
    attrs = attributes(step, "ours", Text("tg"))
    if step.body is not None:
        body = step.body

        def function(*xs: Text) -> Any:
            results = _expressions(body, list(xs))
            return results[0] if len(results) == 1 else tuple(results)

        function.arity = len(body.inputs)  # type: ignore[attr-defined]
        attrs["body"] = function
    return OPS[step.op].ours(Text("tg"), *args, **attrs)


def _expressions(program: Program, args: list[Text]) -> list[Text]:
    """The results of a body as one expression each."""
    values = {~k: x for k, x in enumerate(args)}
    for k, step in enumerate(program.steps):
        values[k] = _step(step, [values[n] for n in step.args])
    return [values[n] for n in program.outputs]


def name(k: int) -> str:
    """Of a value."""
    return f"v{k}" if k >= 0 else f"x{~k}"


def array(x: Input) -> str:
    """What makes the values of an input."""
    dtype = {"f32": "np.float32", "i32": "np.int32", "u32": "np.uint32", "bool": "np.bool_"}[x.dtype]
    values = x.array()
    if values.size <= WRITTEN_OUT:
        return f"np.array({values.tolist()}, {dtype})".replace("nan", "np.nan").replace("inf", "np.inf")
    if x.kind == "given" and np.array_equal(values.reshape(-1), np.arange(1.0, 1 + values.size)):
        return f"np.arange(1, {1 + values.size}, dtype={dtype}).reshape({x.shape})"
    draw = {
        "below": f"integers({int(x.low)}, {int(x.high)}, {x.shape})",
        "bools": f"integers(0, 2, {x.shape})",
        "integers": f"integers(-3, 4, {x.shape})",
    }.get(x.kind, f"uniform({x.low}, {x.high}, {x.shape})")
    if x.kind == "eighths":
        return f"(np.random.default_rng({x.seed}).integers(-16, 17, {x.shape}) / 8).astype({dtype})"
    if x.kind in ("special", "given"):
        return f"np.array({values.tolist()}, {dtype})".replace("nan", "np.nan").replace("inf", "np.inf")
    return f"np.random.default_rng({x.seed}).{draw}.astype({dtype})"


def snippet(finding: Finding) -> str:
    """A runnable text: the program, its inputs, the call, and what is wrong with the result."""
    program = finding.program
    names = [f"x{k}" for k in range(len(program.inputs))]
    lines = ["import numpy as np", "import tracegrad as tg"]
    if any(s.op == "case" for s in program.steps):
        lines += ["from all_cases import ALL_CASES  # run this in tests/", "CASES = {c.name: c for c in ALL_CASES}"]
    if any(s.op == "layer" for s in program.steps):
        lines += ["from fuzzing.ops_layers import made  # run this in tests/"]
    lines += [f"{n} = {array(x)}" for n, x in zip(names, program.inputs)]
    lines += ["", f"def program({', '.join(names)}):"]
    for k, step in enumerate(program.steps):
        lines.append(f"    {name(k)} = {written(_step(step, [Text(name(n)) for n in step.args]))}")
    lines += [f"    return ({', '.join(map(name, program.outputs))},)", ""]
    lines += _calls(program, names, finding.runner)
    return "\n".join([*lines, *(f"# {line}" for line in str(finding).splitlines())])


def _calls(program: Program, names: list[str], runner: str) -> list[str]:
    """The lines that compile the program and run it."""
    floats = [n for n, x in zip(names, program.inputs) if x.dtype == "f32"]
    made = weights(program, types_of(program)) if program.mode == "gradient" else {}
    cts = {n: weight(program, int(n[1:]), x.shape) for n, x in made.items()}
    held = floats if program.mode == "train" else floats[:1]
    given = [n for n in [*names, *cts] if n not in held]
    lines = [f"{n} = {array(x)}" for n, x in cts.items()]
    lines += ["class Model(tg.Module):", "    def __init__(self):"]
    lines += [f"        self.{n} = self.param({n}.shape, init=tg.init.literal({n}))" for n in held]
    lines += ["        self.none = self.param((1,), init=tg.init.zeros())"] if not held else []
    values = ", ".join(f"m.{n}" if n in held else n for n in names)
    inputs = "{" + ", ".join(f'"{n}": tg.{_dtype(n, program)}[{n}.shape]' for n in given) + "}"
    call = ", ".join(f"{n}={n}" for n in given)
    device = "webgpu" if runner == "webgpu" else "cpu"
    if program.mode == "train":
        how = program.train
        losses = f"[train.step({call}).loss for _ in range({how['steps']})]"
        return [*lines, f"def loss(m{''.join(f', {n}' for n in given)}):",
                f"    return sum(tg.mean(tg.square(y)) for y in program({values}) if y.dtype == tg.f32)",
                f"# optimizer: {how['optimizer']} of fuzzing/training.py",
                *([f"# losses, in turn: {how['losses']}, {how['order']}"] if how.get("losses") else []),
                f"with tg.compile(model=Model(), loss=loss, inputs={inputs}, "
                f"optimizer=tg.optim.sgd(lr={how['lr']}), device={device!r}) as train:",
                f"    print({losses}, train.download_params())"]  # fmt: skip
    lines += [f"def forward(m{''.join(f', {n}' for n in given)}):"]
    if cts:
        wrt = ", ".join(f"m.{n}" if n in held else n for n in floats)
        chosen = ", ".join(f"ys[{int(n[1:])}]" for n in cts)
        rest = ", ".join(n if n in floats else f"m.{n}" if n in held else n for n in names)
        lines += [f"    def of_floats({', '.join(floats)}):", f"        ys = program({rest})",
                  f"        return ({chosen},), tuple(ys)",
                  f"    _, pull, ys = tg.vjp(of_floats, {wrt}, has_aux=True)",
                  f"    return (*ys, *pull(({', '.join(cts)},)))"]  # fmt: skip
    else:
        lines += [f"    return program({values})"]
    arguments = f"model=Model(), forward=forward, inputs={inputs}, device={device!r}"
    return [*lines, f"with tg.compile_forward({arguments}) as f:", f"    print(f.run({call}).output)"]


def _dtype(n: str, program: Program) -> str:
    dtype = "f32" if n.startswith("c") else program.inputs[int(n[1:])].dtype
    return "bool_" if dtype == "bool" else dtype
