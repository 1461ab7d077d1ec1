"""First values: the same stream everywhere, with the right statistics."""

import inspect
import json
import math
import shutil
import subprocess

import numpy as np
import pytest

import tracegrad as tg
from node import needs_node, run_node
from tracegrad import init
from tracegrad.errors import DTypeError, InputError, ShapeError
from tracegrad.runtime import draw as draw_module
from tracegrad.runtime.draw import _cos, _log, draw, uniform
from tracegrad.runtime.shaped import quantile

MASK = 0xFFFFFFFF


def mulberry32(seed):
    """The generator as its author wrote it, a draw at a time."""
    a = seed & MASK
    while True:
        a = (a + 0x6D2B79F5) & MASK
        t = ((a ^ (a >> 15)) * (a | 1)) & MASK
        t ^= (t + (((t ^ (t >> 7)) * (t | 61)) & MASK)) & MASK
        yield ((t ^ (t >> 14)) & MASK) / 4294967296


def box_muller(stream):
    """tensorgrad's: u1 is drawn first, and kept away from 0."""
    u1 = max(1e-10, next(stream))
    return math.sqrt(-2 * math.log(u1)) * math.cos(2 * math.pi * next(stream))


SPECS = [
    ((5, 3), init.randn()),
    ((7,), init.zeros()),
    ((2, 3, 3, 3), init.kaiming()),
    ((4,), init.uniform(-0.5, 0.25)),
    ((3,), init.ones()),
    ((2, 2), init.literal([[1, 2], [3, 4]])),
    ((6, 2), init.xavier()),
    ((), init.randn(1.0)),
    ((4, 3), init.normal(0.5, 2.0)),
    ((9,), init.lecun()),
    ((5, 4), init.kaiming_uniform(1.5)),
    ((2, 3, 2, 1), init.xavier_uniform()),
]
SHAPED = [
    ((40,), init.truncated_normal()),
    ((3, 5), init.truncated_normal(1.0, 0.5, 3.0, 9.0)),
    ((6,), init.truncated_normal(0.0, 0.1, -9.0, -1.0)),
    ((50,), init.truncated_normal(2.0, 1.0, -30.0, 30.0)),
    ((5, 7), init.orthogonal()),
    ((7, 5), init.orthogonal(1.7)),
    ((4, 2, 3, 3), init.orthogonal()),
    ((3, 6, 4), init.orthogonal(1.0, 1)),
    ((1, 1), init.orthogonal()),
]


@pytest.mark.parametrize("seed", [0, 1, 42, 2**32 - 1])
def test_draw_is_one_stream_through_all_parameters(seed):
    stream = mulberry32(seed)
    expected = []
    for shape, spec in SPECS:
        n = math.prod(shape)
        if isinstance(spec, init.Gaussian):
            values = [box_muller(stream) * spec.deviation(shape) + spec.center() for _ in range(n)]
        elif isinstance(spec, init.Even):
            low, high = spec.bounds(shape)
            values = [low + (high - low) * next(stream) for _ in range(n)]
        else:
            values = {"zeros": [0] * n, "ones": [1] * n, "literal": [1, 2, 3, 4]}[spec.spec()["kind"]]
        expected.append(np.array(values, np.float32).reshape(shape))
    for value, reference in zip(draw(SPECS, seed), expected, strict=True):
        assert value.dtype == np.float32
        np.testing.assert_array_equal(value, reference)


@pytest.mark.usefixtures("c_compiler")
@pytest.mark.parametrize("seed", [0, 1, 12345, 2**32 - 1, -7, 2**40 + 3])
def test_numpy_and_c_draw_the_same_bits(monkeypatch, seed):
    specs = [
        ((1536, 71), init.randn(0.02)), ((70_001,), init.uniform(-1.0, 3.0)), ((3,), init.ones()),
        ((33, 777), init.kaiming()), ((99, 1), init.xavier()), ((1,), init.randn(7.0)),
        ((99, 3), init.normal(-3.0, 0.1)), ((40, 31), init.kaiming_uniform()), ((30, 20), init.orthogonal()),
    ]  # fmt: skip
    monkeypatch.setattr(draw_module, "DRAW_IN_C", 1 << 60)
    by_numpy = [x.tobytes() for x in draw(specs, seed)]
    monkeypatch.setattr(draw_module, "DRAW_IN_C", 0)
    monkeypatch.setattr(draw_module, "uniform", None)  # NumPy has no part in what follows
    assert [x.tobytes() for x in draw(specs, seed)] == by_numpy


