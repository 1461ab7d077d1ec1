"""Parameters and states: what a module declares, and the checks of a declaration."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tracegrad import init as inits
from tracegrad.dtypes import DType, Shape, TensorType, as_dtype, integers, show
from tracegrad.errors import DTypeError, MissingNameError, ShapeError, Site, TraceError, call_site, placed
from tracegrad.init import Literal, Ones, Orthogonal, Zeros
from tracegrad.initializer import Initializer
from tracegrad.ir.ambient import active
from tracegrad.refusals import NoArray, found, shown

COPY = "copy"  # kind of a spec: the state begins as a copy of a parameter


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Parameter(NoArray):
    """The declaration of a parameter, made by `Module.param`. In a loss or forward, a tensor takes its place.

    shape, dtype, init, decay, trainable: as for `Module.param`.
    site: your line that made the parameter.
    Unlike torch.nn.Parameter, it has no values.

    >>> nn.Linear(2, 1).W.shape
    (2, 1)
    """

    kind: ClassVar[str] = "parameter"
    reader: ClassVar[str] = "train.download_params()"

    shape: Shape
    dtype: DType
    init: Initializer
    decay: bool | None  # None: the optimizer's decay_filter decides, else the initialiser
    trainable: bool
    site: Site | None

    @property
    def type(self) -> TensorType:
        """Element type and shape, such as f32[2,1]. As the shape and dtype of torch.nn.Parameter."""
        return TensorType(self.dtype, self.shape)

    @property
    def size(self) -> int:
        """Number of elements of the parameter. As numpy.ndarray.size."""
        return self.type.size

    def __repr__(self) -> str:
        return (
            f"<{self.kind} {self.type} of a model outside its forward; use the model that the forward receives, "
            "or tg.instantiate(model), which has values>"
        )

    instead: ClassVar[str] = (
        "it declares a parameter, and has no values. Use the model that the forward receives, with its layers in "
        "attributes, lists, tuples or dicts (no sets); train.download_params() and tg.instantiate(model) return values"
    )

    if not TYPE_CHECKING:

        @property
        def requires_grad(self) -> bool:
            """True if steps change the parameter: PyTorch's name for `trainable`."""
            return self.trainable

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            raise MissingNameError.here(
                f"the {self.kind} {self.type} of a model has no {name!r}, because it has no values: init= sets "
                f"the first values, as in init=tg.init.literal(array), and {self.reader} returns the trained values"
            )


class State(Parameter):
    """The declaration of a state: an array that steps can replace and no optimizer changes.

    of: the parameter that it starts as a copy of; None: `init` gives its first value.
    """

    __slots__ = ("of",)
    of: Parameter | None

    def __init__(
        self, shape: Shape, dtype: DType, init: Initializer, site: Site | None, of: Parameter | None = None
    ) -> None:
        Parameter.__init__(self, shape, dtype, init, False, False, site)
        object.__setattr__(self, "of", of)

    kind: ClassVar[str] = "state"
    reader: ClassVar[str] = "train.states()"

    instead: ClassVar[str] = (
        "it declares a state, and has no values. Use the model that the forward receives, with its layers in "
        "attributes, lists, tuples or dicts (no sets); train.states() and tg.instantiate(model) have values"
    )


def _fixed(parameter: Parameter, name: str, value: object) -> None:
    remedy = found(name, "assigned")
    hint = f"; {remedy}" if remedy else ""
    raise TraceError.here(f"a {parameter.kind} is fixed once it is declared; {name} cannot be set{hint}")


if not TYPE_CHECKING:
    Parameter.__setattr__ = _fixed  # the dataclass's own message is "cannot assign to field", or it fails internally


def declared(
    module: object, what: str, method: str, shape: int | Sequence[int], dtype: DType | str
) -> tuple[Shape, DType]:
    """Return shape and dtype for `method`. Raises TraceError outside of an `__init__`, and inside a trace."""
    name = f"{type(module).__name__}.{method}"
    if active() is not None:
        raise TraceError.here(
            f"a {what} cannot be made inside a loss or forward, which would make a new one in every trace. "
            "Make it in the model's __init__"
        )
    if not _initialising(module):
        raise TraceError.here(f"{name} works in __init__ only: a model's {what}s are fixed. Declare it there")
    try:
        return _dims(shape, what), as_dtype(dtype)
    except DTypeError as e:
        raise placed(e, name, call_site()) from None


def _initialising(module: object) -> bool:
    """Return whether an `__init__` of `module` is running, possibly through helper functions."""
    frame = sys._getframe(3)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        code = frame.f_code
        if code.co_name == "__init__" and code.co_varnames and frame.f_locals.get(code.co_varnames[0]) is module:
            return True
        frame = frame.f_back
    return False


def _dims(shape: int | Sequence[int], what: str) -> Shape:
    hint, sizes = (
        "write .shape for that of another, and init=tg.init.literal(array) for values",
        getattr(shape, "shape", ()),
    )
    if isinstance(shape, Parameter) or len(sizes) > 1:
        raise ShapeError.here(f"a {what}'s shape must be integers, got {shown(shape)}: {hint}")
    try:
        dims = integers(shape, "a size")
    except ShapeError as e:
        why = hint if sizes else e  # an array of floats was hardly meant as a shape
        raise ShapeError.here(f"a {what}'s shape must be integers, got {shown(shape)}: {why}") from None
    if any(n < 1 for n in dims):
        raise ShapeError.here(f"a {what}'s shape must have sizes of at least 1, got {show(dims)}")
    return dims


def checked_init(init: Initializer | None, shape: Shape, dtype: DType) -> Initializer:
    """Return the initialiser for a parameter of this type, by default randn or zeros. Raises if it does not fit."""
    if init is None:
        return inits.randn() if dtype.is_float else inits.zeros()
    if not isinstance(init, Initializer):  # pyright: ignore[reportUnnecessaryIsInstance]
        hint = ": call it" if isinstance(init, type) else "; values go in as tg.init.literal(array)"
        hint = f"; write tg.init.{init}()" if isinstance(init, str) else hint
        if isinstance(init, (int, float)):
            filled = {0: "zeros()", 1: "ones()"}.get(init, f"literal(np.full({shape}, {init}))")
            hint = f"; write tg.init.{filled}, or tg.init.randn({init}) for random values"
        raise DTypeError.here(f"init must come from tg.init, got {shown(init)}{hint}")
    if isinstance(init, Literal):
        if init.shape != shape:
            raise ShapeError.here(
                f"init.literal: the values are {show(init.shape)}, the parameter is {show(shape)}; give it that shape"
            )
        if init.dtype != dtype:
            raise DTypeError.here(
                f"init.literal: give the values as literal(array, dtype={dtype.name!r}), not {init.dtype}"
            )
    elif isinstance(init, Orthogonal) and len(shape) < 2 + init.stacked:
        after = f" after {init.stacked} stacked" if init.stacked else ""
        raise ShapeError.here(f"init.orthogonal: a parameter of two axes or more{after} is needed, got {show(shape)}")
    elif not dtype.is_float and not isinstance(init, (Zeros, Ones)):
        raise DTypeError.here(f"init must be zeros, ones or literal for {dtype}, got {init!r}")
    return init
