"""What users of NumPy, PyTorch, Keras and JAX write, and what it is called here: the tables behind the remedies."""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Iterable, Mapping, Sized
from difflib import get_close_matches
from functools import wraps
from inspect import CO_VARARGS, CO_VARKEYWORDS
from typing import Any, TypeVar, cast

from tracegrad.errors import CallError, MissingNameError, call_site, placed

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
MOST = 12  # names that a message lists

NO_NUMBERS = "it has no numbers while tracing: return it with the result (aux of a loss), or tg.capture it"
CAST = "write tg.cast(x, tg.f32), or another dtype"
STEP = "train.step(x=..., y=...) of a training that tg.compile made computes gradients and updates the parameters"
WHERE = "leave it out: the argument device of tg.compile says where a program runs"
ROOT = "write tg.sqrt(tg.var(x)) for the deviation, tg.sqrt(tg.sum(tg.square(x))) for the norm"
TRAINING = "pass a flag of your own to the forward, as in tg.dropout(x, 0.1, training)"
WEIGHTS = "train.download_params() has the values of a training by name; nn.named_parameters(model) the declarations"

# Attributes of tensors
TENSORS = {
    "item numpy tolist data grad": NO_NUMBERS,
    "type_as float long int half double bool type": CAST,
    "values indices": "x.max(axis) gives values only; x.argmax(axis) says where they are",
    "clone copy": "leave it out: tensors never change",
    "requires_grad requires_grad_": "parameters made with self.param(..., trainable=False) get no gradient; "
    "see also tg.stop_gradient",
    "std norm": ROOT,
    "dot mm bmm": "write x @ y",
    "ravel view_as": "write x.reshape(-1), or x.reshape(y.shape)",
    "fill fill_ zero_ new_zeros": "write tg.full(x.shape, value)",
    "to": f"{CAST}. A device is chosen once, by the argument device of tg.compile",
    "backward": "tg.compile derives the gradient of what the loss returns",
    "detach": "write tg.stop_gradient(x)",
    "view": "write x.reshape(...)",
    "unsqueeze": "write tg.expand_dims(x, axis), or x[:, None]",
    "expand": "write tg.broadcast_to(x, shape)",
    "chunk": "write tg.split(x, parts, axis)",
    "dim": "write x.ndim",
    "cpu": "leave it out: x.numpy() of an eager tensor has its values, and a traced one has none",
    "cuda": WHERE,
    "device": WHERE,
    "contiguous": "leave it out: every tensor is",
    "masked_fill": "write tg.where(mask, value, x)",
    "gather": "write tg.take_along_axis(x, indices, axis)",
    "at": "write tg.where(mask, value, x), or tg.scatter_add(x, indices, updates)",
}  # fmt: skip

# Names of modules. Most others differ in case and underscores only, as ReLU and relu.
NAMES = {
    "cat concatenate": "write tg.concat([a, b], axis)",
    "float32 float float64 double": "write tg.f32",
    "int64 int32 int long i64": "write tg.i32",
    "save load": "a training has train.save(path) and train.load(path)",
    "Sequential ModuleList": "a model may hold a plain list of layers; loop over it in __call__",
    "BatchNorm1d BatchNorm2d": "write tg.batch_norm",
    "LSTM GRU RNN lax fori_loop while_loop": "tg.scan(step, carry, xs) runs a loop",
    "MultiheadAttention MultiHeadAttention": "write tg.split_heads and tg.attention",
    "from_numpy as_tensor FloatTensor": "write tg.tensor(array)",
    "rand random": "write tg.uniform(shape) or tg.randn(shape); seed= pins them",
    "DataLoader data": "train.fit takes any iterable of batches, a PyTorch DataLoader too",
    "cuda device": "the argument device of tg.compile says where a program runs",
    "lr_scheduler schedules": "schedules are in tracegrad.lr: optim.adam(lr=lr.linear(...))",
    "cond switch": "write tg.where(condition, a, b)",
    "glorot_uniform glorot_normal xavier_uniform xavier_normal": "write init.xavier()",
    "he_normal he_uniform kaiming_normal kaiming_uniform": "write init.kaiming()",
    "normal normal_ truncated_normal gaussian": "write init.randn(scale)",
    "constant_ array": "write init.literal(array)",
    "Dense": "write nn.Linear(in_dim, out_dim)",
    "ModuleDict": "a model may hold a plain dict of layers",
    "Parameter": "parameters are declared in __init__: self.W = self.param(shape, init=...)",
    "functional": "its functions are in tg., such as tg.relu",
    "numpy": "its functions are in tg., such as tg.mean",
    "BCEWithLogitsLoss": "write tg.binary_cross_entropy_with_logits",
    "bool": "write tg.bool_",
    "unsqueeze": TENSORS["unsqueeze"],
    "masked_fill": TENSORS["masked_fill"],
    "gather": TENSORS["gather"],
    "zeros_like": "write tg.zeros(x.shape)",
    "ones_like": "write tg.ones(x.shape)",
    "jit": "tg.compile compiles a whole training step, tg.compile_forward a forward",
    "Adagrad": "optim has sgd, adam, adamw, lion, rmsprop and muon; optim.custom takes a transform of your own",
}