def test_bounds_of_numpys_types_are_numbers(monkeypatch):
    few, more = (
        init.uniform(np.float32(0.1), np.float32(0.7)),
        init.uniform(float(np.float32(0.1)), float(np.float32(0.7))),
    )
    monkeypatch.setattr(draw_module, "DRAW_IN_C", 1 << 60)
    by_numpy, same = (draw([((999,), x)], 5)[0].tobytes() for x in (few, more))
    monkeypatch.setattr(draw_module, "DRAW_IN_C", 0)
    assert by_numpy == same == draw([((999,), few)], 5)[0].tobytes()


def test_draw_over_many_chunks_equals_the_reference():
    stream = mulberry32(7)
    reference = np.array([box_muller(stream) for _ in range(50_000)]).astype(np.float32)
    np.testing.assert_array_equal(draw([((50_000,), init.randn(1.0))], 7)[0], reference)


def test_log_and_cos_are_right_to_the_last_place():
    u = np.maximum(uniform(3, 0, 200_000), 1e-10)
    for ours, theirs in ((_log(u), np.log(u)), (_cos(2 * np.pi * u), np.cos(2 * np.pi * u))):
        assert np.max(np.abs(ours - theirs) / np.spacing(np.abs(theirs))) <= 1


JAVASCRIPT = """
const LOG = [6.666666666666735130e-01, 3.999999999940941908e-01, 2.857142874366239149e-01, 2.222219843214978396e-01,
  1.818357216161805012e-01, 1.531383769920937332e-01, 1.479819860510658591e-01];
const COS = [4.16666666666666019037e-02, -1.38888888888741095749e-03, 2.48015872894767294178e-05,
  -2.75573143513906633035e-07, 2.08757232129817482790e-09, -1.13596475577881948265e-11];
const SIN = [-1.66666666666666324348e-01, 8.33333333332248946124e-03, -1.98412698298579493134e-04,
  2.75573137070700676789e-06, -2.50507602534068634195e-08, 1.58969099521155010221e-10];
function log(x) {
  let m = x, e = 0;
  while (m < 0.5) { m *= 2; e--; }
  if (m < Math.sqrt(0.5)) { m *= 2; e--; }
  const f = m - 1, s = f / (2 + f), z = s * s, w = z * z, [a, b, c, d, g, h, i] = LOG;
  const r = z * (a + w * (c + w * (g + w * i))) + w * (b + w * (d + w * h)), half = 0.5 * f * f;
  return e * 6.93147180369123816490e-01 - ((half - (s * (half + r) + e * 1.90821492927058770002e-10)) - f);
}
function cos(x) {
  const q = Math.round(x * 6.36619772367581382433e-01);   // never a tie: q is far from one
  const r = x - q * 1.57079632673412561417, w = q * 6.07710050650619224932e-11;
  const y = r - w, d = (r - y) - w, z = y * y, h = 0.5 * z, v = 1 - h, [a, b, c, e, f, g] = COS;
  const tail = z * (a + z * (b + z * (c + z * (e + z * (f + z * g)))));
  const cosine = v + (((1 - v) - h) + (z * tail - y * d));
  const [s1, s2, s3, s4, s5, s6] = SIN, cube = z * y;
  const sine = y - ((z * (0.5 * d - cube * (s2 + z * (s3 + z * (s4 + z * (s5 + z * s6))))) - d) - cube * s1);
  return [cosine, -sine, -cosine, sine, cosine][q];
}
let a = SEED >>> 0;
function next() {
  a = (a + 0x6D2B79F5) | 0;
  let t = a;
  t = Math.imul(t ^ (t >>> 15), t | 1);
  t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
  return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
}
const out = new Float32Array(COUNT);
for (let k = 0; k < COUNT; k++) {
  const u1 = Math.max(next(), 1e-10);
  out[k] = Math.sqrt(-2 * log(u1)) * cos((2 * Math.PI) * next()) * 0.02;
}
process.stdout.write(new Uint8Array(out.buffer));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node")
def test_the_recipe_in_javascript_gives_the_same_bits():
    count, seed = 100_000, 123456789
    source = JAVASCRIPT.replace("SEED", str(seed)).replace("COUNT", str(count))
    run = subprocess.run(["node", "-e", source], capture_output=True, check=True)
    theirs = np.frombuffer(run.stdout, np.float32)
    np.testing.assert_array_equal(draw([((count,), init.randn())], seed)[0], theirs)


@needs_node
@pytest.mark.parametrize("seed", [0, 77, 2**32 - 1])
def test_a_page_draws_the_same_bits(seed):
    """`reset` in an exported page begins where Python began, whatever the initialiser."""
    specs = SPECS + SHAPED
    fields = [
        {"name": str(k), "shape": list(shape), "dtype": "f32", "spec": {"init": spec.spec()}}
        for k, (shape, spec) in enumerate(specs)
    ]
    code = """const { draw } = await source('random');
      return [...draw(a[0], a[1]).values()].map((x) => [...new Uint32Array(x.buffer)]);"""
    theirs = run_node(code, fields, seed)
    for (shape, spec), bits, ours in zip(specs, theirs, draw(specs, seed), strict=True):
        assert bits == ours.reshape(-1).view(np.uint32).tolist(), (shape, spec)


@pytest.mark.parametrize(
    ("mean", "std", "low", "high"), [(0, 1, -2, 2), (1, 2, -1, 6), (0, 1, 3, 9), (0, 1, -9, -3), (5, 0.5, -40, 40)]
)
def test_truncated_normal_has_pytorchs_distribution(mean, std, low, high):
    """Kolmogorov's distance from the truncated distribution; 1.95 / sqrt(n) is exceeded once in a thousand seeds."""
    torch = pytest.importorskip("torch")
    n = 20_000
    (x,) = draw([((n,), init.truncated_normal(mean, std, low, high))], 3)
    assert x.min() >= low and x.max() <= high
    sign = -1.0 if low + high > 2 * mean else 1.0  # of the side on which probabilities are small, and exact
    a, b, z = (
        torch.special.ndtr(torch.as_tensor(sign * (np.float64(v) - mean) / std)) for v in (low, high, np.sort(x))
    )
    expected = ((z - a) / (b - a)).numpy()
    assert np.abs(expected - (np.arange(n) + 0.5) / n).max() < 1.95 / math.sqrt(n)


