"""`why`: the rule that stores or inlines a value, its kernel, its neighbours, its place and your line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

import tracegrad as tg
from models import SMALL, Training
from tracegrad import nn, optim
from tracegrad.errors import MissingNameError
from tracegrad.introspection import why as tracegrad_why
from tracegrad.introspection.why import Answers, why


class MLP(tg.Module):
    def __init__(self) -> None:
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 3)

    def __call__(self, x: tg.Tensor) -> tg.Tensor:
        return self.b(tg.capture("h", tg.relu(self.a(x))))


def squared(m: MLP, x: tg.Tensor) -> tg.Tensor:
    return tg.mean(tg.square(m(x)))


class Logits(tg.Module):
    def __init__(self) -> None:
        self.w = self.param((4, 3))


def classified(m: Logits, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    return tg.cross_entropy(tg.capture("logits", x @ m.w), y)


@pytest.fixture(scope="module")
def mlp() -> Iterator[Any]:
    inputs = {"x": (5, 4)}
    with tg.compile(model=MLP(), loss=squared, inputs=inputs, optimizer=optim.sgd(lr=0.1), device="cpu") as train:
        yield train


@pytest.fixture(scope="module")
def classifier() -> Iterator[Any]:
    inputs = {"x": (5, 4), "y": tg.i32[5]}
    with tg.compile(model=Logits(), loss=classified, inputs=inputs, optimizer=optim.sgd(lr=0.1), device="cpu") as train:
        yield train


def text(found: Any) -> str:
    """What is printed without this file's folder and line numbers. Nodes are numbered as they appear."""
    return renumbered(re.sub(r"at .*test_why\.py:\d+\n    ", "at ", str(found)))


def renumbered(printed: str) -> str:
    seen: dict[str, int] = {}
    return re.sub(r"%\d+", lambda node: f"%{seen.setdefault(node[0], len(seen))}", printed)


def nodes(train: Any, start: str) -> list[str]:
    """The numbers of the nodes whose lines in `print(graph)` start so."""
    return re.findall(rf"^(%\d+) {re.escape(start)}", str(train.graph), re.MULTILINE)


ONE = "a kernel has one product, one scatter, or folds of one shape"
RELU = 'at return self.b(tg.capture("h", tg.relu(self.a(x))))'
LOSS = 'at return tg.cross_entropy(tg.capture("logits", x @ m.w), y)'


def test_an_mlp(mlp: Any) -> None:
    (add,), (product, _) = nodes(mlp, "f32[5,8] = add("), nodes(mlp, "f32[5,8] = matmul(")
    assert (
        text(mlp.why("h"))
        == f"""\
%0 relu f32[5,8], compiled to

%0 less_equal bool[5,8]
  inlined: to store and load it would cost more (an element costs 10, a load 4; read once)
  computed by dispatch 0, kernel 0 (matmul+where)
  {RELU}

%0 where f32[5,8]
  stored: the program delivers it
  computed by dispatch 0, kernel 0 (matmul+where)
  merged with %1 matmul f32[5,8]: each point reads its own
  apart from dispatch 1, kernel 1 (matmul+mul), which reads it: {ONE}
  apart from dispatch 2, kernel 2 (matmul), which reads it: {ONE}
  apart from dispatch 2, kernel 2 (matmul+where), which reads it: {ONE}
  memory: output.f32[1:41]
  {RELU}"""
    )
    assert (
        text(mlp.why(add))
        == f"""\
%0 add f32[5,8]
  inlined: to store and load it would cost more (an element costs 9, a load 4; read 2 times)
  computed by dispatch 0, kernel 0 (matmul+where)
  {RELU}"""
    )
    assert (
        text(mlp.why(product))
        == f"""\
%0 matmul f32[5,8]
  stored: each of its elements is computed from many
  computed by dispatch 0, kernel 0 (matmul+where)
  merged with %1 where f32[5,8]: each point reads its own
  memory: none, because every reader is in the same kernel
  {RELU}"""
    )


def test_results_gradients_and_parameters_have_names(mlp: Any) -> None:
    assert (
        text(mlp.why("loss"))
        == """\
%0 div f32[]
  stored: the program delivers it
  computed by dispatch 2, kernel 2 (sum+div+where)
  merged with %1 sum f32[1,1]: each row reads its own
  merged with %2 where f32[]: each row reads its own
  memory: output.f32[0:1]
  at return tg.mean(tg.square(m(x)))"""
    )
    assert (
        text(mlp.why("grads.b.W"))
        == f"""\
%0 matmul f32[8,3]
  stored: each of its elements is computed from many
  computed by dispatch 2, kernel 2 (matmul)
  apart from dispatch 0, kernel 0 (matmul+where), which it reads: {ONE}
  apart from dispatch 1, kernel 1 (matmul+mul), which it reads: {ONE}
  apart from dispatch 4, kernel 4 (sum+where), which reads it: the value is read as a part of an array, from memory
  memory: grads[32:56]
  {RELU}"""
    )
    assert (
        text(mlp.why("a.W"))
        == """\
%0 a.W f32[4,8]
  stored: it lies in memory before the program runs
  read by dispatch 0, kernel 0 (matmul+where)
  memory: params[0:32]
  at with tg.compile(model=MLP(), loss=squared, inputs=inputs, optimizer=optim.sgd(lr=0.1), device="cpu") as train:"""
    )


