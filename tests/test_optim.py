"""Optimizers against PyTorch, step by step, on a flat arena of several parameters."""

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import lr, nn, optim
from tracegrad.dtypes import TensorType, bool_, f32
from tracegrad.errors import CallError, InputError
from tracegrad.hypers import leaf_value
from tracegrad.ir.ambient import tracing
from tracegrad.ir.evaluate import evaluate
from tracegrad.ir.nodes import bind, toposort
from tracegrad.nn.module import decays
from tracegrad.nn.parameters import Parameter
from tracegrad.optim.gradients import norm
from tracegrad.optim.optimizer import recipe
from tracegrad.optim.recipes import decoupled
from tracegrad.prims.elementwise import sign, square
from tracegrad.prims.folds import SUM
from tracegrad.prims.leaves import leaf

torch = pytest.importorskip("torch")

SHAPES = {"embed.W": (16, 8), "l1.W": (5, 3), "l1.b": (3,), "conv.W": (2, 3, 2, 2), "scale": ()}
DECAYED = {"embed.W", "l1.W", "conv.W"}
STEPS = 25


class Run:
    """The update rule of an optimizer, traced once and evaluated with NumPy."""

    def __init__(self, optimizer, shapes=SHAPES, decayed=DECAYED, seed=0):
        self.optimizer = optimizer
        self.arena = optim.Arena.of((name, shape, name in decayed) for name, shape in shapes.items())
        self.schedule = lr.as_schedule(optimizer.lr)
        self.hyper = dict(optimizer.hyper)
        flat = TensorType(f32, (self.arena.size,))
        with tracing():
            g, p = leaf("grad", "g", flat), leaf("param", "p", flat)
            sizes = optimizer.transform.sizes(self.arena)
            state = {n: leaf("state", f"state.{n}", TensorType(f32, (size,))) for n, size in sizes.items()}
            updates, new = optimizer.transform.update(g, p, state, optim.Host(self.arena, guarded=g))
            assert new.keys() == state.keys()
            self.roots = [p + updates, *new.values()]
        self.names = list(new)
        self.leaves = {t.name for t in toposort(self.roots) if t.attrs.get("role") == "hyper"}
        rng = np.random.default_rng(seed)
        self.p = self.flat({name: rng.standard_normal(shape) for name, shape in shapes.items()})
        fills = optimizer.transform.fills
        self.state = {
            n: self.p.copy() if fill == "params" else np.full(sizes[n], fill, np.float32) for n, fill in fills.items()
        }
        self.count = 0

    def flat(self, parts):
        return np.concatenate([np.reshape(parts[s.name], -1) for s in self.arena.slots]).astype(np.float32)

    def parts(self, flat=None):
        flat = self.p if flat is None else flat
        return {s.name: flat[s.offset : s.offset + s.size].reshape(s.shape) for s in self.arena.slots}

    def step(self, grads):
        self.count += 1
        values = {**self.hyper, "lr": self.schedule.at(self.count)}
        env = {name: np.float32(leaf_value(name, values)) for name in self.leaves if name != "step"}
        env |= {"step": np.uint32(self.count), "g": self.flat(grads), "p": self.p}
        env |= {f"state.{name}": value for name, value in self.state.items()}
        with np.errstate(all="raise", under="ignore"):
            self.p, *state = evaluate(self.roots, env, np)
        self.state = dict(zip(self.names, state, strict=True))
        assert self.p.dtype == np.float32 and all(s.dtype == np.float32 for s in state)


def noise(shapes, steps=STEPS, seed=1):
    """A part of the gradient for each step; the rest depends on the parameters, so that differences would grow."""
    rng = np.random.default_rng(seed)
    return [{n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()} for _ in range(steps)]


