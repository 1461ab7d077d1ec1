"""Languages and runtimes are registered in one place each, and a device reads no language but its own."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import entrypoints, nn, optim
from tracegrad.prims import functions
from tracegrad.program import Program
from tracegrad.render import languages
from tracegrad.render.c_steps import CSource, FunctionStep, ProductStep
from tracegrad.render.c_text import as_c, helper
from tracegrad.render.emit import Block, Loop, spelled, when
from tracegrad.runtime.base import RUNTIMES
from tracegrad.runtime.cpu import CpuSession

X = np.linspace(-1, 1, 256 * 64, dtype=np.float32).reshape(256, 64)


def training(device: str) -> tg.CompiledTraining:
    """A product, and folds that a GPU shares out over the threads of a workgroup."""

    def loss(m: Any, x: tg.Tensor) -> tg.Tensor:
        return tg.mean(tg.softmax(tg.tanh(m(x))) ** 2)

    model = nn.Linear(64, 64)
    return tg.compile(model=model, loss=loss, inputs={"x": (256, 64)}, optimizer=optim.sgd(), seed=0, device=device)


def test_a_device_spells_its_own_language_alone(device_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spelled: set[str] = set()

    def noted(language: str) -> Any:
        own = languages.LANGUAGES[language]

        def spell(launch: Any) -> Any:
            spelled.add(language)
            return own.spell(launch)

        return SimpleNamespace(spell=spell, gpu=own.gpu)

    monkeypatch.setattr("tracegrad.compiler.assemble.LANGUAGES", {k: noted(k) for k in languages.LANGUAGES})
    with training(device_name) as train:
        assert np.isfinite(train.step(x=X).loss)
        software, in_c = train.device.software, "C, compiled" in train.device.description
    if device_name == "webgpu":
        assert spelled <= {"wgsl", "serial_wgsl"} and ("serial_wgsl" in spelled) == software
    elif device_name == "jax":
        assert not spelled
    else:
        assert spelled == ({"c"} if in_c else {"numpy"})


def test_a_language_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(render=lambda launch: [x.kernel.label for x in launch.kernels])
    monkeypatch.setitem(sys.modules, "tracegrad.render.labels", module)
    labels = languages.Language("labels", "render")
    monkeypatch.setattr("tracegrad.compiler.assemble.LANGUAGES", {"labels": labels})
    with training("cpu") as train:
        program = train.program
    assert [" | ".join(k.texts["labels"]) for k in program.kernels] == [k.label for k in program.kernels]


def test_a_program_of_a_file_has_no_other_language() -> None:
    with training("cpu") as train:
        read = Program.from_json(train.program.to_json())
        assert read == train.program
    assert read.kernels[0].wgsl == train.program.kernels[0].wgsl
    for language in ("numpy", "c"):
        assert read.kernels[0].texts.lacks(language) and not train.program.kernels[0].texts.lacks(language)
        with pytest.raises(KeyError):
            read.kernels[0].texts[language]


def test_a_launch_in_c_is_data() -> None:
    with training("cpu") as train:
        sources: list[CSource] = [k.texts["c"] for k in train.program.kernels]
    called = {s.name for x in sources for s in x.steps if isinstance(s, FunctionStep)}
    texts = "\n".join(f for x in sources for f in x.functions)
    assert called and all(f"void {name}(" in texts for name in called)
    assert any(isinstance(s, ProductStep) for x in sources for s in x.steps)


def test_auto_takes_the_first_runtime_that_finds_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def begin(device: str) -> Any:
        asked.append(device)
        return lambda: None

    monkeypatch.setitem(sys.modules, "tracegrad.runtime.none", SimpleNamespace(begin=begin, devices=list))
    monkeypatch.setattr(entrypoints, "RUNTIMES", ("none", *RUNTIMES[1:]))
    monkeypatch.delenv("TRACEGRAD_DEVICE", raising=False)
    session = entrypoints.session_factory("auto")()()
    assert isinstance(session, CpuSession) and asked == ["auto"]
    session.close()


@pytest.mark.parametrize(
    ("notation", "c"),
    [
        ("({0} + 1.0)", "({0} + 1.0f)"),
        ("select({1}, 2f, bitcast<u32>({0}) > 0x7fu)", "select ({1}, 2.0f, bits_as_unsigned ({0}) > 0x7fu)"),
        ("f32({0}) * 1e-8 - 1e+3f", "(float)+ ({0}) * 1e-8f - 1e+3f"),
        ("let f32_ = i32(x);  // cut", "const __auto_type f32_ = (int) (x);"),
        ("var p: f32;", "float p;"),
    ],
)
def test_the_notation_of_rows_in_c(notation: str, c: str) -> None:
    assert as_c(notation + "\n") == c


def test_a_helper_is_defined_once_with_what_it_needs_before_it() -> None:
    text = helper(functions.MAX_HELPER)
    assert text.startswith("#ifndef have_max_f32\n") and text.endswith("\n#endif")
    assert "HELPER int max_i32 (int a, int b) { return max (a, b); }" in text


def test_loops_are_spelled_in_each_language() -> None:
    """Extents are integers or expressions; what stands in braces is one level deeper."""
    inner = Loop("j", 4, [when("j < n", ["x = j;"]), Block("", ["y = j;"])], first="lane", step=2)
    lines = ["for ({0} i = 0; i < rows; i += 1) {{", "  for ({0} j = lane; j < 4; j += 2) {{", "    if (j < n) {{",
             "      x = j;", "    }}", "    {{", "      y = j;", "    }}", "  }}", "}}"]  # fmt: skip
    for counter in ("var", "long"):
        assert spelled([Loop("i", "rows", [inner])], counter) == [line.format(counter) for line in lines]
