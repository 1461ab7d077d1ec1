"""Modules and parameters: a model is plain Python objects, and every feature is a function over their tree."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

from tracegrad import init as inits
from tracegrad.dtypes import DType, f32
from tracegrad.errors import CompileError, DTypeError, InputError, TraceError, call_site
from tracegrad.initializer import Initializer
from tracegrad.ir.nodes import Tensor
from tracegrad.ir.states import StateTensor
from tracegrad.methods import TensorMethods
from tracegrad.nn.parameters import COPY, Parameter, State, checked_init, declared
from tracegrad.refusals import NoNumber, absent, article, shown
from tracegrad.wrong_calls import check_call, helpful, wrapped

__all__ = ["Module", "bound", "decays", "named_parameters", "named_states"]

DecayFilter = Callable[[str], bool]
M = TypeVar("M")
SHOWN = 4  # parameters in the repr of a module
FROM_TORCH = "write it with layers of tracegrad.nn; tg.from_torch(net.state_dict(), train) takes its weights"


def _told(apply: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a layer's `__call__`, so that wrong arguments raise an error with a remedy."""

    def call(self: Module, *args: Any, **given: Any) -> Any:
        made = ("where the layer is made", type(self).__init__)
        check_call(type(self).__name__, apply, args, given, bound=1, other=made)
        return apply(self, *args, **given)

    return wrapped(call, apply)