def test_quantiles_are_right_to_twelve_digits():
    torch = pytest.importorskip("torch")
    p = np.concatenate([np.geomspace(1e-290, 0.4, 3000), np.linspace(0.01, 0.99, 999), 1 - np.geomspace(1e-9, 0.1, 99)])
    expected = torch.special.ndtri(torch.as_tensor(p)).numpy()
    np.testing.assert_allclose(quantile(p, _log), expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(("shape", "init_"), [c for c in SHAPED if isinstance(c[1], init.Orthogonal)], ids=repr)
def test_orthogonal_matrices_are_orthogonal(shape, init_):
    (w,) = draw([(shape, init_)], 11)
    members = math.prod(shape[: init_.stacked])
    for part in w.reshape(members, shape[init_.stacked], -1).astype(np.float64):
        gram = part @ part.T if part.shape[0] <= part.shape[1] else part.T @ part
        np.testing.assert_allclose(gram, init_.gain**2 * np.eye(len(gram)), atol=1e-6)


def test_an_orthogonal_matrix_of_a_thousand_draws_stays_orthogonal():
    (w,) = draw([((160, 160), init.orthogonal())], 1)
    np.testing.assert_allclose(w.astype(np.float64) @ w.T.astype(np.float64), np.eye(160), atol=1e-6)
    assert 0 < (np.diag(w) > 0).sum() < 160  # signs are drawn, too


@pytest.mark.parametrize("name", ["kaiming_uniform", "xavier_uniform"])
@pytest.mark.parametrize("shape", [(300, 500), (64, 32, 3, 3)])
def test_uniform_ranges_are_pytorchs(name, shape):
    torch = pytest.importorskip("torch")
    w = torch.empty(*(shape if len(shape) > 2 else shape[::-1]))  # a matrix is [out, in] there
    getattr(torch.nn.init, f"{name}_")(w, **({"nonlinearity": "relu"} if name == "kaiming_uniform" else {}))
    (x,) = draw([(shape, getattr(init, name)())], 0)
    assert np.abs(x).max() == pytest.approx(w.abs().max().item(), rel=0.01)
    assert x.std() == pytest.approx(w.std().item(), rel=0.02)


def test_statistics():
    values = draw([((400, 500), init.randn(0.5)), ((200_000,), init.uniform(-1.0, 3.0))], 0)
    assert values[0].mean() == pytest.approx(0, abs=0.005)
    assert values[0].std() == pytest.approx(0.5, rel=0.01)
    assert np.mean(values[0] ** 4) == pytest.approx(3 * 0.5**4, rel=0.05)  # the fourth moment of a normal
    assert values[1].min() >= -1 and values[1].max() < 3
    assert values[1].mean() == pytest.approx(1, abs=0.02)


def test_a_uniform_of_zero_stays_finite():
    assert np.isfinite(_log(np.array([1e-10]))).all()
    assert draw([((3,), init.uniform(2.0, 2.0))], 0)[0].tolist() == [2, 2, 2]


@pytest.mark.parametrize(
    ("shape", "fan_in", "fan_out"),
    [((30, 50), 30, 50), ((8, 4, 3, 5), 60, 120), ((16,), 16, 16), ((), 1, 1), ((8, 2, 5), 10, 40)],
)
def test_fans_of_matrices_and_convolutions(shape, fan_in, fan_out):
    assert init.fans(shape) == (fan_in, fan_out)
    assert init.kaiming().deviation(shape) == pytest.approx(math.sqrt(2 / fan_in))
    assert init.xavier().deviation(shape) == pytest.approx(math.sqrt(2 / (fan_in + fan_out)))


def test_kaiming_of_a_convolution_is_pytorchs():
    torch = pytest.importorskip("torch")
    w = torch.empty(512, 16, 3, 3)
    torch.nn.init.kaiming_normal_(w, nonlinearity="relu")
    assert draw([((512, 16, 3, 3), init.kaiming())], 0)[0].std() == pytest.approx(w.std().item(), rel=0.02)


@pytest.mark.parametrize("spec", [s for _, s in SPECS + SHAPED], ids=repr)
def test_spec_round_trips_through_json(spec):
    assert init.from_spec(json.loads(json.dumps(spec.spec()))) == spec


def test_literals_take_arrays_lists_and_numbers_and_lose_nothing():
    grid = np.arange(6.0).reshape(2, 3)
    for source in (grid, grid.astype(np.float32), grid.tolist(), np.asfortranarray(grid)):
        (value,) = draw([((2, 3), init.literal(source))], 0)
        np.testing.assert_array_equal(value, grid.astype(np.float32))
    (scalar,) = draw([((), init.literal(2.5))], 0)
    assert scalar.shape == () and scalar == 2.5
    (whole,) = draw([((2,), init.literal([1, 2], dtype="i32"))], 0)
    assert whole.dtype == np.int32
    with pytest.raises(DTypeError, match="do not fit i32"):
        init.literal(np.array([0.5]), dtype="i32")


class OneParameter(tg.Module):
    def __init__(self, shape, first):
        self.w = self.param(shape, init=first)


def test_errors():
    with pytest.raises(ShapeError, match=r"the values are \[2\], the parameter is \[3\]"):
        draw([((3,), init.literal([1.0, 2.0]))], 0)
    with pytest.raises(InputError, match="low must not be above high"):
        init.uniform(1.0, 0.0)
    with pytest.raises(InputError, match=r"low must be below high, got \[2.0, 2.0\]"):
        init.truncated_normal(low=2.0)
    with pytest.raises(InputError, match="std must be above 0"):
        init.truncated_normal(std=0.0)
    with pytest.raises(ShapeError, match=r"two axes or more is needed, got \[4\]"):
        OneParameter((4,), init.orthogonal())
    with pytest.raises(InputError, match="unknown kind 'magic'"):
        init.from_spec({"kind": "magic"})


def test_what_starts_at_zero_or_one_is_not_decayed():
    assert not init.decays_by_default(init.zeros())
    assert not init.decays_by_default(init.ones())
    assert all(init.decays_by_default(s) for s in (init.randn(), init.kaiming(), init.xavier(), init.literal([1.0])))


@pytest.mark.parametrize("name", tg.init.__all__)
def test_help_shows_the_arguments_by_name(name: str) -> None:
    kinds = [p.kind for p in inspect.signature(getattr(tg.init, name)).parameters.values()]
    assert all(kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for kind in kinds)
