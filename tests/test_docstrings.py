"""The docstrings of every public name: their examples run, and each part that a reader looks for is there.

An op states shapes, dtypes, gradient, errors and a source. A layer, optimizer, schedule, initialiser, metric and
transform states a source. Every function, class and method that is listed here has an example.
"""

from __future__ import annotations

import contextlib
import doctest
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import docnames
import tracegrad as tg
from pages import HOME
from tracegrad.ir.nodes import PRIMITIVES
from tracegrad.methods import METHODS, TensorMethods

sys.path.insert(0, str(HOME / "tools" / "site"))
import counterparts
import reference

OPS = {
    "losses", "activations", "elementwise", "reductions", "sorting", "shapes", "indexing", "linalg", "solvers",
    "attention", "norms", "images", "random",
}  # fmt: skip
SOURCED = OPS | {"modules", "optimizers", "schedules", "initialisers", "metrics", "transforms"}
PARTS = {
    "gradient": re.compile(r"[Gg]radient|[Dd]ifferentiable"),
    "errors": re.compile(r"[Rr]aises"),
    "dtypes": re.compile(r"f32|i32|u32|bool|dtype"),
    "shapes": re.compile(r"shape|rank|ax[ei]s|\["),
}
SOURCE = re.compile(
    r"\b(1[89]|20)\d\d\b|https?://|NumPy|numpy\.|PyTorch|torch(metrics)?\.|\bJAX\b|jax\.|[Oo]ptax|sklearn\.|scipy\.|"
    r"[Kk]eras|concurrent\.|et al\."
)
# Parts of this project alone have no source
OWN = {"optim.Host", "optim.PerParameter", "optim.Slot"}
# Types that users read and never make, and the rules that prims are made with: their tables are the examples
NO_EXAMPLE = {
    "optim.Slot", "extend.Primitive", "extend.alike",
    "extend.as_tensor", "extend.bind", "extend.linear", "extend.merged", "extend.multilinear", "extend.register",
    "extend.shifted", "extend.symmetric",
}  # fmt: skip
NEEDS = {"tg.to_torch": "torch"}  # examples that need a library which a test of platforms does not install
MEMBERS = {
    tg.CompiledTraining: (
        "attach close digest download_grads download_params explain export fit freeze load lr_metric params profile "
        "replace_model reset run_steps save set set_lr set_params set_states states step to_jax unfreeze "
        "upload_params why"
    ),
    tg.Sweep: "attach best close load params reset run_steps save set step",
    tg.CompiledForward: "close download_params explain graph_for load params profile run upload_params why",
    tg.Module: "param state",
    tg.GradTensor: "backward detach item numpy set_grad set_requires_grad tolist zero_grad",
    tg.Pending: "add_done_callback done result",
}  # fmt: skip
NUMBER = re.compile(r"(?<![\w.])-?\d+\.\d*(?:e[+-]?\d+)?(?!\w)")


def documented(value: Any) -> str:
    """Return the docstring; of a class its own, not that of the class it inherits from."""
    return inspect.cleandoc(vars(value)["__doc__"] or "" if inspect.isclass(value) else inspect.getdoc(value) or "")


NAMES = {name: (slug, documented(value)) for name, (slug, _, value) in reference.names().items() if callable(value)}
NAMES |= {
    f"{owner.__name__}.{name}": ("methods", inspect.getdoc(getattr(owner, name)) or "")
    for owner, listed in MEMBERS.items()
    for name in listed.split()
}


