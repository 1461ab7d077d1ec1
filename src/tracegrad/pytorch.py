"""Weights from and to PyTorch: names, transposes and layouts of its `state_dict`. Reading does not need torch.

`LAYOUTS` has PyTorch's names for the arrays of each layer. Arrays of other modules have the same name in PyTorch.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from tracegrad import nn
from tracegrad.arrays import Array, np
from tracegrad.errors import InputError
from tracegrad.nn.module import at_path, children, named_arrays
from tracegrad.nn.parameters import Parameter, State
from tracegrad.nn.recurrent import Cell, Recurrent
from tracegrad.refusals import shown
from tracegrad.wrong_calls import helpful

Rename = Mapping[str, str] | Callable[[str], str | None]
SHOWN = 8  # names listed in a message


class Row(NamedTuple):
    """An array of a PyTorch layer: our attributes `ours`, transposed if `transposed`, joined along axis 0.

    optional: a state without a counterpart in PyTorch's layer.
    """

    theirs: str
    ours: tuple[str, ...]
    transposed: bool = False
    optional: bool = False


def _plain(**names: str) -> Callable[[Any], list[Row]]:
    """Return the rows of a layer whose arrays differ only in their names."""
    return lambda _: [Row(theirs, (ours,)) for ours, theirs in names.items()]


def _recurrent(layer: Recurrent) -> list[Row]:
    names = {"W_ih": "weight_ih", "W_hh": "weight_hh", "b_ih": "bias_ih", "b_hh": "bias_hh"}
    return [
        Row(f"{theirs}_l{k // layer.directions}{'_reverse' * (k % layer.directions)}", (f"cells.{k}.{ours}",))
        for k in range(len(layer.cells))
        for ours, theirs in names.items()
    ]


def _attention(layer: nn.MultiheadAttention) -> list[Row]:
    """Return the rows of attention. With grouped queries, which PyTorch's layer lacks, the projections are separate."""
    if layer.kv_heads != layer.n_heads:
        return []
    parts = [f"{name}_proj" for name in "qkv"]
    return [
        Row("in_proj_weight", tuple(f"{p}.W" for p in parts), transposed=True),
        Row("in_proj_bias", tuple(f"{p}.b" for p in parts)),
    ]


WEIGHT, NORM = _plain(W="weight", b="bias"), _plain(g="weight", b="bias")
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
LAYOUTS: dict[type, Callable[[Any], list[Row]]] = {
    nn.Linear: lambda _: [Row("weight", ("W",), transposed=True), Row("bias", ("b",))],
    **dict.fromkeys((nn.Embedding, *CONVOLUTIONS), WEIGHT),
    **dict.fromkeys((nn.LayerNorm, nn.RMSNorm, nn.GroupNorm), NORM),
    nn.BatchNorm: _plain(g="weight", b="bias", mean="running_mean", var="running_var"),
    nn.MultiheadAttention: _attention,
    Recurrent: _recurrent,
    Cell: _plain(W_ih="weight_ih", W_hh="weight_hh", b_ih="bias_ih", b_hh="bias_hh"),
}
COUNTERS = ("num_batches_tracked",)  # arrays of PyTorch's layers that have no effect


@dataclass(frozen=True)
class TorchReport:
    """The report of `tg.from_torch`.

    matched: our name -> PyTorch's name.
    missing: our parameters and states that got no value, and keep theirs.
    unused:  PyTorch's names that were not used.
    """

    matched: Mapping[str, str]
    missing: tuple[str, ...]
    unused: tuple[str, ...]

    @property
    def complete(self) -> bool:
        """Whether all names on both sides matched."""
        return not self.missing and not self.unused

    def __str__(self) -> str:
        rows = list(self.matched.items())
        rows += [(n, "missing") for n in self.missing] + [("unused", n) for n in self.unused]
        counts = f"{len(self.matched)} matched, {len(self.missing)} missing here, {len(self.unused)} unused"
        width = max([len(a) for a, _ in rows], default=0)
        return "\n".join([counts, *[f"  {a:<{width}}  {b}" for a, b in rows]])


