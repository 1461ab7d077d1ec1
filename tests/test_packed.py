"""The object code of every elementwise op computes several elements at a time: nothing keeps it from vectors."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tracegrad as tg
from models import build_forward
from test_compilers import compilers
from tracegrad import ops
from tracegrad.dtypes import DType, TensorType, bool_, f32, i32, u32
from tracegrad.errors import TracegradError
from tracegrad.ir.nodes import PRIMITIVES, Primitive, Tensor, bind
from tracegrad.render.c_text import library_source
from tracegrad.runtime.c_compiler import OTHER_FLAGS, compiler_named

N = 4096
FUNCTION = re.compile(r"^[0-9a-f]+ <(\w+)>:$")
STORED = re.compile(r"\bv?mov(?:up|ap|dq[au]|nt)\w*\s+%[xyz]mm\d+,[^%]*\((?!%rsp)")  # several elements to memory
NAMED = (
    "acos", "asin", "atan", "cosh", "elu", "gelu", "hardtanh", "isfinite", "isinf", "leaky_relu", "nan_to_num",
    "reciprocal", "relu", "sigmoid", "silu", "sinh", "softplus", "tan", "tanhshrink",
)  # fmt: skip
OPS: dict[str, Callable[..., Tensor]] = {
    **{name: getattr(ops, name) for name in NAMED},
    "clip": lambda x: ops.clip(x, -1.0, 1.0),
    "gelu, tanh": lambda x: ops.gelu(x, approximate="tanh"),
    "x**1.7": lambda x: x**1.7,
    "x**5": lambda x: x**5,
    "randn": lambda x: x * ops.randn(x.shape),
    "uniform": lambda x: x * ops.uniform(x.shape),
    "dropout": lambda x: ops.dropout(x, 0.1),
}
SMOOTH = ("elu", "gelu", "softplus", "tan", "asin", "sinh", "x**1.7", "silu", "gelu, tanh")


class One(tg.Module):
    """A model has a parameter."""

    def __init__(self) -> None:
        self.w = self.param((1,))


def texts(fn: Callable[..., Tensor], dtypes: list[DType]) -> list[str]:
    """The C functions of `fn` over vectors."""
    inputs = {f"x{k}": TensorType(d, (N,)) for k, d in enumerate(dtypes)}
    built = build_forward(One(), lambda m, **xs: fn(*xs.values()), inputs)
    found = [f for k in built.program.kernels for f in k.texts["c"].functions]
    return [f for f in found if str(N) in f]  # a random op's key is one number


def types_of(p: Primitive) -> list[list[DType]]:
    """Types of operands that a row takes, one choice for each dtype."""
    found: list[list[DType]] = []
    count = 1 + max((int(k) for k in re.findall(r"\{(\d)\}", p.wgsl)), default=0)
    for dtype in (f32, i32, u32, bool_):
        choice = [bool_, dtype, dtype] if p.name == "where" else [dtype] * count
        try:
            p.type(*(TensorType(d, (N,)) for d in choice), **attributes(p))
        except TracegradError:
            continue
        found.append(choice)
    return found


def attributes(p: Primitive) -> dict[str, Any]:
    """Of the rows that have some."""
    return {"dtype": i32} if p.name == "cast" else {}


def functions() -> dict[str, list[str]]:
    """The C functions of every row, and of ops that are made of several."""
    found: dict[str, list[str]] = {}
    for p in PRIMITIVES.values():
        if p.family == "map" and p.wgsl and not p.name.startswith("test_"):  # ops of other tests call C's functions
            for dtypes in types_of(p):
                apply = lambda *xs, p=p: bind(p, *xs, **attributes(p))
                found[f"{p.name} of {' and '.join(d.name for d in dtypes)}"] = texts(apply, dtypes)
    for name, fn in OPS.items():
        found[name] = texts(fn, [f32])
    for name in SMOOTH:
        derivative = lambda x, f=OPS[name]: tg.vjp(f, x)[1](x)[0]
        found[f"gradient of {name}"] = texts(derivative, [f32])
    return found


@pytest.fixture(scope="module")
def written() -> dict[str, list[str]]:
    return functions()


def scalar(library: Path) -> set[str]:
    """The functions of a library that never store several elements at once, or that call something."""
    text = subprocess.run(["objdump", "-d", "--no-show-raw-insn", str(library)], capture_output=True, text=True).stdout
    found: dict[str, list[str]] = {}
    name = ""
    for line in text.splitlines():
        start = FUNCTION.match(line)
        if start:
            name = start[1]
        found.setdefault(name, []).append(line)
    kernels = {n: lines for n, lines in found.items() if re.fullmatch(r"k[0-9a-f]{20}_", n)}
    assert kernels
    return {n for n, lines in kernels.items() if not is_packed(lines)}


def is_packed(lines: list[str]) -> bool:
    """Does a function store several elements at once, and call nothing but what copies memory?"""
    called = [line for line in lines if re.search(r"\bcall|\bjmp.*<mem", line)]
    copied = [line for line in called if "<memcpy" in line or "<memmove" in line]
    return len(called) == len(copied) and (bool(copied) or any(map(STORED.search, lines)))


@pytest.mark.parametrize("name", compilers())
def test_every_elementwise_op_is_packed(
    name: str, written: dict[str, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.uname().machine != "x86_64":
        return  # the instructions are those of x86
    monkeypatch.setenv(OTHER_FLAGS, "-march=x86-64-v3")  # vectors of 8, with fused products: what every server has
    compiler = compiler_named(name)
    if compiler is None:
        pytest.skip("no C compiler")
    source = library_source(sorted({f for texts in written.values() for f in texts}))
    left = scalar(compiler.compiled(source, "packed", tmp_path))
    scalars = [op for op, texts in written.items() if any(n in f for f in texts for n in left)]
    assert not scalars


def test_no_function_but_division_divides(written: dict[str, list[str]]) -> None:
    """A division of vectors takes as long as thirty products."""
    costly = ("exp", "log", "log1p", "tanh", "erf", "sin", "cos")
    assert [op for op in costly for text in written[f"{op} of f32"] if re.search(r"[\w)] / \(*[a-z]\w*_", text)] == []


def test_a_branch_and_a_call_are_found(tmp_path: Path) -> None:
    compiler = compiler_named("cc")
    if compiler is None or os.uname().machine != "x86_64":
        pytest.skip("no C compiler")
    text = "static OPAQUE void {0}_(float *restrict p) {{ for (int i = 0; i < 4096; i++) p[i] = {1}; }}\n"
    text += "void {0}(float *p) {{ {0}_(p); }}"
    names = [f"k{k:020x}" for k in range(3)]
    values = ["p[i] * 3.0f", "p[i] < 0.0f ? 1.0f : far(p[i])", "__builtin_sinf(p[i])"]
    far = 'float far(float x) { while (x > 1.0f) x = x * 0.5f; __asm__ volatile(""); return x; }'
    made = library_source([far, *(text.format(n, v) for n, v in zip(names, values))])
    assert scalar(compiler.compiled(made, "found", tmp_path)) == {f"{n}_" for n in names[1:]}