def test_a_softmax_cross_entropy(classifier: Any) -> None:
    rows = "computed by dispatch 1, kernel 1 (peak+exp+sum+mul)"
    mean = "dispatch 2, kernel 2 (sum+div+where)"
    (node,) = nodes(classifier, "f32[5] = cross_entropy(")
    assert (
        text(classifier.why(node))
        == f"""\
%0 cross_entropy f32[5], compiled to

%0 peak f32[5,1]
  stored: each of its elements is computed from many
  {rows}
  merged with %0 exp f32[5,3]: each row reads its own
  merged with %0 sum f32[5,1]: each row reads its own
  apart from dispatch 0, kernel 0 (matmul), which it reads: {ONE}
  memory: none, because every reader is in the same kernel
  {LOSS}

%0 sub f32[5,3]
  inlined: to store and load it would cost more (an element costs 9, a load 4; read 2 times)
  {rows}
  {LOSS}

%0 exp f32[5,3]
  stored: to compute it in each of its readers would cost more (an element costs 17, a load 4; read 2 times)
  {rows}
  merged with %0 peak f32[5,1]: each row reads its own
  merged with %0 sum f32[5,1]: each row reads its own
  merged with %1 mul f32[5,3]: each row reads its own
  merged with %0 sum f32[5,1]: they read the same values
  apart from dispatch 0, kernel 0 (matmul), which it reads: {ONE}
  memory: none, because every reader is in the same kernel
  {LOSS}

%0 sum f32[5,1]
  stored: each of its elements is computed from many
  {rows}
  merged with %0 exp f32[5,3]: each row reads its own
  merged with %1 mul f32[5,3]: each row reads its own
  apart from {mean}, which reads it: they fold rows of different shapes
  memory: temp.f32[32:37], from dispatch 1 to 2
  {LOSS}

%0 log f32[5,1]
  inlined: to store and load it would cost more (an element costs 16, a load 4; read once)
  computed by {mean}
  {LOSS}

%0 where f32[5,3]
  inlined: to store and load it would cost more (an element costs 17, a load 4; read once)
  {rows}
  {LOSS}

%0 sum f32[5,1]
  stored: each of its elements is computed from many
  {rows}
  merged with %0 peak f32[5,1]: each row reads its own
  merged with %0 exp f32[5,3]: they read the same values
  merged with %1 mul f32[5,3]: they read the same values
  apart from dispatch 0, kernel 0 (matmul), which it reads: {ONE}
  apart from {mean}, which reads it: they fold rows of different shapes
  memory: temp.f32[64:69], from dispatch 1 to 2
  {LOSS}

%0 sub f32[5,1]
  inlined: to store and load it would cost more (an element costs 21, a load 4; read once)
  computed by {mean}
  {LOSS}"""
    )


def test_a_node_is_as_good_as_its_name_or_number(classifier: Any) -> None:
    node, (number,) = classifier.graph.captures["logits"], nodes(classifier, "f32[5,3] = matmul(")
    assert text(classifier.why(node)) == text(classifier.why("logits")) == text(classifier.why(number))
    assert "%0 matmul f32[5,3]\n  stored: " in text(classifier.why(node))


def test_what_the_passes_left_out_is_said_to_be_gone(classifier: Any) -> None:
    """Of two equal constants one stays."""
    first, second = nodes(classifier, "f32[] = const(value=1.0,")
    assert text(classifier.why(second)) == f"%0 const f32[]\n  {tracegrad_why.GONE}"
    assert text(classifier.why(first)).startswith("%0 const f32[]\n  inlined: it depends on coordinates")


def test_a_reshape_is_the_value_whose_memory_it_shares(classifier: Any) -> None:
    found = text(classifier.why("halted"))
    assert found.startswith("%0 reshape i32[1], compiled to\n\n%1 where i32[]\n  stored: the program delivers it\n")
    assert "\n  memory: halted[0:1]\n" in found


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("los", "the graph has no 'los': did you mean 'loss'?"),
        ("grad.w", "the graph has no 'grad.w': did you mean 'grads.w'?"),
        ("%99999", "the graph has no '%99999': it has loss, halted, logits, grads, params, bounds.1, w, x, y, lr, "
                   "norm-unit, grads.w; numbers are those of print(graph), from '%0' to '{last}'\n"),
    ],
)  # fmt: skip
def test_unknown_names_are_told_the_nearest(name: str, message: str, classifier: Any) -> None:
    with pytest.raises(MissingNameError) as caught:
        classifier.why(name)
    assert str(caught.value).startswith(message.format(last=nodes(classifier, "")[-1]))


