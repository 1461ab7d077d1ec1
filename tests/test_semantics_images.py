"""The semantics page, line by line: convolution, pooling, upsampling, captures and patches."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from oracle import call, check, rand
from tracegrad import ops
from tracegrad.dtypes import TensorType, bool_, f32, i32
from tracegrad.errors import DTypeError, ShapeError, TraceError
from tracegrad.ir import ambient
from tracegrad.ir.evaluate import evaluate
from tracegrad.ir.nodes import bind, toposort
from tracegrad.ops.windows import OVERLAP_ADD, WINDOWS
from tracegrad.prims.leaves import leaf
from tracegrad.transforms.walks import gradients

INF = np.inf


def image(name="x", *shape):
    return leaf("input", name, TensorType(f32, shape or (2, 4, 6, 7)))


GEOMETRIES = [
    {},
    {"padding": 1},
    {"stride": 2, "padding": 1},
    {"stride": (2, 1), "padding": (0, 2)},
    {"dilation": 2, "padding": 2},
    {"dilation": (1, 2), "stride": (3, 2), "padding": (1, 0)},
    {"groups": 2, "padding": 1},
    {"groups": 4, "stride": 2},
]


@pytest.mark.parametrize("how", GEOMETRIES, ids=str)
def test_conv2d(how):
    x, w = rand(2, 4, 7, 8), rand(8, 4 // how.get("groups", 1), 3, 2)
    check(lambda x, w: ops.conv2d(x, w, **how), lambda x, w: F.conv2d(x, w, **how), x, w, tol=1e-9)


@pytest.mark.parametrize("how", GEOMETRIES, ids=str)
def test_conv_transpose2d(how):
    g = how.get("groups", 1)
    x, w = rand(2, 8, 4, 5), rand(8, 4 // g, 3, 4)
    extra = {"output_padding": (1, 0)} if how.get("stride", 1) != 1 else {}
    check(
        lambda x, w: ops.conv_transpose2d(x, w, **how, **extra),
        lambda x, w: F.conv_transpose2d(x, w, **how, **extra),
        x, w, tol=1e-9,
    )  # fmt: skip


@pytest.mark.parametrize("padding", [0, 1, 2, 3])
@pytest.mark.parametrize("extra", [1, (2, 0), (1, 2)], ids=str)
def test_output_padding_below_the_dilation(extra, padding):
    """Rows beyond the stride: with padding the filters still reach them, without they are zeros."""
    x, w = rand(2, 4, 4, 5), rand(4, 3, 3, 2)
    how = {"stride": (1, 2), "dilation": 3, "output_padding": extra, "padding": padding}
    check(lambda x, w: ops.conv_transpose2d(x, w, **how), lambda x, w: F.conv_transpose2d(x, w, **how), x, w, tol=1e-9)


@pytest.mark.parametrize("how", [{}, {"padding": 2, "stride": 2}, {"groups": 2, "dilation": 3}], ids=str)
def test_conv1d(how):
    x, w = rand(2, 4, 11), rand(6, 4 // how.get("groups", 1), 3)
    check(lambda x, w: ops.conv1d(x, w, **how), lambda x, w: F.conv1d(x, w, **how), x, w, tol=1e-9)


def test_conv2d_with_unit_kernel_and_stride_beyond_the_kernel():
    for k, s in ((1, 1), (1, 2), (2, 3)):
        x, w = rand(2, 3, 8, 7), rand(4, 3, k, k)
        check(lambda x, w, s=s: ops.conv2d(x, w, s), lambda x, w, s=s: F.conv2d(x, w, stride=s), x, w, tol=1e-9)


def test_convolution_has_second_derivatives():
    x, w, ct = rand(1, 2, 5, 5), rand(3, 2, 3, 3), rand(1, 3, 3, 3)
    tx, tw = (torch.tensor(a, requires_grad=True) for a in (x, w))
    y = F.conv2d(tx, tw, stride=2, padding=1)
    first = torch.autograd.grad((y**2 * torch.tensor(ct)).sum(), [tx, tw], create_graph=True)
    expected = torch.autograd.grad(sum((g**2).sum() for g in first), [tx, tw])
    with ambient.tracing():
        a, b = image("x", *x.shape), image("w", *w.shape)
        y = ops.conv2d(a, b, 2, 1)
        first = gradients((ops.square(y) * image("ct", *ct.shape)).sum(), [a, b])
        second = gradients(ops.square(first[0]).sum() + ops.square(first[1]).sum(), [a, b])
        got = evaluate(second, {"x": x, "w": w, "ct": ct}, np)
    for g, e in zip(got, expected, strict=True):
        np.testing.assert_allclose(g, e, rtol=1e-9)


def test_a_convolution_and_its_gradients_are_one_product_each():
    with ambient.tracing():
        x, w = image("x", 2, 3, 8, 8), image("w", 4, 3, 3, 3)
        loss = ops.conv2d(x, w, padding=1).sum()
        nodes = toposort(gradients(loss, [x, w]))
    assert sorted(n.prim.name for n in nodes if n.prim.family == "composite") == ["conv_transpose2d", "conv_weight"]


def test_convolution_errors():
    with ambient.tracing():
        x = image()
        with pytest.raises(ShapeError, match=r"conv2d: channels do not fit: x is f32\[2,4,6,7\](.|\n)*test_semantics"):
            ops.conv2d(x, image("w", 8, 3, 3, 3))
        with pytest.raises(ShapeError, match="groups=3"):
            ops.conv2d(x, image("w", 9, 2, 3, 3), groups=3)
        with pytest.raises(ShapeError, match=r"conv2d: w must be filters of rank 4, got f32\[8,4,3\]"):
            ops.conv2d(x, image("w", 8, 4, 3))
        with pytest.raises(ShapeError, match=r"conv2d: x must be images \[B,C,H,W\], got f32\[4,6,7\]"):
            ops.conv2d(image("x", 4, 6, 7), image("w", 8, 4, 3, 3))
        with pytest.raises(ShapeError, match=r"a window of 7x3 .* does not fit an image of 6x7 with padding 0x0"):
            ops.conv2d(x, image("w", 8, 4, 7, 3))
        for bad in (0, -1, (1, 2, 3), 1.5):
            with pytest.raises(ShapeError, match="conv2d: stride must be one or two integers of at least 1"):
                ops.conv2d(x, image("w", 8, 4, 3, 3), stride=bad)
        with pytest.raises(ShapeError, match="output_padding 2 must be less than stride 2"):
            ops.conv_transpose2d(x, image("w", 4, 2, 3, 3), stride=2, output_padding=2)
        with pytest.raises(ShapeError, match="conv1d: x must be"):
            ops.conv1d(x, image("w", 4, 2, 3))
        with pytest.raises(DTypeError, match="conv2d: takes f32"):
            ops.conv2d(leaf("input", "n", TensorType(i32, (1, 1, 4, 4))), image("w", 1, 1, 2, 2))


POOLS = [
    (2, None, 0), (3, 2, 1), (2, 1, 1), ((2, 3), (3, 2), (1, 0)), (3, None, 1), (2, 3, 0), (4, 4, (2, 1)), (5, 1, 2),
]  # fmt: skip


@pytest.mark.parametrize(("kernel", "stride", "padding"), POOLS, ids=str)
@pytest.mark.parametrize("name", ["max_pool2d", "avg_pool2d"])
def test_pooling(name, kernel, stride, padding):
    check(
        lambda x: getattr(ops, name)(x, kernel, stride, padding),
        lambda x: getattr(F, name)(x, kernel, stride, padding),
        rand(2, 3, 9, 10), tol=1e-9,
    )  # fmt: skip


# windows whose rows are pooled first
LONG = [(5, 1, 2), (5, 2, (2, 1)), ((6, 3), (1, 2), (3, 1)), (7, 3, 3)]


@pytest.mark.parametrize(("kernel", "stride", "padding"), [(2, None, 0), (3, 1, 1), (3, 2, 1), *LONG], ids=str)
def test_max_pool2d_ties_go_to_the_first_in_scan_order(kernel, stride, padding):
    x = np.random.default_rng(0).integers(0, 3, (2, 2, 8, 8)).astype(np.float64)
    check(lambda x: ops.max_pool2d(x, kernel, stride, padding), lambda x: F.max_pool2d(x, kernel, stride, padding), x)
    x = np.zeros((1, 1, 6, 6))
    check(lambda x: ops.max_pool2d(x, kernel, stride, padding), lambda x: F.max_pool2d(x, kernel, stride, padding), x)


@pytest.mark.parametrize(("kernel", "stride", "padding"), [(2, None, 0), (3, 1, 1), ((1, 3, 2), (2, 1, 2), (0, 1, 1))])
@pytest.mark.parametrize("name", ["max_pool3d", "avg_pool3d"])
def test_pools_of_volumes_with_ties(name, kernel, stride, padding):
    x = np.random.default_rng(0).integers(0, 3, (2, 2, 5, 6, 4)).astype(np.float64)
    one, other = getattr(ops, name), getattr(F, name)
    check(lambda x: one(x, kernel, stride, padding), lambda x: other(x, kernel, stride, padding), x, tol=1e-9)
    with ambient.tracing(), pytest.raises(ShapeError, match=name + r": x must be volumes \[B,C,D,H,W\], got"):
        one(image(), 2)


@pytest.mark.parametrize(("kernel", "stride", "padding"), [(3, 2, 1), *LONG], ids=str)
def test_padding_never_wins(kernel, stride, padding):
    x = -np.abs(rand(1, 1, 6, 6)) - 1
    y, (g,) = call(lambda x: ops.max_pool2d(x, kernel, stride, padding), x)
    assert (y < 0).all()
    assert g.sum() == y.size
    x[:] = -INF  # as low as padding, and still the image wins
    y, (g,) = call(lambda x: ops.max_pool2d(x, kernel, stride, padding), x)
    assert (y == -INF).all()
    assert g.sum() == y.size


def test_pooling_errors():
    with ambient.tracing():
        x = image()
        with pytest.raises(ShapeError, match="max_pool2d: padding 2x2 is more than half of 2x2"):
            ops.max_pool2d(x, 2, padding=2)
        with pytest.raises(ShapeError, match="avg_pool2d: a window of 8x8"):
            ops.avg_pool2d(x, 8)
        with pytest.raises(ShapeError, match="max_pool2d: kernel_size must be"):
            ops.max_pool2d(x, 0)


@pytest.mark.parametrize("scale", [1, 2, (3, 2)])
def test_nearest_upsample2d(scale):
    check(lambda x: ops.nearest_upsample2d(x, scale), lambda x: F.interpolate(x, scale_factor=scale), rand(2, 3, 4, 5))


@pytest.mark.parametrize("how", [((3, 2), 1, 0), (2, 2, 1), (3, (2, 1), (1, 0))], ids=str)
def test_im2col(how):
    kernel, stride, padding = how
    check(
        lambda x: ops.im2col(x, *how),
        lambda x: F.unfold(x, kernel, stride=stride, padding=padding).transpose(1, 2),
        rand(2, 3, 6, 7),
    )


# captures and patches
@pytest.mark.parametrize(("kernel", "stride", "padding", "dilation"), [(7, 7, 3, 1), (2, 2, 1, 2), (2, 1, 0, 1)])
def test_windows_add_up_where_they_were_read(kernel, stride, padding, dilation):
    """Side by side, with more padding than a view of whole windows has; apart; and one element further each."""
    how = {"stride": (stride,) * 2, "padding": (padding,) * 2, "dilation": (dilation,) * 2}
    x = image("x", 2, 1, 9, 8)
    windows = bind(WINDOWS, x, kernel=(kernel,) * 2, **how)
    c = leaf("input", "c", windows.type)
    back = bind(OVERLAP_ADD, c, size=(9, 8), **how)
    env = {"x": rand(2, 1, 9, 8).astype(np.float64), "c": rand(*windows.shape).astype(np.float64)}
    there, here = ((windows * c).sum(), (x * back).sum())
    np.testing.assert_allclose(*evaluate([there, here], env, np), rtol=1e-12)
    if dilation == 1:
        columns = c.permute((0, 2, 3, 1, 4, 5)).reshape((2, -1, kernel**2))
        folded = ops.col2im(columns, (2, 1, 9, 8), kernel, stride=stride, padding=padding)
        np.testing.assert_array_equal(*evaluate([folded, back], env, np))


def test_capture_records_and_returns():
    with ambient.tracing() as running:
        x = image("x", 2, 3)
        y = ops.exp(x)
        assert ops.capture("y", y) is y  # the line that the error names
        assert running.captures == {"y": y}
        with pytest.raises(TraceError, match=r"capture: the name 'y' is taken(.|\n)*is y"):
            ops.capture("y", x)
        with pytest.raises(TraceError, match="must be a string"):
            ops.capture("", x)
        ops.patch("y", x)  # sites of different kinds do not collide
    with pytest.raises(TraceError, match="capture: there is no trace here"):
        ops.capture("y", y)


@pytest.mark.parametrize("dtype", [f32, i32, bool_])
def test_patch_overwrites_where_asked(dtype):
    x = np.array([[1, 0, 1], [1, 1, 0]]).astype(dtype.numpy)
    mask = np.array([[True, False, True], [False, False, True]])
    value = (1 - x).astype(dtype.numpy)
    with ambient.tracing(patching=True) as running:
        t = leaf("input", "x", TensorType(dtype, x.shape))
        y = ops.patch("site", t)
        assert [str(s).split("  #")[0] for s in running.sites.values()] == [f"patch site: {dtype}[2,3]"]
        with pytest.raises(TraceError, match="patch: the name 'site' is taken"):
            ops.patch("site", y)
        leaves = {n.name: (n.attrs["role"], str(n.type)) for n in toposort([y]) if n.prim.name == "leaf"}
        got = evaluate([y], {"x": x, "patch.site.mask": mask, "patch.site.value": value}, np)[0]
    assert leaves == {
        "x": ("input", f"{dtype}[2,3]"),
        "patch.site.mask": ("patch", "bool[2,3]"),
        "patch.site.value": ("patch", f"{dtype}[2,3]"),
    }
    np.testing.assert_array_equal(got, np.where(mask, value, x))


def test_patch_is_not_there_unless_the_trace_is_for_patching():
    with ambient.tracing() as running:
        x = image("x", 3)
        assert ops.patch("p", x) is x and ("patch", "p") in running.sites


def test_patch_stops_the_gradient_where_it_overwrites():
    with ambient.tracing(patching=True):
        x = image("x", 3)
        (g,) = gradients((ops.patch("p", x * 2.0)).sum(), [x])
        env = {"patch.p.mask": np.array([True, False, True]), "patch.p.value": np.zeros(3), "x": np.ones(3)}
        np.testing.assert_array_equal(evaluate([g], env, np)[0], [0, 2, 0])