# Functions of NumPy and PyTorch on tensors; most others have the name that they have here.
FUNCTIONS = {
    "concatenate cat hstack vstack": "write tg.concat([a, b], axis)",
    "dot inner tensordot": "write a @ b, or tg.einsum",
    "zeros_like ones_like full_like empty_like": "write tg.full(x.shape, value)",
    "std norm": ROOT,
    "ravel moveaxis": "write x.reshape(...) or x.permute(...)",
    "isnan isfinite isinf": "write x != x, which is true where x is NaN",
    "sort argsort unique median percentile": "there is no sorting here; do it in NumPy, before the values go in",
    "absolute": "write tg.abs",
}  # fmt: skip

# Attributes of models, layers and parameters of a model
MODELS = {
    "to cuda cpu device": WHERE,
    "train eval training": TRAINING,
    "parameters named_parameters state_dict get_weights weights": WEIGHTS,
    "load_state_dict set_weights load_weights": "write train.upload_params(record)",
    "zero_grad backward step": STEP,
    "fit compile evaluate predict": "tg.compile(model=..., loss=...) makes a training",
    "register_buffer register_parameter": "write self.param(shape, init=tg.init.literal(array), trainable=False)",
    "add_module add append register_module": "assign layers to attributes, or keep a list",
    "forward apply": "call the model or layer itself, as in m(x), which runs __call__",
    "modules children": "vars(model) has the attributes",
    "summary": "write tg.summary(model)",
    "weight": "write layer.W",
    "bias": "write layer.b",
    "save": "write train.save(path)",
    "requires_grad_": "make the parameter with trainable=False",
}  # fmt: skip

OPTIMIZERS = {
    "step zero_grad backward update minimize apply_gradients": STEP,
    "param_groups learning_rate": "train.set_lr(lr) changes the rate of a training",
    "state_dict load_state_dict state": "train.save(path) and train.load(path) keep its state",
    "init": "tg.compile makes its state",
    "compute_gradients": "write tg.grad(function)",
}

RUN = "write train.attach(forward=..., inputs=...).run(x=x).output"
TRAININGS = {
    "parameters state_dict get_weights weights params": "write train.download_params()",
    "load_state_dict set_weights load_params": "write train.upload_params(record)",
    "eval predict forward apply evaluate run __call__": RUN,
    "zero_grad backward train_step train_on_batch update": STEP,
    "param_groups learning_rate lr": "write train.set_lr(lr)",
    "train": "write train.step(x=..., y=...), or train.fit(batches)",
    "to cuda cpu": WHERE,
    "summary": "write tg.summary(model)",
    "gradients grads": "write train.download_grads()",
    "loss": "train.step(x=..., y=...).loss has the loss of a step",
}

