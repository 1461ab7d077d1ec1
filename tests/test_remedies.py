"""Names of PyTorch, NumPy and JAX: each exists here, or its error says what to write, and the formulas are right."""

# pyright: basic

from __future__ import annotations

import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.overrides import get_overridable_functions

import tracegrad as tg
from tracegrad import linalg, nn, optim

# Inner functions that users do not call
INNER = re.compile(
    r"batch_norm_.*|.*torch_function.*|sym_.*|unsafe_.*|boolean_dispatch|assert_int_or_pair|S\w+Type|\w+Error|\w+Warning"
    r"|get_scaled_dot_general_config|scaled_dot_general|fused_moving_avg_obs_fake_quant|float[468]_\w+"
    r"|get_device|hash_tensor|is_distributed|nonzero_static|slice_inverse|LinearCrossEntropyOptions"
    r"|Uninitialized\w+|factory_kwargs|swap_in_.*"
)
# Suggestions that differ from the name in more than case and separators
ALIKE = {
    "CosineSimilarity", "KLDivLoss", "Softmax2d", "LinearCrossEntropyLoss", "linear_cross_entropy", "SyncBatchNorm",
    "around", "dtype", "fabs", "flatiter", "grid_sampler", "grid_sampler_2d", "grid_sampler_3d", "isnat", "outer",
    "sgn", "take_along_dim",
}  # fmt: skip


def public(module: Any) -> set[str]:
    return {n for n in dir(module) if not n.startswith("_") and callable(getattr(module, n))}


LISTS = {
    "torch": (tg, {f.__name__ for f in get_overridable_functions()[torch] if not f.__name__.startswith("_")}),
    "torch.nn": (nn, public(torch.nn)),
    "torch.nn.functional": (tg, {n for n in public(F) if (getattr(F, n).__module__ or "torch").startswith("torch")}),
    "torch.linalg": (linalg, public(torch.linalg)),
    "torch.optim": (optim, {n for n in public(torch.optim) if n[0].isupper()}),
    "numpy": (tg, public(np)),
    "numpy.linalg": (linalg, public(np.linalg)),
    "jax.numpy": (tg, public(jnp)),
    "jax.nn": (tg, public(jax.nn)),
}


def plain(name: str) -> str:
    return name.replace("_", "").lower().removesuffix("loss").removesuffix("layer")


@pytest.mark.parametrize("library", LISTS)
def test_every_public_name_exists_or_has_a_remedy(library: str) -> None:
    module, names = LISTS[library]
    assert len(names) >= 10
    bad = []
    for name in sorted(names):
        said = message(module, name)
        near = re.search(r"did you mean (\w+\.)+(\w+)\?", said)
        far = near and plain(near[2]) != plain(name) and name not in ALIKE
        if (far or "lists what it has" in said) and not INNER.fullmatch(name):
            bad.append((name, said))
    assert not bad


def message(module: Any, name: str) -> str:
    """The error for a name that a module lacks, or ""."""
    try:
        getattr(module, name)
    except AttributeError as e:
        return str(e).splitlines()[0]
    return ""


def test_layers_that_are_functions_say_how_sequential_takes_them() -> None:
    assert "did you mean tg.relu? It is a function; nn.Sequential takes functions too" in message(nn, "ReLU")
    assert message(tg, "relu_") == "tracegrad has no 'relu_': tensors never change: use the result of tg.relu(x)"
    assert "np.kaiser" not in message(tg, "kaiser") and "np.nextafter" in message(tg, "nextafter")


rng = np.random.default_rng(3)
X, Y = (rng.normal(size=(4, 5)).astype(np.float32) for _ in range(2))
P = np.abs(X) + 0.1
WIDE = np.array([0.0, 0.3, -0.3, 1, -2.5, 1e10, -1e30, np.inf, -np.inf], np.float32)
STEEP = np.append(1 + abs(WIDE), [1.001, 1e4, 1.2e4, 1.8e38, 3.3e38]).astype(np.float32)
IMAGES = rng.normal(size=(2, 6, 4, 4)).astype(np.float32)
LABELS = np.array([0, 4, 2, 2])
SQUARE = (X[:, :4] @ X[:, :4].T + 4 * np.eye(4)).astype(np.float32)
T = torch.from_numpy
LRN = {"alpha": 0.1, "beta": 0.75, "k": 1.0}

