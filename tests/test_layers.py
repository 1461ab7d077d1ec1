"""The shape of the package: modules import only downwards, and importing it costs nothing it does not need."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "src" / "tracegrad"

# CONTRIBUTING.md describes the layers. A package stands for all its modules; the longest name that fits counts.
LAYERS = {
    "errors": 0, "dtypes": 0, "sites": 0, "refusals": 0, "wrong_calls": 0,
    "files.jsontext": 0, "files.atomic": 0, "tuning": 0, "patterns": 0,
    "methods": 1, "ir": 1, "foreign": 1,
    "prims": 2,
    "ops": 3, "hypers": 3,
    "nn": 4, "init": 4, "initializer": 4, "optim": 4, "lr": 4, "schedule": 4, "transforms": 4, "metrics": 4,
    "alignment": 4, "elimination": 4, "linalg": 4,
    "kernels": 5,
    "passes": 6, "ir.evaluate": 6,
    "program": 7, "loops": 7, "kernel_source": 7, "render": 7,  # a Program is plain data: renderers fill it
    "compiler": 8,
    "arrays": 9, "bare": 9, "safetensors": 9,
    "runtime": 10,
    "introspection": 11,
    "engine": 12,
    "files": 13, "pytorch": 13,
    "training": 14,
    "imperative": 15, "functional": 15,
    "": 16, "entrypoints": 16, "extend": 16, "sweeps": 16, "sweep_plan": 16,
    "commands": 17, "demo": 17, "testing": 17, "__main__": 17,
}  # fmt: skip

NUMPY_FROM = 9  # below it the compiler lives, and it runs where there is no NumPy (bare Pyodide)
LATE = {
    "wgpu",
    "js",
    "pyodide",
    "jax",
    "torch",
    "cffi",
    "matplotlib",
    "pandas",
}  # what functions may import: optional, or costly to load
# What functions may import: most processes that import tracegrad never start a child or a pool, and write no file
SELDOM = {"subprocess", "tempfile", "concurrent.futures", "json", "tomllib"}
OPENED = {  # by a function, since calling compilers and drivers costs as much to load as a tenth of tracegrad
    ("runtime.webgpu", "tracegrad.runtime.wgpu_session"),
    ("runtime.jax", "tracegrad.runtime.jax_session"),
    ("runtime.jax", "tracegrad.runtime.jax_mesh"),
    ("entrypoints", "tracegrad.runtime.jax"),
    ("files.export", "tracegrad.runtime.recorded"),
    ("runtime.browser", "tracegrad.runtime.recorded"),
    ("runtime.browser", "tracegrad.runtime.verify"),
    ("runtime.draw", "tracegrad.runtime.c_compiler"),
    ("entrypoints", "tracegrad.compiler.several"),
    ("training.between", "tracegrad.compiler.several"),
    ("compiler.pipeline", "tracegrad.kernels.show"),  # for TRACEGRAD_DEBUG only
    ("training.compiled", "tracegrad.training.fit"),  # the loop and its hooks, not loaded by who calls step
    ("training.compiled", "tracegrad.files.export"),  # likewise, what writes pages, and what explains programs
    ("training.compiled", "tracegrad.introspection.explain"),
    ("training.compiled", "tracegrad.introspection.why"),
    ("training.compiled", "tracegrad.introspection.profile"),
    ("engine.forward", "tracegrad.introspection.explain"),
    ("engine.forward", "tracegrad.introspection.profile"),
    ("engine.forward", "tracegrad.introspection.why"),
    ("engine.reference", "tracegrad.runtime.inexact"),
    ("engine.forward", "tracegrad.safetensors"),
    ("training.training", "tracegrad.files.checkpoints"),
    ("training.saving", "tracegrad.files.checkpoints"),
    ("training.saving", "tracegrad.safetensors"),
    ("runtime.tab", "tracegrad.runtime.javascript"),  # reads the files of tracegrad/js
    ("engine.programs", "tracegrad.engine.room_programs"),  # what most processes do without, as above
    ("training.saving", "tracegrad.files.sharded"),  # needs JAX and Orbax
    ("training.data", "tracegrad.files.sharded"),
    ("files.sharded", "tracegrad.runtime.jax_shards"),
    ("files.sharded", "tracegrad.runtime.jax_memory"),
}


def modules() -> dict[str, Path]:
    """Dotted name below `tracegrad` -> file; "" is the package itself."""
    found: dict[str, Path] = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def layer(module: str) -> int | None:
    """The layer of a module, by the longest prefix in LAYERS."""
    parts = module.split(".") if module else []
    for n in range(len(parts), 0, -1):
        if ".".join(parts[:n]) in LAYERS:
            return LAYERS[".".join(parts[:n])]
    return LAYERS[""] if not module else None


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def imports(node: ast.AST, inside: bool = False) -> Iterator[tuple[str, int, bool]]:
    """Every (absolute module name, line, inside a function) imported for use at run time."""
    for child in ast.iter_child_nodes(node):
        if is_type_checking(child):
            continue
        if isinstance(child, ast.Import):
            yield from ((alias.name, child.lineno, inside) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            base = child.module or ""
            assert child.level == 0, f"line {child.lineno}: write imports in full"
            for alias in child.names:
                below = f"{base}.{alias.name}"
                is_module = below.removeprefix("tracegrad.") in MODULES and base.startswith("tracegrad")
                yield (below if is_module else base), child.lineno, inside
        else:
            function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from imports(child, inside or function)


def imports_of(module: str) -> list[tuple[str, int, bool]]:
    return list(imports(ast.parse(MODULES[module].read_text(encoding="utf-8"))))


def own(name: str) -> str | None:
    """The name below `tracegrad`, None for a module of somebody else."""
    if name == "tracegrad":
        return ""
    return name.removeprefix("tracegrad.") if name.startswith("tracegrad.") else None


def test_every_module_has_a_layer():
    unmapped = [m for m in MODULES if layer(m) is None]
    assert not unmapped, f"give these a layer in LAYERS: {', '.join(unmapped)}"


def test_every_layer_entry_names_a_module():
    missing = [m for m in LAYERS if m and m not in MODULES]
    assert not missing, f"not in the package any more: {', '.join(missing)}"


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m or "tracegrad")
def test_imports_go_downwards_only(module: str):
    here = layer(module)
    assert here is not None
    for name, line, _ in imports_of(module):
        target = own(name)
        if target is not None:
            there = layer(target)
            assert there is not None, f"{MODULES[module]}:{line}: {name} has no layer"
            assert there <= here, f"{MODULES[module]}:{line}: layer {here} imports {name} of layer {there}"


def test_modules_do_not_import_each_other_in_a_circle():
    graph = {m: {t for name, *_ in imports_of(m) if (t := own(name)) is not None and t in MODULES} for m in MODULES}
    state: dict[str, int] = {}

    def visit(module: str, path: list[str]) -> None:
        if state.get(module) == 1:
            pytest.fail("circle: " + " -> ".join([*path[path.index(module) :], module]))
        if module in state:
            return
        state[module] = 1
        for target in graph[module]:
            visit(target, [*path, module])
        state[module] = 2

    for module in MODULES:
        visit(module, [])


@pytest.mark.parametrize("module", [m for m in MODULES if (layer(m) or 0) < NUMPY_FROM])
def test_the_compiler_does_not_import_numpy(module: str):
    for name, line, _ in imports_of(module):
        assert name.split(".")[0] not in ("numpy", "wgpu", "jax", "torch"), f"{MODULES[module]}:{line}: {name}"


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m or "tracegrad")
def test_functions_import_only_what_is_optional_or_costly(module: str):
    for name, line, inside in imports_of(module):
        if name.split(".")[0] in LATE:
            assert inside, f"{MODULES[module]}:{line}: import {name} inside the function that needs it"
        elif (module, name) not in OPENED and name not in SELDOM:
            assert not inside, f"{MODULES[module]}:{line}: import {name} at the top of the file"


def python(code: str, environment: dict[str, str] | None = None) -> str:
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_tracegrad_loads_no_other_framework():
    heavy = ("wgpu", "jax", "torch", "matplotlib", "scipy", "cffi")
    loaded = python(f"import sys, tracegrad; print([m for m in {heavy} if m in sys.modules])")
    assert loaded.strip() == "[]"


def test_everything_imports_and_compiles_without_numpy():
    """As in a browser's Python: a None in sys.modules makes `import numpy` fail."""
    out = python(
        "import sys\n"
        "sys.modules['numpy'] = None\n"
        "import tracegrad as tg\n"
        "from tracegrad import nn, optim\n"
        "from tracegrad.compiler.build import StepSource\n"
        "loss = lambda m, x, y: tg.mean(tg.square(m(x) - y))\n"
        "arguments = (nn.Linear(3, 2), loss, {'x': (4, 3), 'y': (4, 2)}, optim.adam(lr=1e-3))\n"
        "print(len(StepSource(*arguments).traced().compiled().program.to_json()))\n"
        "try:\n"
        "    tg.compile(model=arguments[0], loss=loss, inputs=arguments[2], optimizer=arguments[3], device='cpu')\n"
        "except tg.DeviceError as e:\n"
        "    print('needs NumPy' in str(e))\n"
        "try:\n"
        "    tg.parameter([1.0])\n"
        "except tg.DTypeError as e:\n"
        "    print('need NumPy' in str(e))\n"
    )
    size, named, refused = out.split()
    assert int(size) > 1000 and named == refused == "True"