class Module(NoNumber):
    """Base class of models and layers. Assign parameters, layers, and lists, tuples or dicts of them as attributes.

    Do so in `__init__` (`super().__init__()` is not needed), and use the attributes in `__call__` or in the loss. The
    model is then a tree of modules. A new model declares its parameters, which have no values yet, so you cannot call
    it. Call the model that a loss or forward receives, or the copy that `tg.instantiate(model, seed=0)` returns.

    As torch.nn.Module and eqx.Module of Equinox.

    >>> class Scale(tg.Module):
    ...     def __init__(self):
    ...         self.s = self.param(3, init=tg.init.ones())
    ...     def __call__(self, x):
    ...         return self.s * x
    >>> tg.instantiate(Scale(), seed=0)(np.array([1.0, 2.0, 3.0], np.float32))
    tensor([1., 2., 3.], requires_grad=True)
    """

    def __repr__(self) -> str:
        found = named_parameters(self)
        shown = [f"{name} {p.type}" for name, p in found.items()]
        more = f", and {len(shown) - SHOWN} more" if len(shown) > SHOWN else ""
        count = sum(p.size for p in found.values())
        return f"<{type(self).__name__}: {count} parameters in {', '.join(shown[:SHOWN]) or 'nothing'}{more}>"

    instead: ClassVar[str] = "call the model, as in m(x)"

    if not TYPE_CHECKING:  # subclasses declare their own arguments

        def __init_subclass__(cls, **given: Any) -> None:
            super().__init_subclass__(**given)  # of typing.Generic
            if cls.__module__.startswith("tracegrad.nn.") and "__call__" in vars(cls):
                cls.__call__ = _told(cls.__call__)

        def __new__(cls, *args: Any, **given: Any) -> Any:
            if args or given:  # copies are made without arguments
                other = ("where it is called", getattr(cls.__call__, "__wrapped__", cls.__call__))
                # object.__init__ has a signature that takes any arguments
                takes = (lambda self: None) if cls.__init__ is object.__init__ else cls.__init__
                check_call(cls.__name__, takes, args, given, bound=1, other=other)
            return super().__new__(cls)

        def __getattr__(self, name: str) -> Any:
            cls = type(self)
            if name.startswith("__") or hasattr(cls, name):  # the latter: a property that raised an AttributeError
                return object.__getattribute__(self, name)
            constructors = [c for c in cls.__mro__ if "__init__" in vars(c) and c is not object]
            hint = "; was super().__init__() called?" if len(constructors) > 1 else ""
            own = [n for n in (*vars(self), *vars(cls)) if n != "instead"]
            raise absent(f"the model {cls.__name__}", name, own, "models", "objects", hint=hint)

        def __call__(self, *_: Any, **__: Any) -> Any:
            name = type(self).__name__
            raise TraceError.here(f"{name} cannot be called: define {name}.__call__ (PyTorch's forward)")

    @helpful
    def param(
        self,
        shape: int | Sequence[int],
        *,
        init: Initializer | None = None,
        decay: bool | None = None,
        dtype: DType | str = f32,
        trainable: bool | None = None,
    ) -> Tensor:
        """Declare a parameter. Call `param` in `__init__`, and assign the result to an attribute.

        shape:      an integer or a sequence of them; () is a scalar.
        init:       one of `tg.init`; default `randn(0.02)`. Integers and booleans take `zeros` (the default), `ones` or
                    `literal`.
        decay:      whether weight decay applies to the parameter; None: `nn.decays` decides.
        dtype:      tg.f32, tg.i32, tg.u32, tg.bool_ or a name such as "i32".
        trainable:  False: no step changes the parameter; it is saved with the model. The default is True for f32, and
                    False for integers and booleans, which have no gradient. As torch.nn.Parameter.
        Raises:     TraceError outside `__init__` and inside a forward. ShapeError for sizes below 1 and an `init` of
                    another shape. DTypeError for an `init` that does not suit the dtype, and for trainable integers.

        >>> class Scale(tg.Module):
        ...     def __init__(self):
        ...         self.s = self.param(3, init=tg.init.ones())
        >>> Scale().s.shape
        (3,)
        """
        dims, dtype = declared(self, "parameter", "param", shape, dtype)
        trainable = dtype.is_float if trainable is None else trainable
        if trainable and not dtype.is_float:
            raise DTypeError.here(f"a parameter of {dtype} has no gradient; pass trainable=False")
        init = checked_init(init, dims, dtype)
        # Forwards see a tensor here, so editors and type checkers should see one, too.
        return cast("Tensor", Parameter(dims, dtype, init, decay, trainable, call_site()))

    @helpful
    def state(self, shape: int | Sequence[int], *, init: Initializer | None = None, dtype: DType | str = f32) -> Tensor:
        """Declare a state: an array that a loss or forward replaces and no optimizer changes. As PyTorch's buffers.

        Call `state` in `__init__`, and assign the result to an attribute. In a loss or forward, the attribute is a
        tensor, and its method `assign` writes a new value. Later reads in the same call return it, and so do reads in
        later calls. States are saved, restored and reset with the model, and shared with the forwards that
        `train.attach` makes. `train.states()` reads them.

        shape:      an integer or a sequence of them; () is a scalar.
        init:       one of `tg.init`; default zeros. Integers and booleans take zeros, ones or literal. Random
                    states are drawn after all parameters, so adding a state to a model changes no parameter of a seed.
        dtype:      tg.f32, tg.i32, tg.u32, tg.bool_ or a name such as "i32".
        Gradient:   none: a state is a constant of the step, and so is a value that you assigned. In the example, no
                    gradient flows through self.mean to x.
        Raises:     TraceError outside `__init__` and inside a forward; ShapeError for sizes below 1 and an `init` of
                    another shape; DTypeError for an `init` that does not suit the dtype.

        >>> class Mean(tg.Module):
        ...     def __init__(self):
        ...         self.mean = self.state(2)
        ...     def __call__(self, x):
        ...         self.mean.assign(0.9 * self.mean + 0.1 * x.mean(0))
        ...         return x - self.mean
        >>> model = tg.instantiate(Mean(), seed=0)
        >>> model(np.ones((1, 2), np.float32))                      # 1 - self.mean, which is 0.1 now
        tensor([[0.9, 0.9]])
        >>> model.mean
        tensor([0.1, 0.1])
        """
        dims, dtype = declared(self, "state", "state", shape, dtype)
        made = State(dims, dtype, checked_init(inits.zeros() if init is None else init, dims, dtype), call_site())
        return cast("Tensor", made)


@helpful
def decays(name: str, parameter: Parameter, decay_filter: DecayFilter | None = None) -> bool:
    """Return whether weight decay applies to a parameter. The first of three rules that applies decides:

    1. The argument `decay` of `Module.param` or of the layer, if it is not None.
    2. `decay_filter(name)`, if it is not None. Pass the `decay_filter` of your optimizer, if it has one.
    3. A parameter decays unless its `init` is zeros or ones, as for biases and gains.

    name, parameter: as `nn.named_parameters` gives them.
    As Optax's mask of add_decayed_weights.

    >>> [nn.decays(name, p) for name, p in nn.named_parameters(nn.Linear(2, 1)).items()]
    [True, False]
    """
    if parameter.decay is not None:
        return parameter.decay
    if decay_filter is not None:
        return bool(decay_filter(name))
    return inits.decays_by_default(parameter.init)