@helpful
def from_torch(state_dict: Any, target: Any, rename: Rename | None = None) -> TorchReport:
    """Load the weights of a PyTorch model that has the same layers as the model of `target`.

        torch_net = torch.nn.Linear(2, 1)
        train = tg.compile(model=nn.Linear(2, 1), ...)
        print(tg.from_torch(torch_net.state_dict(), train))

    Names are attribute paths in both libraries, and `nn.Sequential` numbers layers as PyTorch does. PyTorch's `weight`
    is `W` transposed for Linear, `W` for Embedding and convolutions, and `g` for norms; its `bias` is `b`. Running
    statistics of norms are states. Recurrent and attention weights are split by PyTorch's layout. Parameters and states
    that your own modules declare have the same names in PyTorch, as parameters and buffers.

    state_dict: arrays or tensors by name, or a PyTorch module. torch is not imported.
    target:     a training or a forward. For a forward of `train.attach`, the weights go to the training.
    rename:     prefixes, {"model.encoder": "encoder", "head": "out"}, from PyTorch's to ours; or a function of a name
                that returns another name, or None to leave the array out.
    Returns:    a report. Print it to see the names that matched, those of the model that `state_dict` lacks (they keep
                their values), and those of `state_dict` that were not used.
    Raises:     InputError naming each array whose shape differs, or if no name matches. Then nothing has changed.

    >>> record = {"weight": np.ones((1, 2), np.float32), "bias": np.zeros(1, np.float32)}
    >>> report = tg.from_torch(record, train)    # train: as in the example of tg.compile
    >>> report.complete, train.params()["W"].shape
    (True, (2, 1))
    """
    given, model = _renamed(_named(state_dict), rename), _model_of(target, "from_torch")
    rows, arrays = list(_rows_of(model)), named_arrays(model)
    values, matched = _values(rows, given, arrays)
    target.upload_params({n: x for n, x in values.items() if not isinstance(arrays[n], State)})
    if states := {n: x for n, x in values.items() if isinstance(arrays[n], State)}:
        target.set_states(states)
    needed = {name for e in rows if not e.optional for name in e.ours}
    known = {e.theirs for e in rows}
    unused = tuple(n for n in given if n not in known and n.rpartition(".")[2] not in COUNTERS)
    return TorchReport(matched, tuple(n for n in arrays if n in needed and n not in values), unused)


def _values(
    rows: list[Row], given: Mapping[str, Any], arrays: Mapping[str, Parameter]
) -> tuple[dict[str, Array], dict[str, str]]:
    """Return values by our names, and PyTorch's names by ours. Raises InputError with every problem."""
    problems: list[str] = []
    values: dict[str, Array] = {}
    matched: dict[str, str] = {}
    for row in [e for e in rows if e.theirs in given]:
        for name, part in _taken_apart(row, given[row.theirs], arrays, problems).items():
            if name in values and not bool((values[name] == part).all()):
                problems.append(f"{name} is both {matched[name]} and {row.theirs}, which differ; tie or rename them")
            values.setdefault(name, part)
            matched.setdefault(name, row.theirs)
    if not matched and not problems:
        problems.append(_no_match(given, rows))
    if problems:
        raise InputError.here("\n  ".join(["from_torch: nothing was changed", *problems]))
    return values, matched


@helpful
def to_torch(target: Any) -> dict[str, Any]:
    """Return the weights of a training or forward as a `state_dict` of PyTorch: the inverse of `from_torch`.

        torch_net.load_state_dict(tg.to_torch(train))

    target:  a training or a forward.
    Returns: torch tensors by PyTorch's names.
    Raises:  InputError if torch is not installed.

    >>> {name: tuple(x.shape) for name, x in tg.to_torch(train).items()}    # train: as in the example of tg.compile
    {'weight': (1, 2), 'bias': (1,)}
    """
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        raise InputError.here("to_torch: torch is not installed; train.params() has the values as arrays") from None
    model = _model_of(target, "to_torch")
    arrays = {**target.download_params(), **target.states()}
    out: dict[str, Any] = {}
    held: dict[str, str] = {}  # our name -> the PyTorch layer that has it
    for row in _rows_of(model):
        layer = row.theirs.rpartition(".")[0]
        said = [held[n] for n in row.ours if n in held]
        if row.optional or any(layer.startswith(f"{other}.") or not other for other in said):
            continue  # an enclosing layer already has this array
        parts = [torch.tensor(arrays[n]) for n in row.ours]
        parts = [x.T if row.transposed else x for x in parts]
        out[row.theirs] = torch.cat(parts) if parts[1:] else parts[0].contiguous()
        held.update(dict.fromkeys(row.ours, layer))
    return out


def _rows_of(model: Any) -> Iterator[Row]:
    """Yield the rows of a model, a layer before its parts, with full names: an array with several paths has several."""
    names = {id(p): n for n, p in named_arrays(model).items()}
    yield from _walk(model, "", names, ())


def _walk(node: Any, path: str, names: Mapping[int, str], above: tuple[int, ...]) -> Iterator[Row]:
    if id(node) in above:
        return  # a child that refers to its parent
    rows = next((rows for kind, rows in LAYOUTS.items() if isinstance(node, kind)), None)
    said: set[str] = set()
    for row in rows(node) if rows else ():
        arrays = [at_path(node, name) for name in row.ours]
        if all(isinstance(x, Parameter) for x in arrays):
            yield Row(_joined(path, row.theirs), tuple(names[id(x)] for x in arrays), row.transposed)
            said.update(row.ours)
    for key, child in (children(node) or {}).items():
        inside = path if isinstance(node, nn.Sequential) and key == "layers" else _joined(path, str(key))
        if not isinstance(child, Parameter):
            yield from _walk(child, inside, names, (*above, id(node)))
        elif key not in said:
            yield Row(inside, (names[id(child)],), optional=rows is not None and isinstance(child, State))


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _model_of(target: Any, who: str) -> Any:
    """Return the model of a training or forward. Raises InputError for anything else."""
    store = getattr(target, "store", None)
    if store is None:
        raise InputError.here(
            f"{who}: weights belong to a training or a forward, got {shown(target)}; compile the model, and pass what "
            "tg.compile or tg.compile_forward returned"
        )
    return store.model