def compare(optimizer, make, steps=STEPS, shapes=SHAPES, decayed=DECAYED, before=lambda params, k: None, rtol=1e-5,
            scheduler=None, layout=lambda x: x):  # fmt: skip
    """Run both from the same start with the same gradients; the parameters agree at every step."""
    run = Run(optimizer, shapes, decayed)
    params = {n: torch.tensor(layout(v).copy(), requires_grad=True) for n, v in run.parts().items()}
    groups = [[p for n, p in params.items() if (n in decayed) == flag] for flag in (True, False)]
    other = make(*groups)
    schedule = scheduler(other) if scheduler else None
    for k, extra in enumerate(noise(shapes, steps)):
        run.step({n: extra[n] + 0.3 * v for n, v in run.parts().items()})
        for n, p in params.items():
            p.grad = torch.tensor(layout(extra[n]).copy()) + 0.3 * p.detach()
        before(params, k)
        other.step()
        if schedule is not None:
            schedule.step()
        for n, v in run.parts().items():
            np.testing.assert_allclose(
                layout(v), params[n].detach().numpy(), rtol=rtol, atol=rtol, err_msg=f"{n} at step {k + 1}"
            )
    return run


def all_of(cls, **options):
    return lambda a, b: cls([*a, *b], **options)


def decayed_only(cls, weight_decay, **options):
    return lambda a, b: cls(
        [{"params": a, "weight_decay": weight_decay}, {"params": b, "weight_decay": 0.0}], **options
    )


T = torch.optim
AGAINST_PYTORCH = {
    "sgd": (optim.sgd(0.05), all_of(T.SGD, lr=0.05)),
    "sgd momentum": (optim.sgd(0.05, momentum=0.9), all_of(T.SGD, lr=0.05, momentum=0.9)),
    "sgd nesterov": (
        optim.sgd(0.05, momentum=0.8, nesterov=True),
        all_of(T.SGD, lr=0.05, momentum=0.8, nesterov=True),
    ),
    "sgd weight decay": (
        optim.sgd(0.05, momentum=0.9, weight_decay=0.1),
        decayed_only(T.SGD, 0.1, lr=0.05, momentum=0.9),
    ),
    "adam": (optim.adam(0.01), all_of(T.Adam, lr=0.01)),
    "adam betas": (
        optim.adam(0.01, beta1=0.5, beta2=0.9, eps=1e-3),
        all_of(T.Adam, lr=0.01, betas=(0.5, 0.9), eps=1e-3),
    ),
    "adam weight decay": (optim.adam(0.01, weight_decay=0.2), decayed_only(T.Adam, 0.2, lr=0.01)),
    "adamw": (optim.adamw(0.01, weight_decay=0.2), decayed_only(T.AdamW, 0.2, lr=0.01)),
    "adafactor": (optim.adafactor(0.02), all_of(T.Adafactor, lr=0.02)),
    "adafactor settings": (
        optim.adafactor(0.5, beta2_decay=-0.6, eps1=1e-4, eps2=0.1, d=1.5, weight_decay=0.1),
        decayed_only(T.Adafactor, 0.1, lr=0.5, beta2_decay=-0.6, eps=(1e-4, 0.1), d=1.5),
    ),
    "adagrad": (optim.adagrad(0.05), all_of(T.Adagrad, lr=0.05)),
    "adagrad settings": (
        optim.adagrad(0.05, lr_decay=0.1, weight_decay=0.1, initial_accumulator_value=0.3, eps=1e-3),
        decayed_only(T.Adagrad, 0.1, lr=0.05, lr_decay=0.1, initial_accumulator_value=0.3, eps=1e-3),
    ),
    "adadelta": (optim.adadelta(), all_of(T.Adadelta)),
    "adadelta settings": (
        optim.adadelta(0.5, rho=0.7, eps=1e-3, weight_decay=0.1),
        decayed_only(T.Adadelta, 0.1, lr=0.5, rho=0.7, eps=1e-3),
    ),
    "nadam": (optim.nadam(0.01), all_of(T.NAdam, lr=0.01)),
    "nadam settings": (
        optim.nadam(0.01, beta1=0.7, beta2=0.95, eps=1e-3, weight_decay=0.1, momentum_decay=0.1),
        decayed_only(T.NAdam, 0.1, lr=0.01, betas=(0.7, 0.95), eps=1e-3, momentum_decay=0.1),
    ),
    "nadam decoupled": (
        optim.nadam(0.01, weight_decay=0.1, decoupled_weight_decay=True, momentum_decay=0.0),
        decayed_only(T.NAdam, 0.1, lr=0.01, decoupled_weight_decay=True, momentum_decay=0.0),
    ),
    "radam": (optim.radam(0.01), all_of(T.RAdam, lr=0.01)),
    "radam settings": (
        optim.radam(0.01, beta1=0.7, beta2=0.95, eps=1e-3, weight_decay=0.1),
        decayed_only(T.RAdam, 0.1, lr=0.01, betas=(0.7, 0.95), eps=1e-3),
    ),
    "radam of a short memory": (optim.radam(0.01, beta2=0.5), all_of(T.RAdam, lr=0.01, betas=(0.9, 0.5))),
    "radam decoupled": (
        optim.radam(0.01, beta2=0.75, weight_decay=0.1, decoupled_weight_decay=True),
        decayed_only(T.RAdam, 0.1, lr=0.01, betas=(0.9, 0.75), decoupled_weight_decay=True),
    ),
    "rmsprop": (optim.rmsprop(0.01), all_of(T.RMSprop, lr=0.01)),
    "rmsprop momentum": (
        optim.rmsprop(0.01, alpha=0.9, eps=1e-5, momentum=0.7, weight_decay=0.1),
        decayed_only(T.RMSprop, 0.1, lr=0.01, alpha=0.9, eps=1e-5, momentum=0.7),
    ),
    "rmsprop centered": (
        optim.rmsprop(0.01, alpha=0.9, centered=True),
        all_of(T.RMSprop, lr=0.01, alpha=0.9, centered=True),
    ),
}


