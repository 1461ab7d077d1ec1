"""Images read at any position: `grid_sample`, and the positions that an affine map gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracegrad.dtypes import f32, i32
from tracegrad.errors import InputError, ShapeError
from tracegrad.ir.nodes import Tensor
from tracegrad.methods import op
from tracegrad.ops.constants import linspace, meshgrid, ones
from tracegrad.ops.indexing import take_along_axis
from tracegrad.ops.joining import stack
from tracegrad.ops.linalg import matmul
from tracegrad.ops.math import clip
from tracegrad.ops.shaping import sizes_of, swapaxes
from tracegrad.prims.elementwise import cast, floor, round, stop_gradient, where
from tracegrad.prims.leaves import as_tensor
from tracegrad.prims.maps import float_type
from tracegrad.prims.views import broadcast_to, reshape

__all__ = ["affine_grid", "grid_sample"]


@op
def affine_grid(theta: Any, size: Sequence[int], align_corners: bool = False) -> Tensor:
    """Return the grid with which `grid_sample` applies an affine map to images.

    out[b, i, j] = theta[b] @ (x[j], y[i], 1), where (x[j], y[i]) is the centre of pixel [i, j], from -1 to 1

    theta:         f32 [B, 2, 3]: for each image, a matrix from a position in the result to the position to read. The
                   matrix [[1, 0, 0], [0, 1, 0]] changes nothing.
    size:          the shape [B, C, H, W] of the result of `grid_sample`.
    align_corners: what -1 and 1 are: True for the centres of the outermost pixels, False for the borders of the image.
                   Give `grid_sample` the same.
    Returns:       f32 [B, H, W, 2], with x (along the width) before y.
    Gradient:      to `theta`.
    Raises:        ShapeError if shapes do not fit; DTypeError if `theta` is not f32.

    As torch.nn.functional.affine_grid of images (Jaderberg et al. 2015).

    >>> tg.affine_grid([[[1.0, 0.0, 0.5], [0.0, 1.0, 0.0]]], (1, 1, 1, 2))    # x + 0.5
    tensor([[[[0., 0.],
              [1., 0.]]]])
    """
    theta, sizes = as_tensor(theta), sizes_of(size)
    float_type(theta.type)
    if len(sizes) != 4 or theta.shape != (sizes[0], 2, 3):
        raise ShapeError(f"theta must be f32[B,2,3] and size [B,C,H,W], got {theta.type} and {list(sizes)}")
    b, _, *image = sizes
    ends = [1.0 - (0.0 if align_corners else 1.0 / n) if n > 1 else 0.0 for n in image]
    y, x = meshgrid(*[linspace(-end, end, n) for end, n in zip(ends, image)], indexing="ij")
    base = reshape(stack([x, y, ones(x.shape)], 2), (1, x.size, 3))
    return reshape(matmul(base, swapaxes(theta, 1, 2)), (b, *image, 2))


@op
def grid_sample(
    x: Any, grid: Any, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: bool = False
) -> Tensor:
    """Read images at the positions of a grid, and interpolate between pixels.

    out[b, :, i, j] = x[b] at column grid[b, i, j, 0] and row grid[b, i, j, 1]; -1 is left or top, 1 right or bottom

    x:             f32 [B, C, H, W].
    grid:          f32 [B, H', W', 2].
    mode:          "bilinear" interpolates between the four nearest pixels; "nearest" takes the nearest one, and the
                   even row or column at a tie.
    padding_mode:  "zeros": pixels outside of the image are 0, also those that "bilinear" blends in at its edges.
                   "border": each coordinate is clamped to the range between the outermost pixels' centres.
    align_corners: what -1 and 1 are: True for the centres of the outermost pixels, False for the borders of the image.
    Returns:       f32 [B, C, H', W'].
    Gradient:      to `x`; for "bilinear" also to `grid`. With "border" it is 0 to a coordinate on or outside of the
                   outermost centres.
    Raises:        ShapeError if shapes do not fit; InputError for another mode; DTypeError if one is not f32.

    As torch.nn.functional.grid_sample of images, without padding_mode="reflection" and mode="bicubic".

    >>> x = np.array([[[[0.0, 1.0], [2.0, 3.0]]]], np.float32)
    >>> tg.grid_sample(x, [[[[0.0, 0.0], [-0.5, -0.5]]]])    # the middle, then the centre of the first pixel
    tensor([[[[1.5, 0. ]]]])
    """
    x, grid = as_tensor(x), as_tensor(grid)
    float_type(x.type)
    float_type(grid.type)
    if mode not in ("bilinear", "nearest") or padding_mode not in ("zeros", "border"):
        raise InputError(
            f"mode must be 'bilinear' or 'nearest' and padding_mode 'zeros' or 'border', got {mode!r}, {padding_mode!r}"
        )
    if x.ndim != 4 or grid.ndim != 4 or grid.shape[::3] != (x.shape[0], 2) or not x.size:
        raise ShapeError(f"x must be [B,C,H,W] and grid [B,H',W',2], got {x.type} and {grid.type}")
    parts: list[list[tuple[Tensor, Tensor]]] = []
    for k, n in ((1, x.shape[2]), (0, x.shape[3])):
        at = grid[..., k]
        at = (at + 1.0) * ((n - 1) / 2) if align_corners else ((at + 1.0) * n - 1.0) * 0.5
        if padding_mode == "border":
            at = where((at > 0.0) & (at < float(n - 1)), at, clip(stop_gradient(at), 0.0, float(n - 1)))
        weighted = [(round(at), ones(at.shape))]
        if mode == "bilinear":
            first = floor(at)
            weighted = [(first, first + 1.0 - at), (first + 1.0, at - first)]
        parts.append([(p, _inside(w, p, n)) for p, w in weighted])
    corners = [_read(x, r, c) * _channels(a * b, x) for r, a in parts[0] for c, b in parts[1]]
    return sum(corners[1:], corners[0])


def _inside(weight: Tensor, place: Tensor, n: int) -> Tensor:
    """Return `weight` at places from 0 to n - 1, else 0."""
    return weight * cast((place >= 0.0) & (place <= float(n - 1)), f32)


def _channels(t: Tensor, x: Tensor) -> Tensor:
    b, *places = t.shape
    return broadcast_to(reshape(t, (b, 1, *places)), (b, x.shape[1], *places))


def _read(x: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Return the pixels at integral positions, which are limited to the image."""
    b, c, h, w = x.shape
    flat = cast(clip(row, 0.0, float(h - 1)), i32) * w + cast(clip(column, 0.0, float(w - 1)), i32)
    places = reshape(_channels(flat, x), (b, c, row.size // b))
    return reshape(take_along_axis(reshape(x, (b, c, h * w)), places, 2), (b, c, *row.shape[1:]))