class Close(doctest.OutputChecker):
    """Floats may differ in the last digits: processors and versions of NumPy round otherwise."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        if super().check_output(want, got, optionflags):
            return True
        left, right = NUMBER.findall(want), NUMBER.findall(got)
        alike = len(left) == len(right) and all(
            float(a) == pytest.approx(float(b), rel=1e-4, abs=1e-6) for a, b in zip(left, right, strict=True)
        )
        plain = [re.sub(r"\s+", "", NUMBER.sub("#", text)) for text in (want, got)]
        return alike and plain[0] == plain[1]


@contextlib.contextmanager
def tables_kept() -> Iterator[None]:
    """Take out what an example registers: other tests look at all rows and methods."""
    rows, entries, methods = set(PRIMITIVES), set(METHODS), set(vars(TensorMethods))
    try:
        yield
    finally:
        for table, known in ((PRIMITIVES, rows), (METHODS, entries)):
            for added in set(table) - known:
                del table[added]
        for added in set(vars(TensorMethods)) - methods:
            delattr(TensorMethods, added)


def run(name: str, document: str) -> str:
    """What is wrong with the examples of a docstring; nothing if they do as they say."""
    with tables_kept():
        return _run(name, document)


def _run(name: str, document: str) -> str:
    found = doctest.DocTestParser().get_doctest(document, docnames.names(document), name, None, 0)
    said: list[str] = []
    doctest.DocTestRunner(checker=Close(), verbose=False).run(found, out=said.append)
    return "".join(said)


@pytest.mark.parametrize("slug", sorted({slug for slug, _ in NAMES.values()}))
def test_examples_do_as_they_say(slug: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRACEGRAD_DEVICE", "cpu")
    lacking = {name for name, library in NEEDS.items() if not installed(library)}
    here = {name: document for name, (own, document) in NAMES.items() if own == slug and name not in lacking}
    wrong = {name: run(name, document) for name, document in here.items()}
    assert not any(wrong.values()), "\n".join(wrong.values())


def installed(library: str) -> bool:
    try:
        importlib.import_module(library)
    except ImportError:
        return False
    return True


def without(part: re.Pattern[str], names: dict[str, Any]) -> list[str]:
    return sorted(name for name, (_, document) in names.items() if not part.search(document))


def test_every_public_name_has_an_example() -> None:
    lacking = without(re.compile(">>>"), NAMES)
    assert set(lacking) <= NO_EXAMPLE, f"add an example, >>>, to the docstrings of {set(lacking) - NO_EXAMPLE}"
    assert lacking == sorted(NO_EXAMPLE), "take what has an example out of NO_EXAMPLE"


@pytest.mark.parametrize("part", PARTS)
def test_every_op_states_its(part: str) -> None:
    ops = {name: entry for name, entry in NAMES.items() if entry[0] in OPS}
    lacking = without(PARTS[part], ops)
    assert len(ops) > 150 and not lacking, f"state the {part} in the docstrings of {lacking}"


def test_every_op_layer_optimizer_and_schedule_has_a_source() -> None:
    sourced = {name: entry for name, entry in NAMES.items() if entry[0] in SOURCED and name not in OWN}
    lacking = without(SOURCE, sourced)
    assert not lacking, f"name a paper, or PyTorch's or NumPy's function, in the docstrings of {lacking}"


def test_names_of_numpy_pytorch_and_jax_exist() -> None:
    """Names of a library that is not installed are not looked up."""
    absent: list[tuple[str, str]] = []
    known = "|".join(filter(installed, ("numpy", "torch", "jax")))
    for name, (_, document) in NAMES.items():
        for path in re.findall(rf"\b(?:{known})(?:\.[A-Za-z_]\w*)+", document):
            try:
                pkgutil.resolve_name(path)
            except (ImportError, AttributeError):
                absent.append((name, path))
    assert absent == []


def test_what_raises_says_so() -> None:
    """A function whose own code raises names the errors."""
    silent: list[str] = []
    for name, (_, _, value) in reference.names().items():
        if not inspect.isfunction(value):
            continue
        source = inspect.getsource(inspect.unwrap(value))
        if re.search(r"^\s+raise \w", source, re.MULTILINE) and not PARTS["errors"].search(NAMES[name][1]):
            silent.append(name)
    assert silent == []


def test_every_public_name_is_in_the_index_by_pytorchs_names() -> None:
    every = reference.names()
    lacking, gone = counterparts.unknown(every), counterparts.COUNTERPARTS.keys() - every.keys()
    assert not lacking, f"write PyTorch's name with its path, or a line in tools/site/counterparts.py, for {lacking}"
    assert not gone, f"take these names out of tools/site/counterparts.py: {gone}"


def test_first_sentences_stand_alone() -> None:
    """They begin with a verb or the thing itself, and can be read at once: an index lists them."""
    vague = re.compile(r"(What|Those|That|It|This|Which|If|When|Where)\b")
    first = {name: re.split(r"(?<=[.:])\s|\n\n", document.strip())[0] for name, (_, document) in NAMES.items()}
    wrong = [name for name, text in first.items() if vague.match(text) or not 0 < len(text.split()) <= 25]
    assert not wrong, f"write a first sentence of at most 25 words that begins with a verb, for {wrong}"


def test_examples_leave_no_row_behind() -> None:
    before = set(PRIMITIVES), set(METHODS), set(vars(TensorMethods))
    assert run("extend.elementwise", NAMES["extend.elementwise"][1]) == ""
    assert (set(PRIMITIVES), set(METHODS), set(vars(TensorMethods))) == before
    assert not hasattr(tg.GradTensor, "doc_halve")
