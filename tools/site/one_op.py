"""One op followed from Python to WGSL and C, by the compiler itself."""

from __future__ import annotations

import ast
import inspect
import re

import tracegrad as tg
from tracegrad.compiler.build import ForwardSource
from tracegrad.ops import activation
from tracegrad.optim import sgd


class Layer(tg.Module):
    """One matrix."""

    def __init__(self) -> None:
        self.w = self.param((6, 4))


def forward(m: Layer, x: tg.Tensor) -> tg.Tensor:
    return tg.relu(x @ m.w + 1)


def loss(m: Layer, x: tg.Tensor) -> tg.Tensor:
    return tg.sum(forward(m, x))


def text() -> str:
    """Return the text of the page."""
    built = ForwardSource(Layer(), forward, {"x": (5, 6)}).traced().compiled()
    kernel = built.program.kernels[0]
    graph = tg.trace_forward(model=Layer(), forward=forward, inputs={"x": (5, 6)})
    training = tg.trace(model=Layer(), loss=loss, inputs={"x": (5, 6)}, optimizer=sgd(lr=0.1))
    source = kernel.texts["c"]
    parts = [
        "# One op, from Python to WGSL and C",
        "`relu` of a product and an offset, followed through every stage. The compiler wrote all of this when the "
        "page was built (`tools/site/one_op.py`).",
        "## 1. Python",
        fenced("python", inspect.getsource(forward)),
        "## 2. `relu` is a composite",
        "Other ops define it. It has a gradient of its own, which reads only the result. These are its row and the "
        "public function:",
        fenced("python", row_of("RELU") + "\n\n\n" + source_of("relu")),
        "## 3. The graph",
        "`compile` calls the function once, with tensors that have types and no numbers. Each line is a node.",
        fenced("text", plain(str(graph))),
        "## 4. Gradient and update",
        "The same walk over the graph of a loss, `sum(relu(...))`, with `sgd`. Every node of the backward pass comes "
        "from the `vjp` of a row, and the update is ops too.",
        fenced("text", plain(str(training))),
        "## 5. A kernel",
        "Fusing inlines what is cheap: the offset, the comparison and the choice join the product's kernel. This is "
        "its form, before any language:",
        fenced("text", str(kernel.forms[0])),
        "## 6. WGSL, for a GPU",
        fenced("wgsl", kernel.wgsl),
        "## 7. C, for the CPU",
        "The product goes to the library of products; what follows is a function of its own. The steps:",
        fenced("text", "\n".join(str(step) for step in source.steps)),
        fenced("c", "\n".join(source.functions)),
        "`train.explain(verbose=True)` shows the same for your own program, and `TRACEGRAD_DEBUG=5` the graph after "
        "each pass.",
    ]
    return "\n\n".join(parts) + "\n"


def fenced(language: str, body: str) -> str:
    return f"```{language}\n{body.strip()}\n```"


def plain(graph: str) -> str:
    """Return a graph's text without the lines of this file."""
    return re.sub(r"  # [\w./]+:\d+$", "", graph, flags=re.MULTILINE)


def row_of(name: str) -> str:
    """Return the lines that assign a name in ops/activation.py."""
    source = inspect.getsource(activation)
    (node,) = [n for n in ast.parse(source).body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == name]
    return ast.get_source_segment(source, node) or ""


def source_of(name: str) -> str:
    return inspect.getsource(inspect.unwrap(getattr(tg, name)))