@helpful
def named_parameters(model: Any) -> dict[str, Any]:
    """Return the parameters by attribute path, such as `layers.0.attn.q.W`, in declaration order.

    model:   a tree of modules.
    Returns: for each name a `tg.Parameter`, a declaration without values. For a model that has its arrays, the values
             are tensors: a loss or forward receives such a model, and `tg.instantiate` returns one. A parameter with
             several paths is listed once, under the first.
    Raises:  TraceError if `model` is not a tree of modules, and if two parameters have the same path, for example for
             the keys 1 and "1" of a dict.

    `train.params()` returns the arrays of a training. As dict(module.named_parameters()) of
    PyTorch, so write `.items()` for the pairs.

    >>> {name: p.shape for name, p in nn.named_parameters(nn.Linear(2, 1)).items()}
    {'W': (2, 1), 'b': (1,)}
    """
    return {path: p for path, p in _declared_or_bound(model).items() if not _is_state(p)}


@helpful
def named_states(model: Any) -> dict[str, Any]:
    """Return the states by attribute path, in declaration order. As Module.named_buffers of PyTorch.

    model:   a tree of modules.
    Returns: for each name a declaration, with a `shape` and a `dtype`. For a model that has its arrays, the values are
             tensors with a method `assign`: a loss or forward receives such a model, and `tg.instantiate` returns one.
    Raises:  TraceError as `named_parameters`.

    `train.states()` returns the arrays of a training.

    >>> {name: s.shape for name, s in nn.named_states(nn.BatchNorm(3)).items()}
    {'mean': (3,), 'var': (3,)}
    """
    return {path: p for path, p in _declared_or_bound(model).items() if _is_state(p)}


def _declared_or_bound(model: Any) -> dict[str, Any]:
    """Return the parameters and states of a model, or the tensors in their place: a bound model has no declarations."""
    return named_arrays(model) or dict(_walk(model, "", set(), TensorMethods))


def _is_state(x: Any) -> bool:
    """Return whether `x` is a state: in an instantiated model, a tensor that needs no gradient."""
    return isinstance(x, (State, StateTensor)) or not (isinstance(x, (Parameter, Tensor)) or x.requires_grad)


def state_specs(model: Any) -> list[dict[str, Any]]:
    """Return plain data on how each state begins: its initialiser, or the path of the parameter that it copies."""
    paths = {id(p): path for path, p in named_parameters(model).items()}
    return [
        {"kind": COPY, "of": paths[id(s.of)]} if id(s.of) in paths else s.init.spec()
        for s in named_states(model).values()
    ]


def named_arrays(model: Any) -> dict[str, Parameter]:
    """Return parameters and states by attribute path. Raises TraceError as `named_parameters`."""
    if not isinstance(model, (Module, list, tuple, dict)):
        own = any(isinstance(x, (Module, Parameter)) for x in getattr(model, "__dict__", {}).values())
        hint = f"; derive it: class {type(model).__name__}(tg.Module)" if own else "; pass an instance of one"
        hint = "; are model and loss swapped?" if callable(model) and hasattr(model, "__code__") else hint
        hint = f"; call it: {model.__name__}(...)" if isinstance(model, type) else hint
        hint = f"; {FROM_TORCH}" if _of_torch(model) else hint
        raise TraceError.here(f"a model is a tg.Module, a list or a dict, got {shown(model)}{hint}")
    out: dict[str, Parameter] = {}
    for path, parameter in _walk(cast("Any", model), "", set(), Parameter):
        if path in out:
            raise TraceError.here(
                f"two parameters have the name {path!r}; rename a key or attribute (1 and '1' give the same name)"
            )
        out[path] = parameter
    return out


def no_parameters(model: Any) -> CompileError:
    """Return the error about a model without parameters and states, with advice."""
    return CompileError.here(f"the model {type(model).__name__} has no parameters: {_without(model)}")