def _named(state_dict: Any) -> dict[str, Any]:
    """Return the arrays by name; for a PyTorch module, its state_dict. Raises InputError for anything else."""
    if not isinstance(state_dict, Mapping) and callable(getattr(state_dict, "state_dict", None)):
        state_dict = state_dict.state_dict()
    if not isinstance(state_dict, Mapping):
        raise InputError.here(
            f"from_torch: the weights are a dict of arrays by name, got {shown(state_dict)}; write net.state_dict()"
        )
    for name in cast("Mapping[object, Any]", state_dict):
        if not isinstance(name, str):
            raise InputError.here(f"from_torch: the names of weights are text, got {name!r}; write net.state_dict()")
    return dict(cast("Mapping[str, Any]", state_dict))


def _renamed(given: dict[str, Any], rename: Rename | None) -> dict[str, Any]:
    """Rename the arrays, and leave out those renamed to None. Raises InputError if two get the same name."""
    wanted = cast("object", rename)
    values = cast("Mapping[str, object]", wanted).values() if isinstance(wanted, Mapping) else ()
    known = wanted is None or isinstance(wanted, Mapping) or callable(wanted)
    if not known or not all(isinstance(new, str) for new in values):
        raise InputError.here(
            f"from_torch: rename must be a dict of prefixes, such as {{'head': 'out'}}, or a function of a name; "
            f"got {shown(wanted)}"
        )
    out: dict[str, Any] = {}
    for name, value in given.items():
        new = _new_name(name, rename) if rename is not None else name
        if new in out:
            raise InputError.here(f"from_torch: rename gives two arrays the name {new!r}, the second time for {name!r}")
        if new is not None:
            out[new] = value
    return out


def _new_name(name: str, rename: Rename) -> str | None:
    if not isinstance(rename, Mapping):
        return rename(name)
    rename = cast("Mapping[str, str]", rename)
    for old, new in sorted(rename.items(), key=lambda pair: -len(pair[0])):
        old, new = old.removesuffix("."), new.removesuffix(".")
        if name == old or name.startswith(f"{old}."):
            return (new + name[len(old) :]).removeprefix(".")
    return name


def _array(value: Any) -> Array:
    """Convert a PyTorch tensor, on any device, or any array-like value to a NumPy array."""
    for method in ("detach", "cpu"):
        value = getattr(value, method)() if hasattr(value, method) else value
    value = value.float() if str(getattr(value, "dtype", "")).endswith("bfloat16") else value
    return np.asarray(value)


def _taken_apart(row: Row, value: Any, arrays: Mapping[str, Parameter], problems: list[str]) -> dict[str, Array]:
    """Split a PyTorch array into our arrays. A wrong shape is added to `problems`."""
    x, shapes = _array(value), [arrays[n].shape for n in row.ours]
    if row.transposed:
        shapes = [shape[::-1] for shape in shapes]
    sizes = [shape[0] for shape in shapes] if len(shapes) > 1 else []
    wanted = (sum(sizes), *shapes[0][1:]) if sizes else shapes[0]
    if tuple(x.shape) != wanted:
        made = " transposed" if row.transposed else ""
        problems.append(
            f"{row.theirs} is {x.dtype}{list(x.shape)}; {' and '.join(row.ours)}{made} is {list(wanted)}. "
            "Give the layer that size, or leave the array out: rename=lambda name: None if ... else name"
        )
        return {}
    ends = [sum(sizes[: k + 1]) for k in range(len(sizes))]
    parts = [x[end - n : end] for n, end in zip(sizes, ends)] or [x]
    return {n: np.ascontiguousarray(p.T) if row.transposed else p for n, p in zip(row.ours, parts)}


def _no_match(given: Mapping[str, Any], rows: list[Row]) -> str:
    wanted = [e.theirs for e in rows if not e.optional]
    hint = ""
    for name in given:  # look for a name that differs only in its prefix
        if longer := [w for w in wanted if w.endswith(f".{name}")]:
            hint = f"; write rename=lambda name: '{longer[0].removesuffix(name)}' + name"
        elif shorter := [w for w in wanted if name.endswith(f".{w}")]:
            hint = f"; write rename={{{name.removesuffix(shorter[0])[:-1]!r}: ''}}"
        if hint:
            break
    for name in given if not hint else ():
        layer, _, own = name.rpartition(".")
        if layer and (fits := [w for w in wanted if w.endswith(f".{own}")]):
            hint = f"; name the layers that correspond, as in rename={{{layer!r}: {fits[0].removesuffix(f'.{own}')!r}}}"
            break
    return f"no name fits. Given are {_listed(given)}; wanted are {_listed(wanted)}{hint}"


def _listed(names: Any) -> str:
    names = list(names)
    return f"{', '.join(names[:SHOWN])}{', ...' if len(names) > SHOWN else ''}" or "none"