# Keywords of calls: what they are called here, whichever of these the function has
KEYWORDS: dict[str, tuple[str, ...]] = {
    "dim dims": ("axis", "axes"),
    "axis axes": ("axis", "axes", "start_axis"),
    "keepdim keep_dims": ("keepdims",),
    "input inputs a array tensor": ("x", "logits", "prediction", "log_probs", "indices"),
    "target labels label y_true": ("targets", "target"),
    "y_pred preds output": ("logits", "prediction", "log_probs"),
    "size newshape new_shape": ("shape", "sizes"),
    "unbiased correction": ("ddof", "correction"),
    "min a_min low": ("lo", "low"),
    "max a_max high": ("hi", "high"),
    "in_features in_channels input_dim": ("in_dim", "in_ch"),
    "out_features out_channels units filters": ("out_dim", "out_ch"),
    "num_embeddings vocab_size": ("vocab",),
    "embedding_dim normalized_shape features": ("dim",),
    "use_bias": ("bias",),
    "kernel_initializer initializer weight_init": ("init",),
    "learning_rate rate": ("lr", "p"),
    "epsilon": ("eps",),
    "betas": ("beta1", "beta2"),
    "decay wd l2": ("weight_decay",),
    "clipnorm max_norm max_grad_norm global_clipnorm": ("clip_grad_norm",),
    "rho": ("alpha",),
    "train is_training": ("training",),
    "std stddev sigma": ("scale",),
    "end eta_min min_lr end_value": ("final",),
    "lr max_lr start init_value base_lr value": ("peak", "rate"),
    "T_max total_steps num_steps decay_steps total_iters": ("steps",),
    "step_size": ("every",),
    "loss_fn criterion loss_function": ("loss",),
    "net network module": ("model",),
    "function fn apply_fn predict": ("forward", "loss"),
    "opt optim": ("optimizer",),
    "input_shape shapes inputs_spec": ("inputs",),
    "approx": ("approximate",),
    "verbose progress_bar": ("progress",),
    "dataset train_data dataloader": ("data",),
    "validation_data val_data": ("evaluate",),
    "filename file f": ("path",),
}
# Keywords that have no counterpart
WITHOUT = {
    "device": "the argument device of tg.compile says where a program runs",
    "dtype": "cast the result with tg.cast(x, dtype)",
    "out": "tensors never change: use the result",
    "activation": "apply it to the result, as in tg.relu(layer(x))",
    "weight": "multiply the losses by weights: reduction='none', then a weighted mean",
    "requires_grad": "parameters get gradients unless they are made with trainable=False",
    "metrics": "return them beside the loss, as in (loss, {'name': tensor}), or pass evaluate= to train.fit",
    "batch_size": "inputs= has the batch size, and the data come in batches of that size",
    "shuffle": "shuffle the data before they are cut into batches",
    "weight_decay": "optim.adamw has it",
    "amsgrad": "optim.adam computes plain Adam",
    "dilation": "tg.conv2d(x, w, dilation=2) has it",
    "padding_idx": "multiply by a mask instead",
    "key generator seed rng": "random ops draw from the seed of tg.compile",
    "x y": "cut the arrays into batches: train.fit([(x, y), ...])",
}


def found(table: Mapping[str, T], name: str) -> T | None:
    """The entry of a table for `name`; a key is one name, or several between spaces."""
    return next((entry for key, entry in table.items() if name in key.split()), None)


def absent(what: str, name: str, table: Mapping[str, str], own: Iterable[str]) -> MissingNameError:
    """The error for an attribute that an object does not have; `own` are those that it has."""
    names = [n for n in own if not n.startswith("_")]
    remedy = found(table, name)
    if remedy is None:
        near = get_close_matches(name, names, n=1)
        listed = f"{', '.join(names[:MOST])}{', ...' if names[MOST:] else ''}"
        remedy = f"did you mean {near[0]!r}?" if near else f"it has {listed}" if names else "it has none"
    return MissingNameError.here(f"{what} has no {name!r}: {remedy}")


# What decides a branch on a line of Python, and what to write there
BRANCHES = (
    (r"\bwhile\b", "tg.scan repeats a step a fixed number of times, and tg.where(done, old, new) keeps what is done"),
    (r"\bassert\b", "shapes and dtypes can be asserted; return the condition as aux of the loss to look at it"),
    (r"\b(and|or)\b", "write (a) & (b) for and, (a) | (b) for or"),
    (r"\bnot\b", "write ~condition"),
    (r"[<>]=?[^<>]*[<>]", "write (a < x) & (x < b)"),
    (r"\b(max|min)\(", "write tg.maximum(a, b) or tg.minimum(a, b), and x.max() or x.min() of one tensor"),
    (r"\bsorted\(|\.sort\(", "there is no sorting here; sort in NumPy, before the values go in"),
    (r"\bif\b", "write tg.where(condition, a, b), or decide on a Python value"),
    (r"\bin\b", "write tg.any(x == value)"),
)


