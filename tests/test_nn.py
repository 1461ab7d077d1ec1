"""Modules, parameters, names, bound copies, layers, and the summary."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import pytest

from tracegrad import init, nn
from tracegrad.dtypes import TensorType, f32, i32
from tracegrad.errors import CallError, DTypeError, InputError, ShapeError, TraceError
from tracegrad.hypers import hyper
from tracegrad.imperative.stepwise import instantiate
from tracegrad.introspection.tables import summary
from tracegrad.ir.ambient import tracing
from tracegrad.ir.evaluate import evaluate
from tracegrad.ir.nodes import Tensor
from tracegrad.nn import Module, bound, named_parameters
from tracegrad.prims.leaves import leaf


class Attention(Module):
    def __init__(self, dim):
        self.q, self.k = nn.Linear(dim, dim), nn.Linear(dim, dim, bias=False)


class Block(Module):
    def __init__(self, dim):
        self.norm = nn.LayerNorm(dim)
        self.attn = Attention(dim)


class Model(Module):
    def __init__(self, dim=4):
        self.layers = [Block(dim), Block(dim)]
        self.heads = {"out": nn.Linear(dim, 2), "aux": (nn.RMSNorm(dim), nn.RMSNorm(dim, decay=True))}
        self.scale = self.param((), init=init.ones())
        self.dim, self.note = dim, "not a parameter"


def leaves_for(model):
    return {name: leaf("param", name, p.type) for name, p in named_parameters(model).items()}


def call(model, fn, params=None, **inputs):
    """fn(model, **inputs) evaluated with NumPy; inputs are arrays."""
    params = params or {n: np.ones(p.shape, np.float32) for n, p in named_parameters(model).items()}
    with tracing():
        m = bound(model, leaves_for(model))
        dtypes = {n: i32 if v.dtype == np.int32 else f32 for n, v in inputs.items()}
        out = fn(m, **{n: leaf("input", n, TensorType(dtypes[n], v.shape)) for n, v in inputs.items()})
    return evaluate([out], {**params, **inputs}, np)[0]


def test_names_are_attribute_paths_in_declaration_order():
    assert list(named_parameters(Model())) == [
        "layers.0.norm.g", "layers.0.norm.b", "layers.0.attn.q.W", "layers.0.attn.q.b", "layers.0.attn.k.W",
        "layers.1.norm.g", "layers.1.norm.b", "layers.1.attn.q.W", "layers.1.attn.q.b", "layers.1.attn.k.W",
        "heads.out.W", "heads.out.b", "heads.aux.0.g", "heads.aux.1.g", "scale",
    ]  # fmt: skip


def test_one_parameter_reached_by_two_paths_has_the_first_name():
    class Tied(Module):
        def __init__(self):
            self.embed = nn.Embedding(10, 4)
            self.out = nn.Linear(10, 4, bias=False)
            self.out.W = self.embed.W
            self.same = [self.embed, self.out]

    model = Tied()
    assert list(named_parameters(model)) == ["embed.W"]
    with tracing():
        m = bound(model, leaves_for(model))
    assert m.embed.W is m.out.W
    assert m.same[0] is m.embed and m.same[1] is m.out


T = TypeVar("T")


class OfKind(Module, Generic[T]):
    def __init__(self) -> None:
        self.w = self.param(2)


def test_a_generic_module_is_a_module():
    made = OfKind[int]()
    assert [*nn.named_parameters(made)] == ["w"] and repr(made) == "<OfKind: 2 parameters in w f32[2]>"
    assert instantiate(made, seed=0).w.shape == (2,)


def test_bound_replaces_parameters_in_a_copy():
    model = Model()
    before = named_parameters(model)
    with tracing():
        tensors = leaves_for(model)
        m = bound(model, tensors)
    assert type(m) is Model and m is not model
    assert m.layers[1].attn.q.W is tensors["layers.1.attn.q.W"]
    assert m.heads["aux"][0].g is tensors["heads.aux.0.g"]
    assert m.note == model.note
    m.layers.append(None)
    m.heads["new"] = None
    m.layers[0].norm.eps = 1.0
    assert named_parameters(model) == before
    assert len(model.layers) == 2 and "new" not in model.heads and model.layers[0].norm.eps == 1e-5
    assert isinstance(m.scale, Tensor) and not isinstance(model.scale, Tensor)


def test_containers_keep_their_kind():
    class Pair(NamedTuple):
        left: Any
        right: Any

    class Holder(Module):
        def __init__(self):
            self.pair = Pair(nn.Linear(1, 1), 7)
            self.ordered = OrderedDict(b=nn.RMSNorm(2), a=None)

    model = Holder()
    assert list(named_parameters(model)) == ["pair.0.W", "pair.0.b", "ordered.b.g"]
    with tracing():
        m = bound(model, leaves_for(model))
    assert isinstance(m.pair, Pair) and m.pair.right == 7
    assert type(m.ordered) is OrderedDict and list(m.ordered) == ["b", "a"]


def test_cycles_and_frozen_dataclasses_and_plain_containers():
    class Child(Module):
        def __init__(self, parent):
            self.parent = parent
            self.w = self.param(2)

    class Parent(Module):
        def __init__(self):
            self.child = Child(self)

    @dataclass(frozen=True)
    class Frozen(Module):
        layer: nn.Linear
        width: int = 3

    model = {"parent": Parent(), "frozen": Frozen(nn.Linear(1, 2))}
    assert list(named_parameters(model)) == ["parent.child.w", "frozen.layer.W", "frozen.layer.b"]
    with tracing():
        m = bound(model, leaves_for(model))
    assert m["parent"].child.parent is m["parent"]
    assert isinstance(m["frozen"].layer.W, Tensor)


def test_helpers_of_init_may_make_parameters_and_nobody_else():
    class Helped(Module):
        def __init__(self):
            self.build()

        def build(self):
            self.w = [self.param(2) for _ in range(2)]

    model = Helped()
    assert list(named_parameters(model)) == ["w.0", "w.1"]
    with pytest.raises(TraceError, match=r"Helped\.param works in __init__ only") as e:
        model.build()
    assert "self.w = [self.param(2)" in str(e.value)  # the user's own line
    with pytest.raises(TraceError, match="works in __init__ only"):
        model.param(3)


def test_no_parameter_is_made_inside_a_forward():
    with tracing(), pytest.raises(TraceError, match="cannot be made inside a loss or forward"):
        nn.Linear(2, 2)


def test_a_forward_that_uses_another_model_than_its_own_is_told_so():
    model = nn.Linear(2, 2)
    with pytest.raises(DTypeError, match="Use the model that the forward receives"):
        call(model, lambda m, x: model(x), x=np.zeros((3, 2), np.float32))


def test_what_is_no_model_is_refused():
    with pytest.raises(TraceError, match=r"a model is a tg\.Module.*call it: Model\(\.\.\.\)"):
        named_parameters(Model)
    with pytest.raises(TraceError, match="got 3"):
        named_parameters(3)

    class Clash(Module):
        def __init__(self):
            self.d = {1: self.param(1), "1": self.param(1)}

    with pytest.raises(TraceError, match=r"two parameters have the name 'd\.1'"):
        named_parameters(Clash())


@pytest.mark.parametrize(
    ("error", "arguments", "message"),
    [
        (ShapeError, {"shape": (2, 0)}, r"at least 1, got \[2,0\]"),
        (ShapeError, {"shape": (2.5,)}, "must be integers"),
        (DTypeError, {"shape": 2, "dtype": "i32", "trainable": True}, "i32 has no gradient; pass trainable=False"),
        (DTypeError, {"shape": 2, "init": np.zeros(2)}, r"values go in as tg\.init\.literal"),
        (DTypeError, {"shape": 2, "init": init.zeros}, "call it"),
        (ShapeError, {"shape": 2, "init": init.literal([1.0])}, r"the values are \[1\], the parameter is \[2\]"),
        (DTypeError, {"shape": 2, "init": init.randn(), "dtype": "i32", "trainable": False}, "zeros, ones or literal"),
        (DTypeError, {"shape": 1, "init": init.literal([1.0]), "dtype": "i32", "trainable": False}, r"dtype='i32'"),
    ],
)
def test_parameters_that_cannot_be(error, arguments, message):
    class Bad(Module):
        def __init__(self):
            self.w = self.param(**arguments)

    with pytest.raises(error, match=message) as e:
        Bad()
    assert "self.w = self.param(**arguments)" in str(e.value)


def test_a_parameter_remembers_what_was_asked():
    class Asked(Module):
        def __init__(self):
            self.w = self.param([2, 3])
            self.n = self.param(4, dtype=i32, trainable=False)
            self.v = self.param((np.int64(2),), init=init.uniform(0, 1), decay=False)

    p = named_parameters(Asked())
    assert (p["w"].shape, p["w"].init, p["w"].decay, p["w"].trainable) == ((2, 3), init.randn(0.02), None, True)
    assert (p["n"].type, p["n"].init, p["n"].trainable) == (TensorType(i32, (4,)), init.zeros(), False)
    assert (p["v"].init, p["v"].decay) == (init.uniform(0, 1), False)
    assert p["v"].site.file == __file__


def test_decay_of_layers_is_about_their_weights():
    flags = {
        n: nn.decays(n, p)
        for n, p in named_parameters(
            {
                "linear": nn.Linear(2, 2, decay=True), "plain": nn.Linear(2, 2), "off": nn.Linear(2, 2, decay=False),
                "conv": nn.Conv2d(2, 2, 3, decay=False), "embed": nn.Embedding(3, 2),
                "norm": nn.LayerNorm(2), "rms": nn.RMSNorm(2, decay=True), "never": nn.LayerNorm(2, decay=False),
            }
        ).items()
    }  # fmt: skip
    assert {n for n, flag in flags.items() if flag} == {"linear.W", "plain.W", "embed.W", "rms.g"}
    norms = {"n": nn.LayerNorm(2), "b": nn.BatchNorm(2), "g": nn.GroupNorm(1, 2), "off": nn.RMSNorm(2, decay=False)}
    filtered = {n for n, p in named_parameters(norms).items() if nn.decays(n, p, lambda name: True)}
    assert filtered == {"n.g", "n.b", "b.g", "b.b", "g.g", "g.b"}  # as PyTorch's AdamW, which decays all


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def random(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def close(ours, theirs):
    np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bias", [True, False])
def test_linear_is_pytorchs(torch, bias):
    params = {"W": random((4, 3)), "b": random((3,), 1)}
    x = random((2, 5, 4), 2)
    ours = call(nn.Linear(4, 3, bias=bias), lambda m, x: m(x), params, x=x)
    b = torch.tensor(params["b"]) if bias else None
    close(ours, torch.nn.functional.linear(torch.tensor(x), torch.tensor(params["W"].T.copy()), b))


@pytest.mark.parametrize("bias", [True, False])
def test_layer_norm_is_pytorchs(torch, bias):
    params = {"g": random((6,)), "b": random((6,), 1)}
    x = random((3, 6), 2)
    ours = call(nn.LayerNorm(6, eps=1e-3, bias=bias), lambda m, x: m(x), params, x=x)
    b = torch.tensor(params["b"]) if bias else None
    close(ours, torch.nn.functional.layer_norm(torch.tensor(x), (6,), torch.tensor(params["g"]), b, eps=1e-3))


def test_rms_norm_is_pytorchs(torch):
    params, x = {"g": random((6,))}, random((3, 6), 2)
    ours = call(nn.RMSNorm(6), lambda m, x: m(x), params, x=x)
    close(ours, torch.nn.functional.rms_norm(torch.tensor(x), (6,), torch.tensor(params["g"]), eps=1e-6))


def test_embedding_is_pytorchs(torch):
    params, indices = {"W": random((7, 3))}, np.array([[0, 6, 2], [2, 2, 1]], np.int32)
    ours = call(nn.Embedding(7, 3), lambda m, i: m(i), params, i=indices)
    close(ours, torch.nn.functional.embedding(torch.tensor(indices).long(), torch.tensor(params["W"])))


@pytest.mark.parametrize(
    "options",
    [{}, {"stride": 2, "padding": 1}, {"stride": (1, 2), "padding": (2, 0), "groups": 2}, {"bias": False}],
    ids=str,
)
def test_conv2d_is_pytorchs(torch, options):
    layer = nn.Conv2d(4, 6, (3, 2), **options)
    params = {n: random(p.shape, k) for k, (n, p) in enumerate(named_parameters(layer).items())}
    x = random((2, 4, 7, 6), 5)
    ours = call(layer, lambda m, x: m(x), params, x=x)
    b = torch.tensor(params["b"]) if "b" in params else None
    rest = {k: v for k, v in options.items() if k != "bias"}
    close(ours, torch.nn.functional.conv2d(torch.tensor(x), torch.tensor(params["W"]), b, **rest))


def test_conv2d_refuses_groups_that_do_not_divide():
    with pytest.raises(ShapeError, match="groups=2 must divide both in_ch=3 and out_ch=4"):
        nn.Conv2d(3, 4, 3, groups=2)
    with pytest.raises(ShapeError, match="an integer or two"):
        nn.Conv2d(3, 4, (3, 3, 3))


def test_summary_is_a_table_with_totals():
    class Frozen(Module):
        def __init__(self):
            self.l1 = nn.Linear(100, 30)
            self.table = self.param(50, trainable=False)

    table = summary(Frozen())
    assert (table.total, table.trainable) == (3080, 3030)
    lines = str(table).splitlines()
    assert lines[0].split() == ["name", "type", "count", "init"]
    assert lines[2].split() == ["l1.W", "f32[100,30]", "3,000", "kaiming"]
    assert lines[4].split() == ["table", "f32[50]", "50", "randn,", "fixed"]
    assert lines[6].split()[:2] == ["total", "3,080"]
    assert lines[7] == "of which trainable: 3,030"


def test_hyper_is_one_leaf_a_name_and_records_its_default():
    with tracing() as running:
        a, b = hyper("temperature", 2), hyper("temperature", 2.0)
        assert a is b
        assert (a.type, a.attrs["role"], a.name) == (TensorType(f32, ()), "hyper", "temperature")
        assert running.hypers == {"temperature": 2.0}
        with pytest.raises(TraceError, match=r"has two defaults, 2\.0 before and 3\.0 here"):
            hyper("temperature", 3.0)
        for name in ("seed", "1-beta1", "two words"):
            with pytest.raises(InputError, match="cannot be a name"):
                hyper(name, 1.0)
        with pytest.raises(InputError, match="must be finite"):
            hyper("x", float("inf"))
    assert hyper("temperature", 2.0).item() == 2.0  # eagerly: nothing can set it


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda: nn.MultiheadAttention(8, 2)(1, 2, 3, 4), r"takes 3 arguments by position, got 4.*mask="),
        (lambda: nn.Linear(8, 2)(), r"Linear: missing x="),
        (lambda: nn.Dropout(0.1)(0, train=True), r"Dropout: there is no argument 'train'; write training=True"),
        (lambda: nn.Conv2d(3, 4, 3)(0, 0), r"Conv2d: takes 1 argument by position, got 2"),
        (lambda: Module().param(2, 3), r"param: takes 1 argument by position, got 2 by position; a shape goes in"),
        (lambda: Module().state(2, 3), r"state: .* a shape goes in one tuple"),
        (lambda: Module().param(2, initializer=0), r"param: there is no argument 'initializer'; write init=0"),
    ],
)
def test_a_layer_called_with_wrong_arguments_says_what_it_takes(wrong, told):
    with pytest.raises(CallError, match=told):
        wrong()


def test_padding_same_is_refused_where_both_sides_would_differ():
    for wrong in ({"kernel_size": 4}, {"kernel_size": 3, "stride": 2}):
        with pytest.raises(ShapeError, match="padding='same' needs stride 1"):
            nn.Conv1d(3, 4, padding="same", **wrong)
    assert nn.Conv1d(3, 4, 5, padding="valid").padding == (0,)


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (lambda x: nn.MultiheadAttention(8, 2)(x, is_causal=True), "write causal=True where the layer is made"),
        (lambda x: nn.LayerNorm(8)(x, eps=1e-3), "write eps=0.001 where the layer is made"),
        (lambda x: nn.BatchNorm(8, training=True)(x), "write training=True where it is called"),
        (lambda x: nn.MultiheadAttention(8, 2, mask=x)(x), "write mask=... where it is called"),
    ],
)
def test_an_argument_of_the_other_call(call: Any, hint: str) -> None:
    with pytest.raises(CallError, match=hint):
        call(np.zeros((2, 3, 8), np.float32))


def test_a_module_is_defined_where_there_is_no_name() -> None:
    """As `exec(code, {})` does: such a function belongs to no module."""
    code = "class Net(Module):\n    def __init__(self, n): self.w = self.param((n,))\nnet = Net(3)"
    space: dict[str, Any] = {"Module": Module, "__builtins__": __builtins__}
    exec(code, space)
    assert space["net"].w.shape == (3,)
