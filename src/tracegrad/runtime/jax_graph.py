"""A graph as a function of JAX's arrays: each row's array rule under jax.numpy, or its `xla` rule if it has one."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, NamedTuple

from tracegrad.arrays import Array
from tracegrad.ir.evaluate import array_rule
from tracegrad.ir.graph import Graph
from tracegrad.ir.nodes import Tensor, rebind, toposort
from tracegrad.passes.expand import expand_composites
from tracegrad.passes.pieces import join_places
from tracegrad.prims.elementwise import WHERE
from tracegrad.prims.leaves import LEAF
from tracegrad.prims.views import BROADCAST, RESHAPE
from tracegrad.runtime.jax_memory import jax, jnp
from tracegrad.runtime.jax_mesh import Layout
from tracegrad.transforms.loops import Body
from tracegrad.tuning import GATHERED_APART, GATHERED_TOGETHER, SHARED_BY


class Split:
    """FSDP inside a step: an op gathers the parameters that it reads, and gradients are summed into their parts.

    XLA alone gathers parameters more often than they are read, and sums each gradient twice, on all devices.
    """

    def __init__(self, layout: Layout, gradients: Set[int], elements: int) -> None:
        """gradients: serials of the nodes that compute the gradients of single parameters.

        elements: the size of all parameters together.
        """
        self._layout, self.gradients, self._apart = layout, gradients, elements > GATHERED_TOGETHER
        self._views: set[int] = set()  # serials of views of whole parameters, which stay split as well

    def gathered(self, t: Tensor, inputs: Sequence[Array]) -> list[Array]:
        """Return the operands of an op, with parameters whole on each device.

        In a large model, each reader gathers a parameter anew, once its other operands are there. Otherwise XLA would
        keep all gathered parameters until their gradients are computed.
        """
        split = [k for k, x in enumerate(t.inputs) if self._is_split(x)]
        view = t.prim.family == "view" and t.size == t.inputs[0].size
        if split and view:
            self._views.add(t.serial)
        if not split or view:
            return list(inputs)
        if self._apart and len(split) < len(inputs) and any(t.inputs[k].size >= GATHERED_APART for k in split):
            inputs = jax.lax.optimization_barrier(tuple(inputs))
        return [self._whole(x) if k in split else x for k, x in enumerate(inputs)]

    def reduced(self, gradient: Array) -> Array:
        """Return a gradient, summed over the devices, as the parts that each device keeps."""
        parts = self._layout.of_shape(gradient.shape)
        return jax.lax.with_sharding_constraint(self._whole(gradient), parts)

    def _is_split(self, t: Tensor) -> bool:
        return t.serial in self._views or (t.prim is LEAF and t.attrs["role"] in ("param", "frozen"))

    def _whole(self, x: Array) -> Array:
        return jax.lax.with_sharding_constraint(x, self._layout.whole())


# `Graph.precision` -> XLA's name for products of f32, and the dtype that their operands are rounded to.
PRODUCTS = {
    "f32": ("highest", None),
    "tf32": ("tensorfloat32", None),
    "bf16": ("highest", jnp.bfloat16),
    "f16": ("highest", jnp.float16),
}


class Xla(NamedTuple):
    """The argument `x` of `xla` rules: JAX's modules and settings."""

    jax: Any
    lax: Any
    np: Any
    cudnn: bool  # whether cuDNN's attention works here: NVIDIA GPUs from Ampere on
    dtype: Any  # what operands of products are rounded to, or None
    narrow: Callable[[Array], Array]  # rounds an operand of a product to the requested precision
    by_rows: Callable[..., Array]  # see `Layout.by_rows`
    made: dict[tuple[Any, ...], tuple[Any, Any]]  # what several nodes share

    def once(self, how: Any, arrays: Sequence[Array], make: Callable[[], Any]) -> Any:
        """Return the result of `make`. Calls with an equal `how` and the same arrays share one result."""
        key = (how, *map(id, arrays))
        if key not in self.made:
            self.made[key] = (make(), arrays)  # an array that lives keeps its id
        return self.made[key][0]

    @staticmethod
    def of(precision: str, layout: Layout | None) -> Xla:
        """Return the argument for products of one precision."""
        dtype = PRODUCTS[precision][1]

        def narrow(x: Array) -> Array:
            return x if dtype is None else x.astype(dtype)

        device = jax.devices()[0] if layout is None else layout.mesh.devices.flat[0]
        cudnn = "cuda" in device.client.platform_version and float(device.compute_capability) >= 8
        by_rows = layout.by_rows if layout is not None else _on_one_device
        return Xla(jax, jax.lax, jnp, cudnn, dtype, narrow, by_rows, {})


def _on_one_device(f: Callable[..., Array], rows: Sequence[Array], whole: Sequence[Array], summed: bool) -> Array:
    return f(*rows, *whole)


def for_xla(graph: Graph) -> Graph:
    """Expand composites without an `xla` rule, and join values that are placed side by side."""
    x = Xla.of(graph.precision, None)

    def kept(t: Tensor) -> bool:
        return t.prim.xla is not None and (t.prim.xla_if is None or t.prim.xla_if(x, t))

    return graph.with_roots(join_places(expand_composites(graph.roots, kept)))


def run_graph(
    graph: Graph, leaf: Callable[[Tensor], Array], layout: Layout | None = None, split: Split | None = None
) -> list[Array]:
    """Return the values of the roots of a graph from `for_xla`, under `jax.jit`; `leaf` gives the values of leaves.

    layout: the mesh, if there is one.
    split: how parameters are split over devices while no op reads them, if they are.
    """
    name, _ = PRODUCTS[graph.precision]
    with jax.default_matmul_precision(name):
        values = _run(graph.roots, leaf, Xla.of(graph.precision, layout), split)
        return [values[t.serial] for t in graph.roots]