@pytest.mark.parametrize("name", AGAINST_PYTORCH)
def test_steps_are_pytorchs(name):
    compare(*AGAINST_PYTORCH[name])


def test_defaults_are_pytorchs():
    for ours, theirs in (
        (optim.sgd(), T.SGD), (optim.adam(), T.Adam), (optim.adamw(), T.AdamW), (optim.rmsprop(), T.RMSprop),
        (optim.adagrad(), T.Adagrad), (optim.adadelta(), T.Adadelta), (optim.nadam(), T.NAdam),
        (optim.radam(), T.RAdam),
    ):  # fmt: skip
        expected = theirs([torch.zeros(2, 2, requires_grad=True)]).defaults
        expected["beta1"], expected["beta2"] = expected.get("betas", (None, None))
        assert ours.lr == expected["lr"]
        assert all(value == expected[name] for name, value in ours.hyper.items())
    expected = T.Muon([torch.zeros(2, 2, requires_grad=True)]).defaults
    ours = optim.muon()
    assert ours.lr == expected["lr"]
    assert all(ours.hyper[name] == expected[name] for name in ("weight_decay", "momentum", "eps"))
    assert (ours.options["nesterov"], ours.options["ns_steps"]) == (expected["nesterov"], expected["ns_steps"])


def test_adam_stays_pytorchs_for_a_thousand_steps():
    compare(optim.adam(1e-3), all_of(T.Adam, lr=1e-3), steps=1000, shapes={"w": (3, 2)}, decayed={"w"})


@pytest.mark.parametrize("beta2", [0.9, 0.999, 0.99999])
def test_radam_stays_pytorchs_over_its_first_steps_and_long_after(beta2):
    """The length of the average is the difference of two numbers around 2 / (1 - beta2): f32 would lose it."""
    compare(optim.radam(0.01, beta2=beta2), all_of(T.RAdam, lr=0.01, betas=(0.9, beta2)), steps=1000, rtol=3e-5)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_lamb_is_the_papers(decay):
    """Algorithm 2 of You et al. 2020 with phi the identity, in float64."""
    run = Run(optim.lamb(0.01, weight_decay=decay, eps=1e-4))
    p = {n: x.astype(np.float64) for n, x in run.parts().items()}
    p["l1.b"] = np.zeros(3)  # of norm 0: its first step is Adam's
    run.p = run.flat(p)
    m, v = ({n: np.zeros_like(x) for n, x in p.items()} for _ in range(2))
    for k, grads in enumerate(noise(SHAPES)):
        run.step(grads)
        for n, g in grads.items():
            m[n], v[n] = 0.9 * m[n] + 0.1 * g, 0.999 * v[n] + 0.001 * np.square(g, dtype=np.float64)
            u = m[n] / (1 - 0.9 ** (k + 1)) / (np.sqrt(v[n] / (1 - 0.999 ** (k + 1))) + 1e-4)
            u += decay * (n in DECAYED) * p[n]
            own, step = np.linalg.norm(p[n]), np.linalg.norm(u)
            p[n] = p[n] - 0.01 * (own / step if own > 0 and step > 0 else 1.0) * u
        for n, x in run.parts().items():
            np.testing.assert_allclose(x, p[n], rtol=1e-5, atol=1e-6, err_msg=n)


