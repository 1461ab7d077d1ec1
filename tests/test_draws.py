"""Numbers that Python, NumPy or PyTorch draw inside a loss or forward are constants: a warning says so, at the line."""

import random
import subprocess
import sys
import warnings

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import nn, optim

RNG, OLD, PLAIN = np.random.default_rng(0), np.random.RandomState(0), random.Random(0)


class Model(tg.Module):
    def __init__(self):
        self.l = nn.Linear(3, 1)

    def __call__(self, x):
        return self.l(x)


class Noisy(Model):
    def __call__(self, x):
        return self.l(x) + RNG.normal(size=(4, 1))


def helper(x):
    return x * np.random.rand()


def compiled(loss, model=None):
    inputs = {"x": (4, 3)}
    return tg.compile(model=model or Model(), loss=loss, inputs=inputs, optimizer=optim.sgd(0.1), seed=0, device="cpu")


def legacy(m, x):
    scale = 2.0
    return tg.mean(m(x) * scale + np.random.randn(4, 1))


def of_helper(m, x):
    y = m(x)
    return tg.mean(helper(y))


def plain(m, x):
    if random.gauss(0.0, 1.0) < 0.5:
        return tg.mean(m(x))
    return tg.sum(m(x))


def of_old(m, x):
    return tg.mean(m(x)) * float(OLD.uniform())


def of_plain(m, x):
    return tg.mean(m(x)) * PLAIN.random()


def of_torch(m, x):
    torch = pytest.importorskip("torch")
    noise = torch.randn(4, 1)
    return tg.mean(m(x) + noise.numpy())


CASES = [
    (legacy, "np.random", "np.random.randn(4, 1)"), (of_helper, "np.random", "return x * np.random.rand()"),
    (plain, "random", "if random.gauss"), (of_old, "OLD", "OLD.uniform"), (of_plain, "PLAIN", "PLAIN.random"),
    (of_torch, "torch", "noise = torch.randn(4, 1)"),
]  # fmt: skip


@pytest.mark.parametrize(("loss", "name", "line"), CASES, ids=[c[0].__name__ for c in CASES])
def test_a_loss_that_draws_warns_at_its_line(loss, name, line):
    with pytest.warns(UserWarning, match=f"^{name} drew numbers .*tg.randn") as caught, compiled(loss):
        pass
    (w,) = [w for w in caught if "drew numbers" in str(w.message)]
    assert w.filename == __file__ and line in str(w.message)
    with open(__file__, encoding="utf-8") as f:
        assert line in f.readlines()[w.lineno - 1]


def test_generators_in_a_module_a_closure_and_a_forward():
    with pytest.warns(UserWarning, match="^RNG drew"), compiled(lambda m, x: tg.mean(m(x)), Noisy()):
        pass
    rng = np.random.default_rng(1)
    with pytest.warns(UserWarning, match="^rng drew"), compiled(lambda m, x: tg.mean(m(x)) * rng.normal()) as train:
        with pytest.warns(UserWarning, match="^rng drew"):
            infer = train.attach(forward=lambda m, x: m(x) * rng.normal(), inputs={"x": (None, 3)})
            assert infer.run(x=np.ones((2, 3))).output.shape == (2, 1)
        with pytest.warns(UserWarning, match="^rng drew"):
            train.replace_model(Model())


def test_the_generators_go_on_as_without_the_check():
    np.random.seed(3)
    expected = np.random.RandomState(3).randn(5, 1)
    with pytest.warns(UserWarning, match="drew"), compiled(legacy):
        pass
    assert np.random.randn() == expected[4]


def test_draws_outside_of_the_trace_are_no_alarm():
    class Drawn(Model):
        def __init__(self):
            super().__init__()
            self.noise = np.random.randn(4, 1)
            self.w = self.param((3, 1), init=tg.init.literal(RNG.normal(size=(3, 1))))

    def loss(m, x):
        return tg.mean(m(x) + m.noise + tg.randn((4, 1)) + x @ m.w)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with compiled(loss, Drawn()) as train:
            train.step(x=np.random.randn(4, 3)).result()
            train.fit([(RNG.normal(size=(4, 3)),)], epochs=2, progress=False)


def test_a_function_that_is_the_first_to_use_numpys_generators_is_noticed():
    code = (
        "import sys, warnings, numpy as np, tracegrad as tg\n"
        "class M(tg.Module):\n"
        "    def __init__(self): self.w = self.param(3)\n"
        "def loss(m, x): return tg.sum(m.w * x * np.random.rand())\n"
        "assert 'numpy.random' not in sys.modules\n"
        "with warnings.catch_warnings(record=True) as seen:\n"
        "    warnings.simplefilter('always')\n"
        "    tg.compile(model=M(), loss=loss, inputs={'x': (3,)}, optimizer=tg.optim.sgd(0.1), device='cpu').close()\n"
        "print([str(w.message)[:16] for w in seen])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "['np.random drew n']", done.stderr


class Augmentation:
    """No module: an object that a module in a list holds."""

    def __init__(self):
        self.rng = np.random.default_rng(0)

    def __call__(self, x):
        return x + self.rng.normal()


class Deep(Model):
    def __init__(self):
        super().__init__()
        self.parts = [{"first": Model()}, Model()]
        self.parts[0]["first"].augment = Augmentation()

    def __call__(self, x):
        return self.l(self.parts[0]["first"].augment(x))


def test_a_generator_deep_in_a_model_is_noticed():
    with pytest.warns(UserWarning) as caught:
        compiled(lambda m, x: tg.mean(m(x)), Deep()).close()
    [told] = [str(w.message) for w in caught if "rng drew numbers" in str(w.message)]
    assert "self.rng.normal()" in told