def _run(
    roots: Sequence[Tensor], leaf: Callable[[Tensor], Array], x: Xla, split: Split | None = None
) -> Mapping[int, Any]:
    """Return the value of every node."""
    values: dict[int, Any] = {}
    nodes = toposort(roots)
    readers = Counter([i.serial for t in nodes for i in t.inputs])
    for t in nodes:
        if t.prim is LEAF:
            values[t.serial] = leaf(t)
            continue
        inputs = [values[i.serial] for i in t.inputs]
        if split is not None:
            inputs = split.gathered(t, inputs)
        if t.prim.family == "scan":
            values[t.serial] = _scanned(t, inputs, x)
        elif t.prim.xla is not None:
            values[t.serial] = t.prim.xla(x, t, *inputs)
        else:
            values[t.serial] = array_rule(t, jnp)(*inputs)
        if split is not None and t.serial in split.gradients:
            values[t.serial] = split.reduced(values[t.serial])
        if t.type.size == 1 and t.prim.family != "scan":
            values[t.serial] = computed_once(values[t.serial], readers[t.serial])
    return values


def computed_once(x: Array, readers: int) -> Array:
    """Return a scalar so that XLA computes it once if it has many readers.

    On the CPU, XLA fuses a copy of a scalar's computation into each reader. Such a scalar says whether a step is
    applied: a sum over all parameters, which the update of each reads. XLA drops `optimization_barrier` before it
    fuses, but copies no reduction.
    """
    return x if readers <= SHARED_BY else jax.lax.platform_dependent(x, cpu=_once, default=jnp.asarray)


def _once(x: Array) -> Array:
    if x.dtype == jnp.bool_:
        return _once(x.astype(jnp.int32)) != 0
    least = -jnp.inf if x.dtype == jnp.float32 else jnp.iinfo(x.dtype).min
    first = jnp.arange(2).reshape(2, *[1] * x.ndim) == 0  # XLA would simplify the maximum of a stack
    return jnp.max(jnp.where(first, x, least), axis=0)


def _scanned(t: Tensor, inputs: Sequence[Array], x: Xla) -> list[Array]:
    """Return the results of a scan: the last carries, then the stacked results of all steps."""
    body: Body = t.attrs["body"]
    carries, xs, consts = body.split(inputs)

    def step(carry: list[Array], elements: list[Array]) -> tuple[list[Array], list[Array]]:
        given = {leaf.name: value for leaf, value in zip(body.leaves, (*carry, *elements, *consts))}
        values = _run(body.roots, lambda leaf: given[leaf.name], x._replace(made={}))
        return [values[r.serial] for r in body.new], [values[r.serial] for r in body.each]

    first = [jnp.asarray(c) for c in carries]
    last, rows = jax.lax.scan(
        step, first, list(xs), length=t.attrs["length"], reverse=t.attrs["reverse"]
    )  # fmt: skip
    return [*last, *rows]


def read_stored(writes: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the writes, rewritten so that a selected value reads other values after their selection.

    m = where(c, m', m0), p = where(c, p0 - m', p0)  ->  p = where(c, p0 - m, p0)

    m differs from m' only where p uses neither. Without this, XLA would compute m' again in the loop of p, and copy m0
    first, because m overwrites m0.
    """
    groups: dict[int, list[Tensor]] = defaultdict(list)
    for t in writes.values():
        if t.prim is WHERE and _condition(t).size == 1:
            groups[_condition(t).serial].append(t)
    new = dict(writes)
    for chosen in groups.values():
        read = _reading(chosen)
        new |= {name: read[t.serial] for name, t in writes.items() if t.serial in read}
    return new


def kept_if_refused(writes: Mapping[str, Tensor], halted: str) -> set[str]:
    """Return the writes that keep the old value in a refused step. `halted` is the write that counts refused steps."""
    count = writes[halted]
    while count.prim is RESHAPE:
        (count,) = count.inputs
    refused = _condition(count)

    def keeps(name: str, t: Tensor) -> bool:
        applied = _condition(t) if t.prim is WHERE else t
        return applied.prim.name == "logical_not" and applied.inputs[0] is refused and t.inputs[2].name == name

    return {name for name, t in writes.items() if keeps(name, t)}


def _condition(t: Tensor) -> Tensor:
    """Return the condition of a choice, before it was broadcast."""
    c = t.inputs[0]
    while c.prim in (BROADCAST, RESHAPE) and c.inputs[0].size == 1:
        (c,) = c.inputs
    return c


def _reading(chosen: Sequence[Tensor]) -> dict[int, Tensor]:
    """Return the selections under one condition, by serial, in the form in which each reads the others' results."""
    # these keep reading the values before selection
    first = toposort([x for t in chosen for x in (t.inputs[0], t.inputs[2])])
    done = {t.serial: t for t in first}
    by_value = {t.inputs[1].serial: t for t in chosen}
    made: dict[int, Tensor] = {}
    for t in toposort([t.inputs[1] for t in chosen], known=done):
        value = done[t.serial] = rebind(t, [done[x.serial] for x in t.inputs])
        if t.serial in by_value:
            choice = by_value[t.serial]
            made[choice.serial] = done[t.serial] = rebind(choice, (choice.inputs[0], value, choice.inputs[2]))
    return made