def test_decay_follows_the_schedule():
    optimizer = optim.adamw(lr.cosine_annealing(0.05, 0.001, 20), weight_decay=0.3)
    compare(
        optimizer,
        decayed_only(T.AdamW, 0.3, lr=0.05),
        steps=20,
        scheduler=lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 20, eta_min=0.001),
    )


@pytest.mark.parametrize("decayed", [set(), set(SHAPES)], ids=["none", "all"])
def test_decay_of_none_or_all_needs_no_mask(decayed):
    run = compare(optim.adamw(0.01, weight_decay=0.2), decayed_only(T.AdamW, 0.2, lr=0.01), decayed=decayed)
    assert "where" not in {t.prim.name for t in toposort(run.roots)}


@pytest.mark.parametrize("limit", [0.5, 1000.0])
def test_clipping_is_pytorchs(limit):
    compare(
        optim.adamw(0.01, weight_decay=0.2, clip_grad_norm=limit),
        decayed_only(T.AdamW, 0.2, lr=0.01),
        before=lambda params, k: torch.nn.utils.clip_grad_norm_(params.values(), limit),
    )


def test_clipping_sums_the_squares_of_the_whole_gradient_once():
    run = Run(optim.adam(clip_grad_norm=1.0))
    sums = [t for t in toposort(run.roots) if t.prim is SUM]
    assert [(t.inputs[0].prim.name, t.inputs[0].inputs[0].prim.name, t.attrs["axes"]) for t in sums] == [
        ("square", "mul", (0,))
    ]
    assert sums[0].inputs[0].inputs[0].inputs[0].name == "g"  # by the unit


@pytest.mark.parametrize("only", [None, lambda name: name.endswith("W"), "*W"], ids=["all", "some", "pattern"])
def test_gradients_are_normalized_one_by_one_before_clipping(only):
    def before(params, k):
        for n, p in params.items():
            if only is None or n.endswith("W"):
                p.grad = p.grad / (p.grad.norm() + 1e-8)
        torch.nn.utils.clip_grad_norm_(params.values(), 1.5)

    optimizer = optim.sgd(0.05, momentum=0.9, normalize_grads=only or True, clip_grad_norm=1.5)
    compare(optimizer, all_of(T.SGD, lr=0.05, momentum=0.9), before=before)


def test_normalizing_nothing_is_an_error():
    with pytest.raises(InputError, match=r"matches no parameter; they are .*l1\.W"):
        Run(optim.sgd(normalize_grads=lambda name: "nothing" in name))