def _without(model: Any) -> str:
    advice = "make some with self.param or layers in __init__, and assign them to attributes"
    for name, value in getattr(model, "__dict__", {}).items():
        if isinstance(value, (set, frozenset, Iterator)):
            return f"{advice}; {name} is {article(type(cast('object', value)).__name__)}: keep layers in a list"
        if isinstance(value, TensorMethods):
            return f"{advice}; {name} is an eager tensor: write self.param(shape, init=tg.init.literal(array))"
        if hasattr(value, "__array__") and getattr(value, "shape", None):
            return f"{advice}; {name} is an array, a constant: write self.param(shape, init=tg.init.literal(array))"
        if _of_torch(value):
            return f"{advice}; {name} is a module of PyTorch: {FROM_TORCH}"
    return advice


def _of_torch(value: object) -> bool:
    """Return whether a value is a module of PyTorch, or of a class derived from one."""
    return any(c.__module__.startswith("torch.nn.") for c in type(value).__mro__)


def children(node: Any) -> Mapping[Any, Any] | None:
    """Return the attributes of a module or the items of a container; None for anything else."""
    if isinstance(node, Module):
        return vars(node)
    if isinstance(node, dict):
        return cast("dict[Any, Any]", node)
    return dict(enumerate(cast("Sequence[Any]", node))) if isinstance(node, (list, tuple)) else None


def at_path(node: Any, path: str) -> Any:
    """Return the attribute at a path such as `cells.0.W_ih`, or None."""
    for part in path.split("."):
        parts = children(node) or {}
        node = parts.get(part, parts.get(int(part)) if part.isdigit() else None)
    return node


def like(container: Any, items: Iterable[Any]) -> Any:
    """Make a list or tuple of the type of `container`. A named tuple takes its items one by one."""
    make = getattr(container, "_make", None) or cast("Any", type(cast("object", container)))
    return make(items)


def _walk(node: Any, path: str, seen: set[int], kind: type[Any]) -> Iterator[tuple[str, Any]]:
    """Yield each leaf of a kind once, with its path. `seen` ends cycles, such as a child that refers to its parent."""
    parts = children(node)
    if parts is None and not isinstance(node, kind):
        return
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, kind):
        yield path, node
    for key, child in (parts or {}).items():
        yield from _walk(child, f"{path}.{key}" if path else str(key), seen, kind)


@helpful
def bound(model: M, tensors: Mapping[str, TensorMethods]) -> M:
    """Return a copy of the model whose parameters and states are the given tensors. The model does not change.

    tensors: by name, as `nn.named_parameters` and `nn.named_states` give them. Their shapes are not checked, and other
             names are ignored.
    Raises:  InputError if a parameter or state has no tensor.

    Modules, lists, tuples and dicts are copied once each; everything else is shared.
    As torch.func.functional_call, without the call.

    >>> model = nn.bound(nn.Linear(2, 1), {"W": tg.ones((2, 1)), "b": tg.zeros((1,))})
    >>> model(np.array([[1.0, 2.0]], np.float32))
    tensor([[3.]])
    """
    arrays = named_arrays(model)
    if missing := [name for name in arrays if name not in tensors]:
        raise InputError.here(f"nn.bound: there is no tensor for {missing[0]!r}; it takes {', '.join(arrays)}")
    return replaced(model, {id(p): tensors[name] for name, p in arrays.items()})


def replaced(model: M, by_id: Mapping[int, Any]) -> M:
    """Return a copy of the model in which each parameter `p` is replaced by `by_id[id(p)]`."""
    return _copy(model, by_id, {})


def _copy(node: Any, tensors: Mapping[int, Any], done: dict[int, Any]) -> Any:
    if isinstance(node, Parameter):
        return tensors[id(node)]
    if id(node) in done:
        return done[id(node)]
    parts = children(node)
    if parts is None:
        return node
    if isinstance(node, tuple):
        done[id(cast("object", node))] = new = like(node, [_copy(x, tensors, done) for x in parts.values()])
        return new
    new = cast("Any", object.__new__(type(node)) if isinstance(node, Module) else copy.copy(node))
    done[id(node)] = new
    target = cast("Any", vars(new) if isinstance(node, Module) else new)  # past a frozen dataclass's __setattr__
    for key, child in parts.items():
        target[key] = _copy(child, tensors, done)
    return new
