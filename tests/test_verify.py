"""Kernels are checked before their numbers are handed out: a compiler or a driver that computes wrongly is found."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from all_cases import ALL_CASES
from cases import Case
from models import BUDGET
from test_kernels import program_of
from tracegrad import nn, optim
from tracegrad.kernels.form import Axis, Kernel
from tracegrad.runtime import cpu_verify
from tracegrad.runtime.cache import Verdicts
from tracegrad.runtime.cpu import CpuSession
from tracegrad.runtime.points import chosen
from tracegrad.runtime.trials import SEED
from tracegrad.runtime.wgpu_calls import Calls

# A compiler that reads its text from standard input, as cc does, and changes it on the way.
COMPILER = """#!{python}
import re, subprocess, sys
text = sys.stdin.read() if "-" in sys.argv else ""
text = re.sub({old!r}, {new!r}, text)
sys.exit(subprocess.run(["cc", *sys.argv[1:]], input=text, text=True).returncode)
"""
FAULTS = {
    "a guard that always holds": (r"\((int|unsigned)\)condition - 1", "0 * 1"),
    "a choice that is never made": (r"\((int|unsigned)\)condition - 1", r"(\1)0 - 1"),
    "the largest for the smallest": (r"float m = a < b \? a : b", "float m = a > b ? a : b"),
    "exp without its last term": (r"\* r \+ 1\.0f\) \* r", "* r) * r"),
    "products one k short": (r"for \(; k; k--,", "for (k -= k > 1; k; k--,"),
    "a sum that subtracts": (r"(ta2\[l\] = \(ta2\[l\]) \+", r"\1 -"),
    "loops of odd counts one turn short": (
        r"for \(long (\w+) = 0; \1 < (\d*[13579]); \1 \+= 1\)", r"for (long \1 = 0; \1 < \2 - 1; \1 += 1)"
    ),
}  # fmt: skip
MORE = {  # and the precision that shows it
    "an index clamped one too far": (r"clamp\(([^,]+), 0, (\d+)\)", r"clamp(\1, 0, \2 + 1)", "f32"),
    "every fourth for every second": (r"% 2 == 0\)", "% 4 == 0)", "f32"),
    "equal for smaller": (r"\ba < b\b", "a <= b", "f32"),
    "quotients of fewer digits": (r"return a / b; \}", "return a * ((1.0f / b) * 1.0001f); }", "f32"),
    "halves cut off": (r"0xfffu \+ \(a >> 13 & 1u\)", "0u", "f16"),
}


OPERATIONS = {
    "a minimum that drops NaN": (r"(m = a < b \? a : b; return) a != a \? a : m", r"\1 m"),
    "roots of five digits": (r"__builtin_sqrtf\(x\)", "(__builtin_sqrtf(x) * 1.00001f)"),
    "reciprocal roots of five digits": (r"1\.0f / sqrt \(x\)", "1.00001f / sqrt(x)"),
    "halves read without denormals": (r"(small = )(float_of\w+\(bits\))", r"\1!(bits >> 23) ? 0.0f : \2"),
    "halves written without denormals": (r"a < 0x38800000u \? denormal", "a < 0x38800000u ? 0u"),
    "nothing by 0 is 0": (r"\(\(x \* y\)\)", "(y == 0.0f ? 0.0f : x * y)"),
}


class Net(tg.Module):
    def __init__(self) -> None:
        self.w = self.param((6, 5), init=tg.init.randn(1.0))
        self.v = self.param((5, 3), init=tg.init.randn(1.0))


def forward(m: Net, x: tg.Tensor) -> tg.Tensor:
    """Guards, choices, folds, a product and exp."""
    y = tg.pad(x, [(1, 2), (0, 1)]) @ m.w
    return tg.softmax(tg.relu(y) @ m.v) + tg.min(y, axis=1, keepdims=True)


def loss(m: Net, x: tg.Tensor) -> tg.Tensor:
    return tg.mean(tg.square(forward(m, x)))


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Makes cc replace one text by another, with a cache of its own."""

    def make(old: str, new: str) -> Path:
        path = tmp_path / "cc"
        path.write_text(COMPILER.format(python=sys.executable, old=old, new=new))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("TRACEGRAD_CC", str(path))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        return path

    return make