def test_ema_follows_the_new_parameters_from_their_start():
    run = Run(optim.adam(0.05, ema=0.9))
    expected = run.p.astype(np.float64)
    np.testing.assert_array_equal(run.state["ema"], run.p)
    for grads in noise(SHAPES):
        run.step(grads)
        expected = 0.9 * expected + 0.1 * run.p
        np.testing.assert_allclose(run.state["ema"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("k", [2, 3, 5])
@pytest.mark.parametrize("make", [optim.adamw, optim.muon], ids=lambda f: f.__name__)
def test_accumulated_steps_equal_steps_with_the_average_gradient(k, make):
    options = {"clip_grad_norm": 1.0, "ema": 0.9}
    small, large = Run(make(0.01, accumulate=k, **options)), Run(make(0.01, **options))
    steps = noise(SHAPES, 4 * k)
    for first in range(0, 4 * k, k):
        group = steps[first : first + k]
        for grads in group[:-1]:
            before, state = small.p, small.state
            small.step(grads)
            np.testing.assert_array_equal(small.p, before)
            assert all(np.array_equal(small.state[n], state[n]) for n in state if n != "accumulated")
        small.step(group[-1])
        assert not small.state["accumulated"].any()
        large.step({n: np.mean([g[n] for g in group], axis=0) for n in SHAPES})
        np.testing.assert_allclose(small.p, large.p, rtol=1e-5, atol=1e-5)


def test_a_schedule_counts_all_steps_of_an_accumulation() -> None:
    one = np.ones((1, 1), np.float32)
    with tg.compile(
        model=nn.Linear(1, 1, bias=False), loss=lambda m, x: tg.sum(m(x)), inputs={"x": (1, 1)},
        optimizer=optim.sgd(lr.linear(1.0, 0.0, 4), accumulate=2), seed=0, device="cpu",
    ) as train:  # fmt: skip
        values = [train.params()["W"].item()] + [train.step(x=one) and train.params()["W"].item() for _ in range(4)]
    np.testing.assert_allclose(np.diff(values), [0, -0.75, 0, -0.25], atol=1e-6)


def test_accumulate_applies_on_time_late_in_a_long_training():
    run = Run(optim.sgd(1.0, accumulate=7), shapes={"w": (1,)}, decayed=set())
    run.count = 7 * 200_000 - 1
    before = run.p
    run.step({"w": np.ones(1)})
    np.testing.assert_allclose(run.p, before - 1 / 7, rtol=1e-6)


def test_lion_is_the_papers():
    run = Run(optim.lion(0.01, beta1=0.8, beta2=0.95, weight_decay=0.5))
    mask = run.flat({n: np.full(s, n in DECAYED) for n, s in SHAPES.items()})
    p, m = run.p.astype(np.float64), 0.0
    for grads in noise(SHAPES):
        g = run.flat(grads).astype(np.float64)
        run.step(grads)
        p = p - 0.01 * (np.sign(0.8 * m + 0.2 * g) + 0.5 * mask * p)
        m = 0.95 * m + 0.05 * g
        np.testing.assert_allclose(run.p, p, rtol=1e-5, atol=1e-5)


MATRICES = {"a": (6, 4), "b": (4, 9), "c": (5, 5)}


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("adjust", ["original", "match_rms_adamw"])
def test_muon_of_matrices_is_pytorchs_in_full_precision(nesterov, adjust, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "bfloat16", lambda self: self.clone())  # PyTorch iterates in bfloat16
    compare(
        optim.muon(0.02, weight_decay=0.2, momentum=0.9, nesterov=nesterov, adjust_lr=adjust),
        all_of(T.Muon, lr=0.02, weight_decay=0.2, momentum=0.9, nesterov=nesterov, adjust_lr_fn=adjust),
        shapes=MATRICES,
        decayed=set(MATRICES),
        layout=np.transpose,  # a Linear of PyTorch holds [out, in]
        rtol=1e-4,
    )


def test_muon_treats_the_rest_as_adamw():
    run = Run(optim.muon(0.02, only=lambda name: name.startswith("l1"), adam_lr_scale=0.5, weight_decay=0.1))
    other = Run(optim.adamw(0.01, weight_decay=0.2))
    for grads in noise(SHAPES):
        run.step(grads)
        other.step(grads)
    for name in SHAPES:
        same = np.allclose(run.parts()[name], other.parts()[name], rtol=1e-5, atol=1e-5)
        assert same == (name != "l1.W"), name


def test_every_hyperparameter_is_hot():
    optimizer = optim.adamw(0.01, weight_decay=0.2, clip_grad_norm=1.0, ema=0.9)
    run = Run(optimizer)
    assert run.leaves == {
        "lr", "step", "weight_decay", "1-beta1", "1-beta2", "eps", "clip_grad_norm", "1-ema", "norm-unit"
    }  # fmt: skip
    changed = Run(optimizer)
    changed.hyper |= {"beta1": 0.5, "eps": 1e-2, "weight_decay": 0.0, "clip_grad_norm": 5.0}
    fresh = Run(optim.adamw(0.01, weight_decay=0.0, beta1=0.5, eps=1e-2, clip_grad_norm=5.0, ema=0.9))
    for grads in noise(SHAPES, 3):
        changed.step(grads)
        fresh.step(grads)
    np.testing.assert_array_equal(changed.p, fresh.p)


@pytest.mark.parametrize(
    ("optimizer", "leaves", "state"),
    [
        (optim.sgd(0.1), {"lr"}, set()),
        (optim.sgd(0.1, momentum=0.9), {"lr", "momentum"}, {"momentum"}),
        (optim.lion(), {"lr", "1-beta1", "1-beta2"}, {"m"}),
        (optim.rmsprop(), {"lr", "1-alpha", "eps"}, {"v"}),
        (optim.adam(), {"lr", "step", "1-beta1", "1-beta2", "eps"}, {"m", "v"}),
        (optim.adadelta(), {"lr", "1-rho", "eps"}, {"v", "u"}),
    ],
    ids=["sgd", "momentum", "lion", "rmsprop", "adam", "adadelta"],
)
def test_what_is_off_leaves_no_trace(optimizer, leaves, state):
    run = Run(optimizer)
    assert run.leaves == leaves
    assert set(run.state) == state
    assert {name.removeprefix("1-") for name in leaves} - {"lr", "step"} == set(optimizer.hyper)


def test_a_transform_of_ones_own():
    def update(g, p, state, host):
        m = 0.5 * state["m"] + g
        return sign(m) * host.hyper("pull") / host.step, {"m": m}

    own = optim.Transform({"m": 1.0}, update, {"pull": 3.0})
    run = Run(optim.custom(optim.chain(own, own), lr=0.1))
    assert run.optimizer.transform.state == {"m": 1.0, "m.1": 1.0}
    before = run.p
    run.step({n: np.full(s, 2.0) for n, s in SHAPES.items()})
    np.testing.assert_allclose(run.p, before - 0.1 * 3.0, rtol=1e-6)
    np.testing.assert_allclose(run.state["m.1"], 0.5 + 3.0)


def test_a_transform_must_return_its_state():
    forgetful = optim.Transform({"m": 0.0}, lambda g, p, state, host: (g, {}))
    with pytest.raises(InputError, match=r"declares the state \['m'\], but its update returned the state \[\]"):
        Run(optim.custom(forgetful))
    with pytest.raises(InputError, match=r"'beta1' has two initial values, 0\.9 and 0\.5"):
        optim.chain(optim.scale_by_adam(), optim.scale_by_adam(beta1=0.5))


def test_arena_orders_decayed_first_and_then_by_alignment():
    shapes = [
        ("odd", (3,), True), ("bias", (64,), False), ("four", (2, 6), True), ("big", (8, 8), True),
        ("gain", (4,), False), ("odd2", (5,), True), ("big2", (128,), True),
    ]  # fmt: skip
    arena = optim.Arena.of(shapes)
    assert [s.name for s in arena.slots] == ["big", "big2", "four", "odd", "odd2", "bias", "gain"]
    assert [s.offset for s in arena.slots] == [0, 64, 192, 204, 207, 212, 276]
    assert (arena.size, arena.decayed_size) == (280, 212)


def test_arena_views_pack_and_each():
    arena = optim.Arena.of([("a", (2, 3), True), ("b", (4,), False)])
    with tracing():
        x = leaf("param", "x", TensorType(f32, (10,)))
        views = arena.views(x)
        roots = [arena.pack(views), arena.each(lambda v: v / norm(v), x), arena.decayed(), views["a"]]
    values = np.arange(1, 11, dtype=np.float32)
    packed, each, decayed, a = evaluate(roots, {"x": values}, np)
    np.testing.assert_array_equal(packed, values)
    parts = [values[:4], values[4:]] if arena.slots[0].name == "b" else [values[:6], values[6:]]
    np.testing.assert_allclose(each, np.concatenate([v / np.linalg.norm(v) for v in parts]), rtol=1e-6)
    assert decayed.tolist() == [True] * 6 + [False] * 4
    assert a.shape == (2, 3)


def test_the_norm_is_the_fold_of_the_guard():
    with tracing():
        g = leaf("grad", "g", TensorType(f32, (7,)))
        ours, guard = toposort([norm(g)]), toposort([bind(SUM, square(g), axes=(0,))])
    assert [t.prim for t in ours][:3] == [t.prim for t in guard]


def test_decay_flag_beats_filter_beats_initialiser():
    from tracegrad import init

    def parameter(spec, decay):
        return Parameter((2,), f32, spec, decay, True, None)

    yes, no = lambda name: True, lambda name: False
    assert decays("w", parameter(init.randn(), None)) and not decays("b", parameter(init.zeros(), None))
    assert decays("b", parameter(init.zeros(), None), yes) and not decays("w", parameter(init.randn(), None), no)
    assert decays("b", parameter(init.zeros(), True), no) and not decays("w", parameter(init.randn(), False), yes)


def test_spec_is_plain_data():
    import json

    optimizer = optim.adamw(lr.linear(1.0, 0.1, 5), accumulate=2, ema=0.99, decay_filter=lambda name: True)
    spec = json.loads(json.dumps(optimizer.spec()))
    assert spec["kind"] == "adamw"
    assert spec["lr"] == {"kind": "linear", "peak": 1.0, "final": 0.1, "steps": 5}
    assert spec["hyper"] == {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01, "ema": 0.99}
    assert spec["state"] == {"accumulated": 0.0, "m": 0.0, "v": 0.0, "ema": "params"}
    assert spec["options"] == {"accumulate": 2}


@pytest.mark.parametrize(
    "make",
    [
        lambda: optim.adam(lr=-1.0),
        lambda: optim.adam(beta1=1.0),
        lambda: optim.adam(eps=-1e-8),
        lambda: optim.sgd(momentum=-0.1),
        lambda: optim.sgd(nesterov=True),
        lambda: optim.adamw(weight_decay=-1.0),
        lambda: optim.adam(clip_grad_norm=0.0),
        lambda: optim.adam(ema=1.0),
        lambda: optim.adam(accumulate=0),
        lambda: optim.muon(adjust_lr="never"),
    ],
)
def test_values_that_make_no_sense_are_refused(make):
    with pytest.raises(InputError):
        make()


def test_unknown_arguments_are_refused():
    with pytest.raises(TypeError, match=r"optim\.adam: there is no argument 'clip'"):
        optim.adam(clip=1.0)


def test_a_chain_of_ones_own_becomes_an_optimizer_with_all_options():
    """As CONTRIBUTING.md says: a transform, and a function that gives the chain. Its hyperparameter has a new name."""

    def scale_by_share(share=0.9):
        def update(g, p, state, host):
            m = state["m"] + (g - state["m"]) * host.complement("share")
            return sign(m), {"m": m}

        return optim.Transform.made({"m": 0.0}, update, None, share=share)

    @recipe("weight_decay", shaping=("plain",))
    def tiger(lr=1e-3, share=0.9, weight_decay=0.0, plain=False, **options):
        return [scale_by_share(share), *decoupled(weight_decay, options)]

    made = tiger(0.1, clip_grad_norm=1.0, groups={"b": {"lr": 0.5}})
    assert made.name == "tiger" and made.lr == 0.1 and made.off == ("weight_decay",)
    assert made.hyper == {"share": 0.9, "clip_grad_norm": 1.0, "lr@0": 0.5}
    assert made.options == {"plain": False, "groups": [["b", {"lr": 0.5}]]}
    assert made.switched_on({"weight_decay": 0.2}).hyper["weight_decay"] == 0.2
    assert made.switched_on({"weight_decay": 0.2}).lr == 0.1
    with pytest.raises(CallError, match=r"optim.tiger: there is no argument .momentum."):
        tiger(momentum=0.5)


def test_patterns_choose_parameters_as_functions_do():
    train = [optim.adamw(0.1, decay_filter=f).decay_filter for f in ("*.b", ["l1.W", "l2.b"])]
    assert [[f(n) for n in ("l1.W", "l1.b", "l2.b")] for f in train] == [[False, True, True], [True, False, True]]
    moved = []
    for only in (None, "l1.*", lambda name: name.startswith("l1.")):
        run = Run(optim.muon(0.1, only=only))
        for grads in noise(SHAPES):
            run.step(grads)
        moved.append(run.p)
    assert np.array_equal(moved[1], moved[2])
    assert not np.array_equal(moved[0], moved[1])


def test_nothing_decays():
    with tracing():
        mask = optim.Arena.of([("W", (2, 3), False)]).decayed()
    assert not evaluate([mask], {}, np)[0].any()
    assert mask.type == TensorType(bool_, (6,))
