"""The pages of the reference, and its indexes: by task, and by PyTorch's names.

Only the sections are written down here. What is in them comes from the `__all__` of the modules, so a new public name
is on its page without a change. A name of `tg.` that no section has is on the first page.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
sys.path.insert(0, str(Path(__file__).parent))

from counterparts import counterpart

import tracegrad as tg
from tracegrad.refusals import remedies


@dataclass(frozen=True)
class Section:
    """One page: a title, what it is for, and modules whose `__all__` it shows, or names of `tg`."""

    slug: str
    title: str
    about: str
    modules: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    prefix: str = "tg"


ERRORS = tuple(n for n in tg.__all__ if inspect.isclass(getattr(tg, n)) and issubclass(getattr(tg, n), Exception))
SECTIONS = (
    Section("training", "Compile and train", "Compile a model, train it, run it.",
            names=("compile", "CompiledTraining", "compile_forward", "load_forward", "CompiledForward", "hyper",
                   "single_flight", "sweep", "Sweep")),
    Section("results", "Results", "What `step` and `run` return.",
            names=("Pending", "Completed", "Aborted", "Failed", "Captures")),
    Section("callbacks", "Callbacks", "Objects for `fit(callbacks=[...])`.",
            names=("EarlyStopping", "Checkpoint", "CSVLogger", "TensorBoard")),
    Section("modules", "Modules and layers", "Trees of parameters and states.", modules=("nn",), prefix="nn",
            names=("Parameter", "summary", "from_torch", "to_torch")),
    Section("losses", "Losses", "Scalars to minimise.", modules=("ops.losses", "ops.distances", "alignment")),
    Section("activations", "Activations", "Functions of each element, between layers.", modules=("ops.activation",)),
    Section("elementwise", "Arithmetic", "Functions of each element.",
            modules=("prims.elementwise", "ops.math", "ops.trigonometry", "ops.gamma")),
    Section("reductions", "Reductions", "Sums, means, extrema and their kind.",
            modules=("ops.reduction", "ops.extrema", "ops.cumulative")),
    Section("sorting", "Sorting", "Order along an axis.", modules=("ops.sorting",)),
    Section("shapes", "Shapes", "The same numbers, placed otherwise.", modules=("ops.shaping", "ops.joining")),
    Section("indexing", "Indexing and embeddings", "Elements picked by integers.",
            modules=("ops.indexing",)),
    Section("linalg", "Products", "Products of matrices and tensors.", modules=("ops.linalg",)),
    Section("solvers", "Linear algebra", "Decompositions of matrices, and systems of equations.", modules=("linalg",),
            prefix="linalg"),
    Section("attention", "Attention", "Heads, positions and masks.", modules=("ops.attention",)),
    Section("norms", "Norms and softmax", "Rows that are scaled.", modules=("ops.norm",)),
    Section("images", "Convolutions, pools, images", "Windows of signals and images.",
            modules=("ops.convolutions", "ops.images", "ops.resampling", "ops.windows")),
    Section("random", "Random numbers", "Streams that a seed pins.", modules=("ops.random",), names=("manual_seed",)),
    Section("constants", "Constants and types", "Tensors made of nothing, and dtypes.", modules=("ops.constants",),
            names=("f32", "i32", "u32", "bool_", "DType", "TensorType", "InputType")),
    Section("inspection", "Captures and patches", "Look into a forward pass, or change it.",
            modules=("ops.control",), names=("Graph", "Tensor", "Program", "trace", "trace_forward")),
    Section("transforms", "Transforms", "Functions of functions.", modules=("functional",)),
    Section("eager", "Eager tensors", "Ops that run at once.",
            names=("tensor", "parameter", "GradTensor", "no_grad", "eager", "instantiate")),
    Section("optimizers", "Optimizers", "How gradients become updates.", modules=("optim",), prefix="optim"),
    Section("schedules", "Schedules", "The learning rate of each step.", modules=("lr",), prefix="lr"),
    Section("initialisers", "Initialisers", "First values of parameters.", modules=("init",), prefix="init"),
    Section("metrics", "Metrics", "Measures of predictions.", modules=("metrics",), prefix="metrics"),
    Section("devices", "Devices", "Where a program runs.",
            names=("devices", "DeviceInfo", "check_webgpu", "WebGPUSupport", "is_webgpu_available")),
    Section("errors", "Errors", "What is raised, and of which classes it is.", names=ERRORS),
    Section("extend", "Extending", "What the library's own parts are made with.", modules=("extend",), prefix="extend"),
)  # fmt: skip
NAMESPACES = {"init", "lr", "nn", "optim"}


def exported(module: str) -> list[str]:
    found = import_module(f"tracegrad.{module}")
    return list(found.__all__)


def entries(section: Section) -> Iterator[tuple[str, str]]:
    """Yield, for each name of a section, the name that a user writes and the path in the package."""
    of_tg = [n for m in section.modules if section.prefix == "tg" for n in exported(m)]
    for name in dict.fromkeys([*section.names, *of_tg]):
        if name in tg.__all__:
            yield f"tg.{name}", f"tracegrad.{name}"
    if section.prefix != "tg":
        for name in exported(section.prefix):
            path = f"tracegrad.{section.prefix}.{name}"
            inside = hasattr(sys.modules.get(path), name)  # a file of the same name has the function
            yield f"{section.prefix}.{name}", f"{path}.{name}" if inside else path


def names() -> dict[str, tuple[str, str, Any]]:
    """Return name that a user writes -> (slug of its page, path, object). A name is on the first page that lists it."""
    found: dict[str, tuple[str, str, Any]] = {}
    for section in SECTIONS:
        for shown, path in entries(section):
            owner, _, name = path.rpartition(".")
            found.setdefault(shown, (section.slug, path, getattr(import_module(owner), name)))
    for name in sorted(tg.__all__):
        if name not in NAMESPACES and f"tg.{name}" not in found and f"nn.{name}" not in found:
            found[f"tg.{name}"] = (SECTIONS[0].slug, f"tracegrad.{name}", getattr(tg, name))
    return found


def first_line(value: Any) -> str:
    text = (inspect.getdoc(value) or "").split("\n\n")[0]
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


IN_PARTS = ("tg.CompiledTraining", "tg.CompiledForward")  # base classes define a part of their methods


def page(section: Section) -> str:
    own = [(shown, path, value) for shown, (slug, path, value) in names().items() if slug == section.slug]
    body = [f"# {section.title}", "", section.about, ""]
    for shown, path, value in own:
        body += [f"::: {path}", "    options:", f"      heading: {shown}", f"      toc_label: {shown}"]
        if shown in IN_PARTS:
            body.append("      inherited_members: true")
        elif inspect.isclass(value) and issubclass(value, tg.Module):
            body.append("      inherited_members: [__call__]")
        body.append("")
    return "\n".join(body)


def index() -> str:
    every = names()
    lines = ["# API reference", "", "Every public name, by task. Each entry has shapes, dtypes, gradient and errors.",
             "[By PyTorch's names](pytorch.md) is another index.", ""]  # fmt: skip
    for section in SECTIONS:
        lines += [f"## [{section.title}]({section.slug}.md)", "", section.about, "", "| name | does |", "|---|---|"]
        own = [(shown, value, path) for shown, (slug, path, value) in every.items() if slug == section.slug]
        lines += [f"| [`{s}`]({section.slug}.md#{path}) | {first_line(v)} |" for s, v, path in own]
        lines.append("")
    return "\n".join(lines)


TABLES = (
    ("Functions and modules", "torch.", "names"),
    ("Methods of tensors", "Tensor.", "tensors"),
    ("Models", "nn.Module.", "models"),
    ("Optimizers", "torch.optim.", "optimizers"),
    ("Schedules", "lr_scheduler.", "schedules"),
    ("Initialisers", "nn.init.", "initialisers"),
)


def pytorch() -> str:
    """Return the index by PyTorch's names, made of the tables that error messages use."""
    lines = ["# By PyTorch's names", "",
             "The first tables list names that differ, and what to write instead. Other names "
             "are those of PyTorch, in lower case with underscores for functions: `F.gelu` is `tg.gelu`, `nn.ReLU()` "
             "is `tg.relu`. [The last table](#every-public-name) lists every name of tracegrad.", ""]  # fmt: skip
    for title, prefix, table in TABLES:
        lines += [f"## {title}", "", f"| `{prefix}` | here |", "|---|---|"]
        rows = [(name, remedy) for many, remedy in remedies()[table].items() for name in many.split()]
        lines += [f"| `{n}` | {str(r).replace('|', chr(92) + '|')} |" for n, r in sorted(rows)]
        lines.append("")
    lines += ["## Every public name", "", "An empty cell means that PyTorch has no counterpart.", "",
              "| here | PyTorch |", "|---|---|"]  # fmt: skip
    for shown, (slug, path, value) in names().items():
        if slug not in ("errors", "extend"):
            theirs = counterpart(shown, inspect.getdoc(value) or "")
            lines.append(f"| [`{shown}`]({slug}.md#{path}) | {f'`{theirs}`' if 'torch' in theirs else theirs} |")
    lines.append("")
    return "\n".join(lines)


def pages() -> dict[str, str]:
    """Return path below docs/ -> Markdown."""
    return {
        "reference/index.md": index(),
        "reference/pytorch.md": pytorch(),
        **{f"reference/{section.slug}.md": page(section) for section in SECTIONS},
    }