def outputs(x: np.ndarray[Any, Any], precision: str = "f32") -> tuple[Any, Any]:
    """A forward and the loss of the third step."""
    kind: Any = {"seed": 0, "device": "cpu", "precision": precision}
    with tg.compile_forward(model=Net(), forward=forward, inputs={"x": x.shape}, **kind) as f:
        out = f.run(x=x).output
    with tg.compile(model=Net(), loss=loss, inputs={"x": x.shape}, optimizer=optim.adamw(1e-2), **kind) as t:
        return out, [t.step(x=x).loss for _ in range(3)]


@pytest.mark.parametrize("name", FAULTS)
def test_a_compiler_that_miscompiles_is_found(
    name: str, compiler: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.random.default_rng(0).standard_normal((9, 5)).astype(np.float32)
    with monkeypatch.context() as off:
        off.setenv("TRACEGRAD_CC", "off")
        want = outputs(x)
    compiler(*FAULTS[name])
    with pytest.warns(
        RuntimeWarning, match=r"kernel '.*compiled by .*: its numbers are wrong, so the program runs in NumPy"
    ):
        got = outputs(x)
    np.testing.assert_allclose(got[0], want[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got[1], want[1], rtol=1e-5)


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_compiler_that_gets_an_operation_wrong_is_found(name: str, compiler: Callable[[str, str], Path]) -> None:
    """On NaN, infinities and denormals, or in its last digits: kernels are checked on none, and within rounding."""
    compiler(*OPERATIONS[name])
    precision = "f16" if "halves" in name else "f32"  # only programs in half precision wait for the check of halves
    with pytest.warns(RuntimeWarning, match=r"numbers are wrong.*'arithmetic', \w+\(.*\) is .*, not "):
        outputs(np.ones((9, 5), np.float32), precision)


@pytest.mark.parametrize("flags", ["-ffast-math", "-ffinite-math-only"])
def test_flags_that_trade_right_numbers_for_speed_are_found(flags: str, tmp_path: Path) -> None:
    """In a process of its own: a library that GCC makes so changes how the processor rounds, for all of a thread."""
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = {
        **os.environ,
        "TRACEGRAD_CC": "cc",
        "TRACEGRAD_CFLAGS": flags,
        "XDG_CACHE_HOME": str(tmp_path),
        "PYTHONPATH": path,
    }
    code = "import numpy, test_verify; test_verify.outputs(numpy.ones((9, 5), numpy.float32))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=250, env=environment, check=True
    )
    assert "numbers are wrong, so the program runs in NumPy" in done.stderr


class Strided(tg.Module):
    def __init__(self) -> None:
        self.scale = self.param((5, 5), init=tg.init.randn(1.0))
        self.kernel = self.param((4, 1, 3, 3), init=tg.init.randn(0.5))
        self.table = nn.Embedding(7, 5)


def strided(m: Strided, x: tg.Tensor, k: tg.Tensor) -> tg.Tensor:
    """Strides with their gradients, indices, norms, quotients and ties."""
    scaled = x * m.scale
    images = tg.relu(tg.conv2d(scaled, m.kernel, stride=2, padding=1)).reshape(5, -1)
    rows = tg.softmax(tg.layer_norm(tg.concat([images, scaled[:, 0, ::2].reshape(5, -1), m.table(k)], axis=1)))
    return tg.mean(tg.square(rows + tg.min(rows, axis=1, keepdims=True)))


@pytest.mark.parametrize("name", MORE)
def test_faults_that_the_check_was_not_made_for(name: str, compiler: Callable[[str, str], Path]) -> None:
    old, new, precision = MORE[name]
    compiler(old, new)
    rng = np.random.default_rng(0)
    batch = {"x": rng.standard_normal((5, 1, 5, 5), np.float32), "k": rng.integers(0, 7, 5, np.int32)}
    with tg.compile(
        model=Strided(), loss=strided, inputs={"x": (5, 1, 5, 5), "k": tg.i32[5]}, optimizer=optim.sgd(1e-2),
        seed=0, device="cpu", precision=precision,
    ) as train, pytest.warns(RuntimeWarning, match="numbers are wrong"):  # fmt: skip
        _ = train.step(batch).loss


def test_padding_that_is_not_written_is_found(compiler: Callable[[str, str], Path]) -> None:
    """Convolutions read padded images in scratch, which holds 0 before the first kernel and anything later."""
    compiler(r"= 0\.0f;\s+p\d+\[[^;]*\] = s0;", "= 0.0f;")
    x = np.ones((4, 16, 14, 14), np.float32)

    def convolved(m: Any, x: tg.Tensor) -> Any:
        return m(x)

    with tg.compile_forward(
        model=nn.Conv2d(16, 32, 3, padding=1), forward=convolved, inputs={"x": x.shape}, seed=0, device="cpu"
    ) as f, pytest.warns(RuntimeWarning, match="numbers are wrong"):  # fmt: skip
        _ = f.run(x=x).output


def test_a_product_that_writes_a_row_too_many_is_found(compiler: Callable[[str, str], Path]) -> None:
    """All its results are right. What it writes over belongs to another value. The last 3 columns fill no vector."""
    compiler(r"i < h && !all", "i <= h && !all")
    x = np.ones((37, 40), np.float32)
    with tg.compile_forward(
        model=nn.Linear(40, 35), forward=lambda m, x: m(x), inputs={"x": x.shape}, seed=0, device="cpu"
    ) as f, pytest.warns(RuntimeWarning, match="numbers are wrong.* writes beside its results"):  # fmt: skip
        _ = f.run(x=x).output


def test_random_numbers_of_half_the_range_are_found(compiler: Callable[[str, str], Path]) -> None:
    """The limits of the cast, 2^31, and 24 random bits are no reason to allow more."""
    compiler(r"5\.96046448e-08f", "2.98023224e-08f")

    def drawn(m: Net) -> tg.Tensor:
        return m.w * tg.cast(tg.floor(tg.uniform((6, 5)) * 6.0), tg.i32).astype(tg.f32)

    with (
        tg.compile_forward(model=Net(), forward=drawn, inputs={}, seed=0, device="cpu") as f,
        pytest.warns(RuntimeWarning, match="numbers are wrong"),
    ):
        _ = f.run().output


def test_choices_among_few_values_are_seen_from_both_sides(compiler: Callable[[str, str], Path]) -> None:
    """The first numbers all fall on one side, so what is wrong with the other does not show in them."""

    def of(m: Net, x: tg.Tensor, row: tg.Tensor, z: tg.Tensor, ct: tg.Tensor) -> Any:
        y, pull = tg.vjp(lambda x, row, z: tg.maximum(row - x, z), x, row, z)
        return (y, *pull(ct))

    compiler(r"(ta0 = .*), 0\.0f, (\(_Bool\)\(less_f32)", r"\1, 1.0f, \2")
    shapes = {"x": (4, 3), "row": (3,), "z": (), "ct": (4, 3)}
    with (
        tg.compile_forward(model=Net(), forward=of, inputs=shapes, device="cpu") as f,
        pytest.warns(RuntimeWarning, match="numbers are wrong"),
    ):
        _ = f.run({name: np.ones(shape, np.float32) for name, shape in shapes.items()}).output


ODD = {
    "a sum one element short, seen where that one is infinite": (r"(j\d+) < 3;", r"\1 < 2;"),
    "the number beside one that is infinite": (r"(v\d+ = p1\[)0\]", r"\g<1>1]"),
    "finite for infinite": (r"bits_as_float \(inf_bits\)", "1.0f"),
    "a difference of logarithms for a sum": (r"\+ log_ \(", "- log_ ("),
    "the last of all rows": (r"for \(long n0 = 0; n0 < 70; n0 \+= 1\)", "for (long n0 = 0; n0 < 69; n0 += 1)"),
}


def test_choices_between_equal_numbers_are_seen(compiler: Callable[[str, str], Path]) -> None:
    """No pattern has the constant, so only elements that are made equal to it tell below from at most."""
    compiler(r"less_f32 ?\((\w+), (1\.37\w*)\)", r"(! less_f32 (\2, \1))")
    f = tg.compile_forward(
        model=Net(), forward=lambda m, x: tg.where(x < 1.37, 2.0 * x, x), inputs={"x": (40, 50)}, device="cpu", seed=0
    )
    with f, pytest.warns(RuntimeWarning, match="numbers are wrong"):
        _ = f.run(x=np.zeros((40, 50), np.float32)).output


DISCARDED: dict[str, tuple[Callable[[tg.Tensor], tg.Tensor], str, str]] = {
    "the factors of a norm of tiny or huge numbers": (
        lambda x: x / (1.0 + tg.norm(x, axis=0)), r"\(1\.0f \+ \(sqrt", "(1.25f + (sqrt"
    ),
    "what a mask replaces": (
        lambda x: tg.exp(tg.where(x > 0.5, x, -1e9)), r"s0 = exp_ ", "s0 = 1.05f * exp_ "
    ),
    "an exact constant, whose reciprocal scales the defect": (
        lambda x: x - tg.sin(x) / 1500.0, r"1500\.0f", "3000.0f"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DISCARDED)
def test_large_numbers_that_change_no_result_hide_no_defect(name: str, compiler: Callable[[str, str], Path]) -> None:
    """Their rounding errors are larger than all results."""
    of, old, new = DISCARDED[name]
    compiler(old, new)
    f = tg.compile_forward(model=Net(), forward=lambda m, x: of(x), inputs={"x": (8, 9)}, device="cpu", seed=0)
    with f, pytest.warns(RuntimeWarning, match="numbers are wrong"):
        _ = f.run(x=np.ones((8, 9), np.float32)).output


def test_of_few_points_the_first_and_the_last_are_compared() -> None:
    """A sum over rows of 2049 has three points: its last element can be another row's, which one point may not show."""
    found = chosen(Kernel((Axis("i", 10),), (Axis("j", 2049),), (), (), "sum"), SEED).tolist()
    assert (found[0], found[-1], len(found)) == (0, 9, 3)


def test_rows_in_the_middle_are_compared_even_if_they_are_long(compiler: Callable[[str, str], Path]) -> None:
    compiler(r"2\.5f", "3.5f")
    inputs = dict.fromkeys("abc", (3, 2900))
    f = tg.compile_forward(
        model=Net(), forward=lambda m, a, b, c: tg.sum(tg.concat([a, 2.5 * b, c], 0), -1), inputs=inputs, device="cpu"
    )
    with f, pytest.warns(RuntimeWarning, match="numbers are wrong"):
        _ = f.run({name: np.ones(shape, np.float32) for name, shape in inputs.items()}).output


@pytest.mark.parametrize("label", [0, 7, 9])
def test_comparisons_of_labels_with_each_class_are_seen(label: int, compiler: Callable[[str, str], Path]) -> None:
    """Integers that index nothing are small, so labels must be made equal to the last classes."""
    compiler(r"\(_Bool\)\(\(\(int\)\((\w+)\) == ", rf"(_Bool)((int)(\1) != {label} && ((int)(\1) == ")
    shapes: Any = {"x": (64, 10), "y": tg.i32[64]}
    f = tg.compile_forward(
        model=Net(), forward=lambda m, x, y: tg.cross_entropy(x, y), inputs=shapes, device="cpu", seed=0
    )
    with f, pytest.warns(RuntimeWarning, match="numbers are wrong"):
        _ = f.run(x=np.ones((64, 10), np.float32), y=np.zeros(64, np.int32)).output


@pytest.mark.parametrize("name", ODD)
def test_single_numbers_that_decide_about_steps_are_seen(name: str, compiler: Callable[[str, str], Path]) -> None:
    """Whether a sum is finite, a count is 0, the last column is as the others, or negative numbers make all NaN."""

    def of(m: Net, x: tg.Tensor, z: tg.Tensor, k: tg.Tensor, y: tg.Tensor) -> tuple[tg.Tensor, ...]:
        bad = tg.logical_or(tg.logical_not(tg.isfinite(tg.sum(x) + z)), k > 0)
        return tg.where(bad, float("inf"), 2.0), tg.relu(y @ y.T), tg.sum(tg.log(y))

    compiler(*ODD[name])
    given = {"x": np.ones(3, np.float32), "z": np.float32(1), "k": np.int32(0), "y": np.ones((70, 20), np.float32)}
    shapes: Any = {"x": (3,), "z": (), "k": tg.i32[()], "y": (70, 20)}
    with (
        tg.compile_forward(model=Net(), forward=of, inputs=shapes, device="cpu") as f,
        pytest.warns(RuntimeWarning, match="numbers are wrong"),
    ):
        _ = f.run(given).output


@pytest.mark.parametrize("lie", [(), ("5.0f", "4.9f")])
def test_a_largest_element_beside_nan_is_no_defect(
    lie: tuple[str, str] | tuple[()], compiler: Callable[[str, str], Path]
) -> None:
    """Roots of negative numbers: in most rows the largest element may be NaN or not, and the other rows are checked."""
    compiler(*(lie or ("no such text", "")))

    def forward(m: Net, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
        return tg.cross_entropy(5.0 * tg.sqrt(x + 1e-8), y)

    shapes: Any = {"x": (32, 10), "y": tg.i32[32]}
    given = {"x": np.ones((32, 10), np.float32), "y": np.zeros(32, np.int32)}
    f = tg.compile_forward(model=Net(), forward=forward, inputs=shapes, device="cpu", seed=0)
    with f, pytest.warns(RuntimeWarning, match="numbers are wrong") if lie else warnings.catch_warnings():
        if not lie:
            warnings.simplefilter("error")
        _ = f.run(given).output


@pytest.mark.parametrize("fault", [FAULTS["a guard that always holds"], OPERATIONS["a minimum that drops NaN"]])
def test_a_verdict_is_kept(
    fault: tuple[str, str], compiler: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next process, and the next model with the same kernels, neither checks nor warns again."""
    compiler(*fault)
    x = np.ones((9, 5), np.float32)
    with pytest.warns(RuntimeWarning, match="numbers are wrong"):
        want = outputs(x)
    monkeypatch.setattr("tracegrad.runtime.cpu_verify._prepare", lambda *a, **k: pytest.fail("checked again"))
    monkeypatch.setattr("tracegrad.runtime.cpu_verify._difference", lambda *a: pytest.fail("checked again"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = outputs(x)
    np.testing.assert_array_equal(got[0], want[0])


def test_a_verdict_ends_with_the_code_that_kernels_call(
    compiler: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later version of it is checked, whatever the verdict was."""
    compiler("no such text", "")
    seen: list[str] = []
    prepare = cpu_verify._prepare
    monkeypatch.setattr(cpu_verify, "_prepare", lambda *a, **k: (seen.append(text), prepare(*a, **k)))
    for text in ("ENGINE", "GATHERED", "PRELUDE"):
        monkeypatch.setattr(cpu_verify, text, getattr(cpu_verify, text) + "/* another version */\n")
        for _ in range(2):
            outputs(np.ones((9, 5), np.float32))
    counts = [seen.count(text) for text in ("ENGINE", "GATHERED", "PRELUDE")]
    assert counts[0] > 0 and counts == [counts[0]] * 3


def test_tolerances_of_most_elements_decide_without_more_of_numpy() -> None:
    """np.median imports numpy.ma, which takes as long as the check of four kernels."""
    code = (
        "import sys, numpy as np\n"
        "from tracegrad.runtime.inexact import Decided\n"
        "for n in range(5): print(Decided(np.ones(4, bool), 1.0 * (np.arange(4) < n)).little(np.ones(4)))\n"
        "print('numpy.ma' in sys.modules)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False", "False", "True", "True", "True", "False"]


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("name", BUDGET)
def test_right_kernels_of_models_pass(name: str, c_session: CpuSession, tmp_path: Path,
                                      monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setattr("tracegrad.runtime.cpu_verify.Verdicts", lambda state: Forgetful())
    program = BUDGET[name][0].build().program
    handle = c_session.load(program)
    c_session._ready(handle)  # pyright: ignore[reportPrivateUsage]
    c_session.unload(handle)
    c_session._persistent.clear()  # pyright: ignore[reportPrivateUsage]


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("case", ALL_CASES, ids=lambda c: c.name)
def test_right_kernels_of_every_op_pass(case: Case, c_session: CpuSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracegrad.runtime.cpu_verify.Verdicts", lambda state: Forgetful())
    handle = c_session.load(program_of(case))
    c_session._ready(handle)  # pyright: ignore[reportPrivateUsage]
    c_session.unload(handle)


LIES = {
    "the largest for the smallest": ("= min_f32(", "= max("),
    "a guard that always holds": ("& ((m0 + (-1)) < 9)", ""),
    "products one k short": ("j < 5;", "j < 4;"),
    "halves off by two digits": ("= f16(", "= f16(1.002 * "),
}


def translate(monkeypatch: pytest.MonkeyPatch, *changes: tuple[str, str]) -> None:
    """Let the driver compile another text of kernels than it is given."""

    told = Calls.module

    def module(self: Any, label: str, text: str, **more: Any) -> Any:
        for old, new in () if label == "pick" else changes:
            text = text.replace(old, new)
        return told(self, label, text, **more)

    monkeypatch.setattr(Calls, "module", module)


@pytest.mark.parametrize("name", LIES)
def test_an_adapter_that_computes_wrongly_is_refused(
    name: str, webgpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    translate(monkeypatch, LIES[name])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(tg.CompileError, match=r"(?s)kernel '.*' computes wrongly.*test_verify.py:\d+"):
        tg.compile(
            model=Net(), loss=loss, inputs={"x": (9, 5)}, optimizer=optim.sgd(1e-2), device="webgpu",
            precision="f16" if "halves" in name else "f32",
        )  # fmt: skip


# One more than the quotient's last digit, which WGSL allows: 2.5
INEXACT = [("(a * s) / (b * s)", "1.0000001 * ((a * s) / (b * s))"), ("(1.0 / sqrt(", "(1.0000001 / sqrt(")]


def of_equal_rows(m: Net, x: tg.Tensor, ct: tg.Tensor) -> tuple[tg.Tensor, ...]:
    """Standard deviations of rows of which some are equal numbers, padding or quotients, with their gradients."""

    def f(x: tg.Tensor) -> tg.Tensor:
        ones = tg.tril(x, 2) / x
        return tg.std(tg.concat([ones, tg.pad(x, [(0, 3), (0, 0)], 3.4)], axis=0), axis=1)

    y, pull = tg.vjp(f, x)
    return (y, *pull(ct))


@pytest.mark.parametrize("lie", [(), (" sqrt(", " 1.001 * sqrt("), ("* 0.5f", "* 0.501f"), ("== 0f", ">= 0f")])
def test_what_rounding_alone_decides_is_no_defect(
    lie: tuple[str, str] | tuple[()], webgpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a device whose mean of equal numbers is off, their deviations are not 0. The rows beside them are checked."""
    translate(monkeypatch, *INEXACT, *([lie] if lie else []))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    f = tg.compile_forward(model=Net(), forward=of_equal_rows, inputs={"x": (6, 7), "ct": (15,)}, device="webgpu")
    given = {"x": np.random.default_rng(0).standard_normal((6, 7)).astype(np.float32), "ct": np.ones(15, np.float32)}
    with f, pytest.raises(tg.CompileError, match="computes wrongly") if lie else nullcontext():
        _ = f.run(given).output


@pytest.mark.parametrize("lie", [(), ("= atan2_(", "= 1.001 * atan2_(")])
def test_the_sign_of_a_zero_is_no_defect(
    lie: tuple[str, str] | tuple[()], webgpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver may ignore it: an H100 takes -0 for 0 in x * 0, and atan2(-0, -0) is -pi."""
    translate(monkeypatch, ("select(0f, (-0f)", "select((-0f), (-0f)"), *([lie] if lie else []))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def forward(m: Net, x: tg.Tensor) -> tg.Tensor:
        y = tg.concat([x * 0.0, x], -1)
        return tg.atan2(y, y)

    f = tg.compile_forward(model=Net(), forward=forward, inputs={"x": (6, 7)}, device="webgpu")
    with f, pytest.raises(tg.CompileError, match="computes wrongly") if lie else nullcontext():
        _ = f.run(x=np.ones((6, 7), np.float32)).output


@pytest.mark.parametrize("lie", [(), ("1.5f", "1.501f")])
def test_denormals_that_a_device_flushes_are_no_defect(
    lie: tuple[str, str] | tuple[()], webgpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An H200 takes squares of 2e-23 for 0, and then chose the gradient of a norm that is 0."""
    translate(monkeypatch, ("== 0f", "< 1.1754944e-38f"), *([lie] if lie else []))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def forward(m: Net, x: tg.Tensor) -> tuple[tg.Tensor, ...]:
        return tg.where(tg.square(x * 1e-22) * 10.0 == 0.0, 0.0, x), x * 1.5

    f = tg.compile_forward(model=Net(), forward=forward, inputs={"x": (6, 7)}, device="webgpu")
    with f, pytest.raises(tg.CompileError, match="computes wrongly") if lie else nullcontext():
        _ = f.run(x=np.ones((6, 7), np.float32)).output


@pytest.mark.parametrize("lie", [(), ("equal_f32(1f, ", "equal_f32(1.0001f, ")])
def test_elements_compared_with_two_constants_are_no_defect(
    lie: tuple[str, str] | tuple[()], webgpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check makes some elements equal to a constant. One element can be compared with both bounds of a clip."""
    translate(monkeypatch, *([lie] if lie else []))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def forward(m: Net, x: tg.Tensor) -> tuple[tg.Tensor, ...]:
        def clipped(x: tg.Tensor) -> tuple[tg.Tensor, tg.Tensor]:
            y = tg.hardtanh(tg.repeat(x, 2, axis=2))
            return tg.sum(y), y

        g, y = tg.grad(clipped, has_aux=True)(x)
        return g, y

    f = tg.compile_forward(model=Net(), forward=forward, inputs={"x": (3, 13, 11, 15)}, device="webgpu")
    with f, pytest.raises(tg.CompileError, match="computes wrongly") if lie else nullcontext():
        _ = f.run(x=np.ones((3, 13, 11, 15), np.float32)).output


@pytest.mark.parametrize("lie", [("1.5f", "1.25f"), ("1.75f", "1.25f"), ("= log_(", "= 1.01f * log_(")])
def test_a_gpu_is_checked_on_both_sides_of_a_choice(
    lie: tuple[str, str], webgpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the first numbers one of the two products is not the result, and the sum is NaN."""
    translate(monkeypatch, lie)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def forward(m: Net, x: tg.Tensor, y: tg.Tensor) -> tuple[tg.Tensor, ...]:
        return tg.maximum(x, y * 1.5), tg.minimum(x, y * 1.75), tg.sum(tg.log(m.w))

    f = tg.compile_forward(model=Net(), forward=forward, inputs={"x": (), "y": ()}, device="webgpu")
    with f, pytest.raises(tg.CompileError, match="computes wrongly"):
        _ = f.run(x=np.float32(1), y=np.float32(2)).output


def test_a_forward_is_checked_when_it_first_runs(webgpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("tracegrad.runtime.verify.faults", lambda trials, *_: {key: "not 2" for key, _ in trials})
    f = tg.compile_forward(model=Net(), forward=forward, inputs={"x": (9, 5)}, device="webgpu")
    with f, pytest.raises(tg.CompileError, match=r"(?s)computes wrongly.*test_verify.py:\d+"):
        _ = f.run(x=np.ones((9, 5), np.float32)).output


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # that the adapter is software
def test_right_kernels_pass_on_a_gpu(webgpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with tg.compile(
        model=Net(), loss=loss, inputs={"x": (9, 5)}, optimizer=optim.adamw(1e-2), seed=0, device="webgpu"
    ) as train:
        assert np.isfinite(train.step(x=np.ones((9, 5), np.float32)).loss)
    kept = list(tmp_path.glob("tracegrad/verdicts-*"))
    assert len(kept) == 1 and all(line.endswith(" right") for line in kept[0].read_text().splitlines())


class Forgetful:
    """No verdict is known before."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}

    def known(self, key: str) -> str | None:
        return self.found.get(key)

    def add(self, found: dict[str, str]) -> None:
        self.found |= {key: "wrong" if how else "right" for key, how in found.items()}


def test_verdicts_that_others_append_or_replace_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process reads what was appended since it last looked, and lines that are not complete later."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    one, two = "1" * 40, "2" * 40
    Verdicts(("a",)).add({one: ""})
    (file,) = tmp_path.glob("tracegrad/verdicts-*")
    known = lambda: [Verdicts(("a",)).known(key) for key in (one, two)]
    assert known() == ["right", None]
    for text, found in ((f"{two} wro", None), ("ng\n", "wrong")):
        file.write_text(file.read_text() + text)
        assert known() == ["right", found]
    file.write_text(f"{one} wrong\nno verdict\n")
    assert known() == ["wrong", None]
    file.unlink()
    assert known() == [None, None]