# name -> (the names that its formula uses, the values of the original)
FORMULAS: dict[str, tuple[dict[str, Any], Any]] = {
    "block_diag": ({"a": X, "b": Y, "m": 5, "n": 5}, torch.block_diag(T(X), T(Y))),
    "vander": ({"x": X[0], "n": 4}, np.vander(X[0], 4)),
    "local_response_norm": (
        {"x": IMAGES, "n": 3, "c": 6, "k": 1.0, "alpha": 0.1, "beta": 0.75}, F.local_response_norm(T(IMAGES), 3, **LRN),
    ),
    "multi_margin_loss": ({"x": tg.tensor(X), "y": LABELS, "c": 5}, F.multi_margin_loss(T(X), T(LABELS))),
    "multilabel_soft_margin_loss": (
        {"logits": X, "targets": (Y > 0).astype(np.float32)}, F.multilabel_soft_margin_loss(T(X), T(Y > 0).float()),
    ),
    "lp_pool2d": ({"x": tg.tensor(np.abs(IMAGES)), "k": 2, "p": 3}, F.lp_pool2d(T(np.abs(IMAGES)), 3, 2)),
    "channel_shuffle": (
        {"x": tg.tensor(IMAGES), "g": 3, "b": 2, "c": 6, "h": 4, "w": 4}, F.channel_shuffle(T(IMAGES), 3),
    ),
    "copysign": ({"a": X, "b": Y}, np.copysign(X, Y)),
    "cov": ({"x": tg.tensor(X), "n": 5}, np.cov(X)),
    "trapezoid": ({"y": tg.tensor(X[0]), "dx": 0.5}, np.trapezoid(X[0], dx=0.5)),
    "qr": ({"A": tg.tensor(X.T)}, np.linalg.qr(X.T)[0] * np.sign(np.diag(np.linalg.qr(X.T)[1]))),
    "cholesky_solve": (
        {"L": tg.linalg.cholesky(SQUARE), "b": X}, torch.cholesky_solve(T(X), torch.linalg.cholesky(T(SQUARE))),
    ),
    "diag_embed": ({"x": tg.tensor(X), "n": 5}, torch.diag_embed(T(X))),
    "xlogy": ({"x": tg.tensor([0.0, 2.0]), "y": tg.tensor([0.0, 3.0])}, torch.xlogy(T(np.array([0.0, 2])), 3.0)),
    "mvlgamma": ({"x": tg.tensor(P + 2), "p": 3}, torch.mvlgamma(T(P + 2), 3)),
    "sinc": ({"x": tg.tensor([0.0, 0.5, -1.3])}, np.sinc([0.0, 0.5, -1.3])),
    "logaddexp2": ({"a": X, "b": Y}, np.logaddexp2(X, Y)),
    "matrix_power": ({"x": tg.tensor(SQUARE), "k": 3, "n": 4}, np.linalg.matrix_power(SQUARE, 3)),
    "renorm": ({"x": X, "axis": 1, "most": 1.5}, torch.renorm(T(X), 2, 0, 1.5)),
    "cbrt": ({"x": X}, np.cbrt(X)),
    "log2": ({"x": tg.tensor(P)}, np.log2(P)),
    "log10": ({"x": tg.tensor(P)}, np.log10(P)),
    "exp2": ({"x": tg.tensor(X)}, np.exp2(X)),
    "diff": ({"x": X}, np.diff(X)),
    "trunc": ({"x": WIDE}, np.trunc(WIDE)),
    "frac": ({"x": 3 * X}, torch.frac(T(3 * X))),
    "acosh": ({"x": tg.tensor(STEEP)}, np.arccosh(STEEP)),
    "asinh": ({"x": tg.tensor(WIDE)}, np.arcsinh(WIDE)),
    "atanh": ({"x": tg.tensor(P / 8)}, np.arctanh(P / 8)),
    "hypot": ({"x": X, "y": Y}, np.hypot(X, Y)),
    "kron": ({"a": X, "b": Y, "rows": 16, "columns": 25}, np.kron(X, Y)),
    "rot90": ({"x": X}, np.rot90(X)),
    "hvp": (
        {"f": lambda x: tg.sum(tg.exp(x)), "x": X, "v": Y}, np.exp(X) * Y,
    ),
    "log1mexp": ({"x": tg.tensor(P)}, np.log(1 - np.exp(-P))),
    "logmeanexp": ({"x": X, "axis": 1, "n": 5}, np.log(np.exp(X).mean(1))),
    "squareplus": ({"x": X}, jax.nn.squareplus(X)),
    "sparse_plus": ({"x": X}, jax.nn.sparse_plus(X)),
    "sparse_sigmoid": ({"x": X}, jax.nn.sparse_sigmoid(X)),
    "standardize": ({"x": tg.tensor(X)}, jax.nn.standardize(X)),
    "log_cosh": ({"x": X, "y": Y}, np.log(np.cosh(X - Y))),
    "ndtr": ({"x": X}, torch.special.ndtr(T(X))),
    "entr": ({"x": P}, torch.special.entr(T(P))),
    "matrix_transpose": ({"x": IMAGES}, IMAGES.swapaxes(-1, -2)),
    "heaviside": ({"x": X}, np.heaviside(X, 0)),
    "NLLLoss2d": (
        {"log_probs": tg.tensor(IMAGES), "targets": np.full((2, 4, 4), 3)}, -IMAGES[:, 3].mean(),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMULAS)
def test_formulas_of_remedies_give_the_numbers_of_the_original(name: str) -> None:
    """A remedy is `write EXPRESSION`, and can add `, with NAME = EXPRESSION and ...`, or end in a further sentence."""
    given, expected = FORMULAS[name]
    text = message(nn if name[0].isupper() else tg, name).split(": write ", 1)[1].split("; ")[0]
    formula, _, where = text.partition(", with ")
    env: dict[str, Any] = {"tg": tg, "math": math, "np": np, **given}
    for each in where.split(" and ") if where else ():
        variable, _, value = each.partition(" = ")
        env[variable] = eval(value, env)
    formula = formula.partition(", for a of")[0].partition(", one in")[0]
    got = np.asarray(eval(formula, env))
    np.testing.assert_allclose(got, np.asarray(expected), rtol=2e-5, atol=1e-5)