@pytest.mark.parametrize("wrong", [3, None, ["loss"], MLP()])
def test_what_is_no_name_is_refused(wrong: Any, classifier: Any) -> None:
    with pytest.raises(MissingNameError, match="the graph has no "):
        classifier.why(wrong)


def test_a_node_of_another_graph_is_refused(mlp: Any, classifier: Any) -> None:
    with pytest.raises(MissingNameError, match="is not a node of this graph; take one from `graph`, or pass a name"):
        mlp.why(classifier.graph.captures["logits"])


def test_forwards_choose_a_size(mlp: Any) -> None:
    forward = mlp.attach(forward=lambda m, x: m(x), inputs={"x": (None, 4)})
    assert "%0 add f32[7,3]\n  stored: the program delivers it\n" in text(forward.why("output", x=[[0.0] * 4] * 7))
    assert "f32[7,3]" in text(forward.why("output"))
    with pytest.raises(MissingNameError, match=r"the graph has no 'loss': it has output, h, a\.W"):
        forward.why("loss")


def test_a_scan_is_many_dispatches() -> None:
    def loss(m: Logits, x: tg.Tensor) -> tg.Tensor:
        def step(h: tg.Tensor, row: tg.Tensor) -> tuple[tg.Tensor, None]:
            return tg.tanh((h[:1] + row) @ m.w), None

        return tg.mean(tg.scan(step, tg.zeros(3), x)[0])

    inputs = {"x": (6, 4)}
    with tg.compile(model=Logits(), loss=loss, inputs=inputs, optimizer=optim.sgd(lr=0.1), device="cpu") as train:
        first, *_ = [t for t in train.graph if t.prim.family == "scan"]
        found, mean = text(train.why(first)), train.why("loss").values[-1].computes[0]
    assert mean.endswith("(sum+div+where)")
    assert (
        f"""
%0 scan f32[]
  stored: its iterations write it
  computed by dispatches 1 to 2 (scan)
  apart from dispatch 0, kernel 0 (copy), which it reads: a scan runs many kernels
  apart from {mean}, which reads it: a scan runs many kernels
  apart from dispatches 3 to 5 (scan), which reads it: a scan runs many kernels
  apart from dispatch 6, kernel 6 (add), which reads it: a scan runs many kernels
  memory: """
        in found
    )


@pytest.mark.parametrize("precision", ["f32", "f16"])
@pytest.mark.parametrize("t", SMALL, ids=repr)
def test_every_value_of_a_model_has_an_answer(t: Training, precision: str) -> None:
    built = t.build()
    graph, program = built.graph, built.program
    for name in [f.name for f in program.outputs] + [f.name for f in program.params]:
        if name in {**graph.outputs, **{f.name: None for f in program.params}}:
            assert why(graph, program, name).values
    for value in Answers(graph, program).values():
        assert value.rule and value.computes and bool(value.memory) == value.stored, str(value)


def test_places_are_those_of_the_program(mlp: Any) -> None:
    program = mlp.program
    for f in (*program.outputs, *program.inputs, *program.params):
        if f.name in mlp.graph.outputs or f in program.params:
            place = f"{program.buffers[f.buffer].name}[{f.offset}:{f.offset + f.size}]"
            assert mlp.why(f.name).values[-1].memory == place


def test_explain_has_every_value(classifier: Any) -> None:
    explanation = classifier.explain(verbose=True)
    assert str(explanation.why("loss")) == str(classifier.why("loss"))
    table = explanation.values()
    names = [row[0] for row in table.rows]
    (logits,), (rows,) = nodes(classifier, "f32[5,3] = matmul("), nodes(classifier, "f32[5] = cross_entropy(")
    (gradient,), mean = nodes(classifier, "f32[4,3] = matmul("), nodes(classifier, "f32[] = div(")[0]
    wanted = {f"{logits} matmul f32[5,3]", f"{rows} exp f32[5,3]", f"{mean} div f32[]", f"{gradient} matmul f32[4,3]"}
    assert wanted <= set(names)
    assert (f"{rows} exp f32[5,3]", "stored: to compute it in each of its readers would cost more (an element "
            "costs 17, a load 4; read 2 times)", "dispatch 1", tracegrad_why.NOWHERE) in table.rows  # fmt: skip
    assert table.rows[0][0] in str(explanation) and "<summary>values</summary>" in explanation._repr_html_()