def branching() -> str:
    """The remedy for a branch on a traced tensor at the user's line."""
    site = call_site()
    line = linecache.getline(site.file, site.line) if site else ""
    found = next((remedy for pattern, remedy in BRANCHES if re.search(pattern, line)), None)
    return found or "use tg.where(condition, a, b), or decide on a Python value"


def for_operand(value: object) -> str:
    """What to write in place of `value`, which is no operand of an op; begins with a semicolon."""
    if value is None:
        return "; is a return missing?"
    if isinstance(value, str):
        return "; float(text) is a number"
    if isinstance(value, dict):
        return "; pick one of its values, as in d['x']"
    told = getattr(type(value), "instead", None)  # of models, results, parameters
    if isinstance(told, str):
        return f"; {told}"
    if hasattr(value, "numpy"):
        return "; convert it with .numpy()"
    return "; call it" if callable(value) else ""


def unexpected(takes: Iterable[str], given: Mapping[str, Any]) -> CallError:
    """The error for keywords that a function does not have; `takes` are those that it has."""
    names = list(takes)
    problems = [f"there is no argument {word!r}{_remedy(word, value, names)}" for word, value in given.items()]
    return CallError(f"{'; '.join(problems)}. The arguments are {', '.join(names) or 'none'}")


def _remedy(word: str, value: Any, names: list[str]) -> str:
    own = [name for name in (found(KEYWORDS, word) or ()) if name in names]
    if len(own) == 1:
        plain = isinstance(value, (int, float, str)) or value is None
        return f"; write {own[0]}={repr(value) if plain and len(repr(value)) < 20 else '...'}"
    if own:
        return f"; write {' and '.join([f'{name}=' for name in own])}"
    near = get_close_matches(word, names, n=1, cutoff=0.7)
    remedy = found(WITHOUT, word)
    return f"; did you mean {near[0]}?" if near else f": {remedy}" if remedy else ""


def check_call(who: str, function: Any, args: Sized, given: Mapping[str, Any], bound: int = 0) -> None:
    """CallError for keywords that `function` does not have, and for too many arguments by position.

    bound: arguments in front that the caller does not write, such as self.
    """
    code = getattr(function, "__code__", None)
    if code is None:
        return
    n, both = code.co_argcount, code.co_argcount + code.co_kwonlyargcount
    takes = code.co_varnames[bound:both]
    unknown = {} if code.co_flags & CO_VARKEYWORDS else {k: v for k, v in given.items() if k not in takes}
    if unknown:
        raise placed(unexpected(takes, unknown), who, call_site())
    extra = len(args) + bound - n
    if extra > 0 and not code.co_flags & CO_VARARGS:
        named = ", ".join([f"{x}=..." for x in code.co_varnames[n:both][:3]])
        raise CallError.here(f"{who}: {extra} too many arguments by position; write {who}({named}, ...)")


def helpful(f: F) -> F:
    """`f`, of which a call with wrong keywords gets a remedy. For functions that are called rarely."""
    who = f"tg.{f.__name__}" if "." not in f.__qualname__ else f.__name__

    @wraps(f)
    def entry(*args: Any, **kwargs: Any) -> Any:
        check_call(who, f, args, kwargs)
        return f(*args, **kwargs)

    return cast("F", entry)


def shown(value: Any) -> str:
    """`value` in an error message: the type of a tensor or array, the begin of the repr of anything else."""
    if hasattr(value, "dtype") and hasattr(value, "shape") and not isinstance(value, type):
        type_ = getattr(value, "type", None)
        return str(type_) if type_ is not None else f"an array {value.dtype}[{','.join(map(str, value.shape))}]"
    if callable(value) and hasattr(value, "__name__"):
        return f"the {'class' if isinstance(value, type) else 'function'} {value.__name__}"
    text = " ".join(repr(value).split())
    if " object at 0x" in text:
        return f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}..."
