"""Trees of values: models, lists, tuples and dicts, whose leaves are tensors, arrays and numbers."""

# Trees can hold anything, and lambdas are mapped over them.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeGuard, cast

from tracegrad.errors import TraceError
from tracegrad.ir.nodes import Tensor
from tracegrad.nn.module import Module, children, like
from tracegrad.nn.parameters import Parameter
from tracegrad.refusals import article
from tracegrad.wrong_calls import check_function

__all__ = ["tree_leaves", "tree_map"]


def tree_map(fn: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """Apply `fn` to each leaf of a tree, and return a tree of the results.

        # m: a model; grads: its gradients, a tree of the same structure. fn gets the leaves in the same place
        new = tg.tree_map(lambda p, g: p - 0.1 * g, m, grads)

    fn:      a function of one leaf of each tree.
    tree:    a list, tuple, dict or model, nested in any way, or a single leaf. Leaves are tensors, arrays and numbers;
             None is kept and is no leaf. A model must have its arrays: pass the one that a loss or forward receives, or
             one that `tg.instantiate` returns. Its leaves are its tensors and arrays; `fn` gets a shared one only once.
             The result keeps the other attributes.
    rest:    trees of the same structure; the keys of dicts can come in any order. A tree of `rest` can have None in
             place of a subtree of `tree`: `fn` then gets None from this tree for each leaf of the subtree.
    Returns: a tree of the structure of `tree`.
    Raises:  TraceError for values that are not leaves, and if the structures differ.

    As jax.tree.map.

    >>> tg.tree_map(lambda x: 2 * x, {"a": 1, "b": [2, 3]})
    {'a': 2, 'b': [4, 6]}
    """
    check_function("tg.tree_map", fn)
    return _map(fn, (tree, *rest), "", False, {})


def tree_leaves(tree: Any) -> list[Any]:
    """Return a list of the leaves of `tree`: tensors, arrays and numbers, in the order in which `tree_map` visits them.

    tree:   a list, tuple, dict or model, nested in any way, or a single leaf, as for `tree_map`.
    Raises: TraceError for values that are not leaves.

    As jax.tree.leaves.

    >>> tg.tree_leaves({"a": 1, "b": [2, 3]})
    [1, 2, 3]
    """
    found: list[Any] = []
    tree_map(found.append, tree)
    return found


def rebuilt(tree: Any, leaves: Iterable[Any]) -> Any:
    """Return a tree like `tree` with other leaves."""
    it = iter(leaves)
    return tree_map(lambda _: next(it), tree)


def arrays_in(value: Any) -> list[Any]:
    """Return the tensors and arrays in a value that can hold other objects too, as a model does."""
    found: list[Any] = []
    _map(found.append, (value,), "", True, {})
    return found


def with_arrays(value: Any, arrays: Iterable[Any]) -> Any:
    """Return `value` with `arrays` in place of the arrays that `arrays_in` returns, in the same order."""
    it = iter(arrays)
    return _map(lambda _: next(it), (value,), "", True, {})


def prefix(tree: Any, marks: Any, who: str) -> list[Any]:
    """Return one mark for each leaf. `marks`: an integer or None for all leaves below, or a container like `tree`.

    Raises TraceError for marks of another structure.
    """
    if marks is None or isinstance(marks, int):
        return [marks] * len(tree_leaves(tree))
    parts, own = children(tree), children(marks)
    if not parts or not own or type(marks) not in (list, tuple, dict) or own.keys() != parts.keys():
        raise TraceError.here(f"{who} must be an integer, None, or one of these for each part of {_shown(tree)}, "
                              f"got {marks!r}")  # fmt: skip
    return [mark for key in parts for mark in prefix(parts[key], own[key], who)]


def _map(fn: Callable[..., Any], trees: tuple[Any, ...], path: str, inside: bool, done: dict[int, Any]) -> Any:
    """Map recursively. inside: below a module, where plain attributes are not leaves; done: old id -> new value."""
    tree = trees[0]
    if inside and id(tree) in done:
        return done[id(tree)]
    if isinstance(tree, Parameter):
        name = path.lstrip(".0123456789") or "the value"  # without the number of the argument
        raise TraceError.here(
            f"{name} is a declared {tree.kind}, {tree.type}, and has no value to transform; pass the model that "
            "the loss or forward receives, or tg.instantiate(model, seed=0)"
        )
    if is_array(tree) or (isinstance(tree, (bool, int, float)) and not inside):
        _check_leaves(trees, path)
        new = fn(*trees)
        if inside:
            done[id(tree)] = new
        return new
    parts = [children(t) for t in trees]
    if parts[0] is None:
        if inside or tree is None:
            return tree
        raise TraceError.here(
            f"{_at(path)} is {article(type(tree).__name__)}; transforms take tensors, arrays, numbers, models, and "
            "lists, tuples and dicts of them. Let the function close over anything else"
        )
    if isinstance(tree, Module):
        # known before its children, because a child can refer to its parent
        new = done[id(tree)] = object.__new__(type(tree))
        vars(new).update(_mapped(fn, trees, parts, path, True, done))
        return new
    items = _mapped(fn, trees, parts, path, inside, done)
    return items if isinstance(tree, dict) else like(tree, items.values())


def _mapped(
    fn: Callable[..., Any],
    trees: tuple[Any, ...],
    parts: Sequence[Mapping[Any, Any] | None],
    path: str,
    inside: bool,
    done: dict[int, Any],
) -> dict[Any, Any]:
    """Return the mapped `parts`, the children of each tree. Raises TraceError unless all trees have the same."""
    keys = (parts[0] or {}).keys()
    for other, part in zip(trees[1:], parts[1:]):
        if other is not None and (type(other) is not type(trees[0]) or (part or {}).keys() != keys):
            one, another = _shown(trees[0]), _shown(other)
            raise TraceError.here(f"trees differ: {_at(path)} is {one} in one and {another} in another")
    rows = {key: tuple([None if part is None else part[key] for part in parts]) for key in keys}
    return {key: _map(fn, row, f"{path}.{key}", inside, done) for key, row in rows.items()}


def is_array(x: object) -> bool:
    """Return whether `x` is a tensor, or an object with shape and dtype."""
    return isinstance(x, Tensor) or (hasattr(x, "shape") and hasattr(x, "dtype"))


def is_pair(x: object) -> TypeGuard[tuple[Any, Any]]:
    """Return whether `x` is a tuple of two values."""
    return isinstance(x, tuple) and len(cast("tuple[Any, ...]", x)) == 2


def _check_leaves(trees: Sequence[Any], path: str) -> None:
    for other in trees[1:]:
        if children(other) is not None:
            raise TraceError.here(f"trees differ: {_at(path)} is a leaf in one and {_shown(other)} in another")


def _at(path: str) -> str:
    return path.removeprefix(".") or "the value"


def _shown(node: Any) -> str:
    parts, name = children(node), article(type(node).__name__)
    if isinstance(node, (list, tuple)):
        return f"{name} of length {len(cast('Sequence[Any]', node))}"
    return name if parts is None else f"{name} of {', '.join(map(str, parts)) or 'nothing'}"