# Python's and C's calls of `import tracegrad`, and of loading what compiles and runs programs besides. Then how many of
# them stay free, so that a new op, optimizer or layer need not make room first. By CPython 3.11 the second is 0.15 s
# beyond NumPy on a slow two-core machine (bench/cpu.py --cold).
LOADED = {"tracegrad": (82_000, 27_334), "tracegrad.entrypoints": (125_000, 31_250)}


@pytest.mark.parametrize("module", LOADED)
def test_importing_tracegrad_costs_little(module: str, tmp_path: Path):
    """Work is counted and not timed: time is the machine's too. With bytecode, as any installed package has it."""
    code = (
        "import sys, numpy\n"
        "calls = [0]\n"
        "def count(frame, event, arg): calls[0] += event in ('call', 'c_call')\n"
        "sys.setprofile(count)\n"
        f"import {module}\n"
        "sys.setprofile(None)\n"
        "print(calls[0])\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(tmp_path)
    python(code, environment)  # writes the bytecode
    calls, (most, room) = int(python(code, environment)), LOADED[module]
    assert calls < most, f"importing takes {calls} calls, {calls - most} more than {most}; write code when it is used"
    assert most - calls > room, (
        f"importing takes {calls} calls and leaves {most - calls} of {most} free, {room - most + calls} less than "
        f"{room}; make room for others"
    )


def test_what_compiles_is_loaded_when_it_is_used_first():
    """And every name that is loaded then is there, of the module that has it."""
    code = (
        "import sys, tracegrad as tg\n"
        "print(sorted(m for m in sys.modules if m.startswith(('tracegrad.compiler', 'tracegrad.runtime'))))\n"
        "print([n for n in dir(tg) if not hasattr(tg, n)])\n"
        "print(tg.compile is sys.modules['tracegrad.entrypoints'].compile, tg.safetensors.__name__)\n"
    )
    assert python(code).split("\n")[:3] == ["[]", "[]", "True tracegrad.safetensors"]
