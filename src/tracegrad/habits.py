"""The names of NumPy, PyTorch, Keras and JAX with their counterparts in tracegrad: the tables behind the remedies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")

NO_NUMBERS = "it has no numbers while tracing: return it with the result (aux of a loss), or tg.capture it"
CAST = "write tg.cast(x, tg.f32), or another dtype"
STEP = "train.step(x=..., y=...) of a training that tg.compile made computes gradients and updates the parameters"
WHERE = "leave it out: the argument device of tg.compile says where a program runs"
MIDDLE = "write tg.sort(x, axis)[0], and take the element in the middle, or at that share of the axis"
SIZED = "the size of its result would depend on values: do it in NumPy, before the values go in"
ONE_LETTER = "write the operator, as a < b, or its function, as tg.less(a, b)"
PERMUTED = "write x.permute(...), or tg.swapaxes(x, a, b)"
STACKED = "write tg.concat([a, b], axis), or tg.stack([a, b], axis) for a new axis"
LIKE = "write tg.zeros(x.shape), or tg.randn(x.shape)"
PRODUCT = "write a @ b, or tg.einsum"
SOLVED = "there is no decomposition or inverse of matrices here; do it in NumPy, before the values go in"
SEGMENTS = "write tg.segment_sum(x, segments, n); of ones it counts, and the sum over the count is the mean"
SUBSET = "write tg.where(mask, x, 0), because the number of elements kept is not known while tracing"
TRAINING = "pass a flag of your own to the forward, as in tg.dropout(x, 0.1, training)"
WEIGHTS = "train.download_params() has the values of a training by name; nn.named_parameters(model) the declarations"

# Attributes of tensors
TENSORS = {
    "item numpy tolist data grad": NO_NUMBERS,
    "type_as float long int half double bool type": CAST,
    "values indices": "x.max(axis) gives values only, x.argmax(axis) where they are; tg.sort gives a pair",
    "clone copy": "leave it out: tensors never change",
    "requires_grad requires_grad_": "parameters made with self.param(..., trainable=False) get no gradient; "
    "see also tg.stop_gradient",
    "dot mm bmm mv": "write x @ y",
    "median quantile percentile kthvalue": MIDDLE,
    "unique nonzero": SIZED,
    "masked_select": SUBSET,
    "eq ne lt le gt ge less greater equal": ONE_LETTER,
    "diagonal trace": "tg.diag(x) is the diagonal of a matrix, and its sum the trace",
    "amax amin": "write x.max(axis) or x.min(axis)",
    "index_select": "write tg.take(x, indices, axis)",
    "arcsin arccos arctan": "write x.asin(), x.acos() or x.atan()",
    "repeat_interleave": "write x.repeat(n, axis)",
    "moveaxis movedim swapdims t": PERMUTED,
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

# Names in modules. Most other names differ only in case and underscores, as ReLU and relu.
NAMES = {
    "cat concatenate": "write tg.concat([a, b], axis)",
    "float32 float float64 double": "write tg.f32",
    "int64 int32 int long i64": "write tg.i32",
    "save load": "a training has train.save(path) and train.load(path)",
    "ModuleList": "keep layers in a plain list, and loop over it in __call__",
    "BatchNorm1d BatchNorm2d BatchNorm3d": "write nn.BatchNorm",
    "InstanceNorm1d InstanceNorm2d InstanceNorm3d": "write nn.InstanceNorm",
    "LSTMCell GRUCell RNNCell lax fori_loop while_loop": "tg.scan(step, carry, xs) runs a loop",
    "MultiHeadAttention": "write nn.MultiheadAttention(dim, n_heads)",
    "TransformerEncoderLayer TransformerDecoderLayer Transformer": "write nn.TransformerBlock(dim, n_heads)",
    "from_numpy as_tensor FloatTensor": "write tg.tensor(array)",
    "rand random": "write tg.uniform(shape, low, high) or tg.randn(shape); seed= pins them",
    "rand_like randn_like empty_like full_like empty": LIKE,
    "median quantile percentile nanmedian nanquantile kthvalue": MIDDLE,
    "partition argpartition": "write tg.topk(x, k, axis, largest=False)",
    "msort": "write tg.sort(x, 0)",
    "unique nonzero argwhere": SIZED,
    "masked_select compress extract": SUBSET,
    "bincount histogram index_add segment_mean segment_max segment_min scatter scatter_reduce": SEGMENTS,
    "index_select": TENSORS["index_select"],
    "eq ne lt le gt ge": ONE_LETTER,
    "divide true_divide multiply subtract power float_power negative": "write the operator, as a / b",
    "absolute": "write tg.abs",
    "remainder fmod mod": "write a - tg.floor(a / b) * b",
    "trunc fix frac": "write tg.cast(tg.cast(x, tg.i32), tg.f32) for the whole part",
    "arcsin arccos arctan arctan2": "write tg.asin, tg.acos, tg.atan or tg.atan2",
    "asinh arcsinh": "write tg.sign(x) * tg.log1p(tg.abs(x) + x * x / (1 + tg.sqrt(x * x + 1)))",
    "acosh arccosh": "write tg.log(x + tg.sqrt(x * x - 1))",
    "atanh arctanh": "write 0.5 * (tg.log1p(x) - tg.log1p(-x))",
    "log2 log10 exp2": "write tg.log(x) / math.log(2), or 2.0**x",
    "logit": "write tg.log(p) - tg.log1p(-p)",
    "expit": "write tg.sigmoid",
    "rint": "write tg.round",
    "hypot": "write tg.sqrt(x * x + y * y)",
    "logaddexp": "write tg.logsumexp(tg.stack([a, b]), 0)",
    "lerp": "write a + (b - a) * weight",
    "diff": "write x[1:] - x[:-1]",
    "cummax cummin": "tg.scan with tg.maximum in its step keeps the largest so far",
    "logcumsumexp": "write tg.log(tg.cumsum(tg.exp(x - tg.max(x)), axis)) + tg.max(x)",
    "amax amin nanmax nanmin": "write tg.max(x, axis) or tg.min(x, axis); tg.nan_to_num removes NaN first",
    "average nanmean nansum": "write tg.mean or tg.sum, of tg.where(mask, x, 0) for a part; tg.nan_to_num removes NaN",
    "count_nonzero": "write tg.sum(x != 0)",
    "allclose isclose array_equal": "write tg.all(tg.abs(a - b) <= 1e-6)",
    "isin": "write tg.any(x[:, None] == values, 1)",
    "dot inner vdot tensordot mm bmm mv addmm baddbmm": PRODUCT,
    "inv inverse svd qr cholesky solve det slogdet pinv eig eigh lstsq": SOLVED,
    "cross": "write it with x[..., 0] and its kin; the loss over classes is tg.cross_entropy",
    "diagonal fill_diagonal": "tg.diag takes the diagonal of a matrix, and makes a matrix of one",
    "trace": "write tg.sum(tg.diag(x)); tg.trace traces a program",
    "hstack vstack dstack column_stack": STACKED,
    "moveaxis movedim swapdims": PERMUTED,
    "ravel": "write x.reshape(-1)",
    "tile": "write tg.concat([x] * n, axis); tg.repeat repeats each element",
    "repeat_interleave": "write tg.repeat(x, n, axis)",
    "fliplr flipud": "write tg.flip(x, axis)",
    "rot90 rotate": "write tg.flip(tg.swapaxes(x, 0, 1), 0)",
    "tri": "write tg.tril(tg.ones((n, n)))",
    "identity": "write tg.eye(n)",
    "logspace geomspace": "write tg.exp(tg.linspace(a, b, n))",
    "multinomial choice": "write tg.categorical(logits), or tg.randint(shape, low, high)",
    "randperm permutation shuffle": "write tg.argsort(tg.uniform((n,)))",
    "cosine_embedding_loss": "write 1 - tg.cosine_similarity(a, b)",
    "binary_cross_entropy bce_loss BCELoss": "write tg.binary_cross_entropy_with_logits, of what goes into the sigmoid",
    "fold": "write tg.col2im(columns, shape, kernel)",
    "upsample Upsample resize zoom": "write tg.interpolate(x, size, mode='bilinear')",
    "grid_sample affine_grid bicubic": "tg.interpolate has mode='nearest', 'linear' and 'bilinear'",
    "AdaptiveAvgPool2d GlobalAvgPool2d global_avg_pool2d": "write tg.adaptive_avg_pool2d(x, 1), or x.mean((2, 3))",
    "adaptive_max_pool2d adaptive_max_pool1d": "write x.max((2, 3)) for one window, or tg.max_pool2d",
    "clip_by_value": "write tg.clip(x, lo, hi)",
    "reduce_sum reduce_mean": "write tg.sum(x, axis) or tg.mean(x, axis)",
    "std_mean var_mean": "write tg.std(x, axis) and tg.mean(x, axis)",
    "aminmax ptp": "write tg.max(x) and tg.min(x)",
    "mode": SIZED,
    "relu6 hardsigmoid hardswish threshold": "write it with tg.clip",
    "prelu selu celu": "write it with tg.where(x > 0, x, ...), or tg.elu and tg.leaky_relu",
    "glu mish logsigmoid": "write it with tg.sigmoid, tg.tanh and tg.softplus",
    "softsign softmin": "write x / (1 + tg.abs(x)), or tg.softmax(-x)",
    "accuracy accuracy_score": "write tg.metrics.accuracy(logits, targets)",
    "roc_auc_score auc auroc": "write tg.metrics.auc(scores, targets)",
    "r2_score confusion_matrix perplexity top_k_accuracy": "it is in tg.metrics",
    "hinge_embedding_loss margin_ranking_loss triplet_margin_loss": "write tg.mean(tg.relu(margin - difference))",
    "DataLoader data": "train.fit takes any iterable of batches, a PyTorch DataLoader too",
    "cuda device": "the argument device of tg.compile says where a program runs",
    "lr_scheduler schedules": "use tracegrad.lr, as in optim.adam(lr=lr.linear(...))",
    "cond switch": "write tg.where(condition, a, b)",
    "glorot_normal xavier_normal": "write init.xavier()",
    "glorot_uniform": "write init.xavier_uniform()",
    "he_normal kaiming_normal": "write init.kaiming()",
    "he_uniform": "write init.kaiming_uniform()",
    "lecun_normal": "write init.lecun()",
    "normal_ gaussian": "write init.normal(mean, std)",
    "trunc_normal_ trunc_normal": "write init.truncated_normal(mean, std, low, high)",
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
    "scaled_dot_product_attention flash_attention": "write tg.attention(q, k, v)",
    "rematerialize recompute": "write tg.remat(fn)",
    "fit train": "tg.compile(model=..., loss=...) makes a training, which has train.fit and train.step",
    "load_model load_state_dict": "train.load(path) resumes; tg.load_forward(path, model=..., forward=..., inputs=...)",
    "no_gradient": "write tg.stop_gradient(x) in a loss, tg.no_grad() around eager code",
    "jit": "tg.compile compiles a whole training step, tg.compile_forward a forward",
    "Adamax ASGD Rprop LBFGS SparseAdam": "optim.custom takes a transform of your own; optim.adam is near",
}

# Names in the modules lr and init, which mean something else in other modules
SCHEDULES = {
    "cosine cosine_decay CosineAnnealing CosineDecay": "write lr.cosine_annealing(peak, final, steps)",
    "warmup_cosine cosine_with_warmup warmup_cosine_decay get_cosine_schedule_with_warmup": "write "
    "lr.warmup(peak, 100, after=lr.cosine_annealing(peak, final, steps))",
    "step StepLR step_lr": "write lr.staircase(peak, every, gamma)",
    "ReduceLROnPlateau reduce_on_plateau": "write lr.plateau(peak), and tell it by train.lr_metric(value)",
    "LambdaLR lambda_lr piecewise piecewise_constant polynomial PolynomialLR noam inverse_sqrt "
    "CosineAnnealingWarmRestarts cosine_annealing_warm_restarts CyclicLR cyclic": "derive tg.lr.Schedule: a "
    "frozen dataclass with start: int | None = None and value(self, s), or call train.set_lr(rate) between steps",
    "SequentialLR ChainedScheduler sequential join": "write lr.warmup(peak, steps, after=another)",
    "fixed": "write lr.constant(rate), or the rate itself",
}
INITS = {
    "constant constant_ full fill": "write init.literal(array), as of numpy.full(shape, value)",
    "eye identity dirac dirac_ sparse sparse_": "write init.literal(array)",
    "he he_normal kaiming_normal kaiming_normal_": "write init.kaiming()",
    "he_uniform": "write init.kaiming_uniform()",
    "glorot glorot_normal xavier_normal xavier_normal_": "write init.xavier()",
    "variance_scaling": "write init.kaiming(gain), init.lecun() or init.xavier(gain)",
    "rand": "write init.uniform(low, high)",
    "uniform_": "write init.uniform(low, high)",
}

# Functions of NumPy and PyTorch on tensors. Most others have the same name in tracegrad.
FUNCTIONS = {
    "concatenate cat hstack vstack": "write tg.concat([a, b], axis)",
    "dot inner tensordot": "write a @ b, or tg.einsum",
    "zeros_like ones_like full_like empty_like": "write tg.full(x.shape, value)",
    "ravel moveaxis": "write x.reshape(...) or x.permute(...)",
    "unique nonzero": SIZED,
    "median percentile quantile": MIDDLE,
    "arcsin arccos arctan arctan2": "write tg.asin, tg.acos, tg.atan or tg.atan2",
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
    "register_buffer": "write self.state(shape, init=tg.init.literal(array))",
    "register_parameter": "write self.param(shape, init=tg.init.literal(array))",
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
    "parameters state_dict get_weights weights": "write train.params()",
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

RESULT = "read .loss of a step, or .output of a run, which is an array"
PENDINGS = {
    "item numpy detach cpu tolist data": RESULT,
    "backward": STEP,
    "shape dtype ndim size argmax max min mean sum T reshape astype": RESULT,
}

# Keywords of calls, with their names in tracegrad. The first that the function has applies
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
    "num_layers n_layers depth": ("layers",),
    "num_heads heads nhead": ("n_heads",),
    "embed_dim d_model": ("dim",),
    "monitor": ("metric",),
    "filepath": ("path",),
    "restore_best_weights": ("restore",),
    "in_features in_channels input_dim": ("in_dim", "in_ch"),
    "out_features out_channels units filters": ("out_dim", "out_ch"),
    "input_size": ("input_dim",),
    "hidden_size": ("hidden_dim",),
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
    "validation_data val_data eval_dataset": ("validation", "evaluate"),
    "filename file f": ("path",),
}
# Functions of tg.metrics
METRICS = {
    "f1 f1_score precision recall precision_score recall_score": (
        "compute it from tg.metrics.confusion_matrix(predictions, targets, n)"
    ),
    "mae mean_absolute_error": "write tg.l1_loss(prediction, target)",
    "mse mean_squared_error": "write tg.mse_loss(prediction, target)",
    "top_k topk": "write tg.metrics.top_k_accuracy(logits, targets, k)",
    "roc_auc roc_auc_score": "write tg.metrics.auc(scores, targets)",
    "r2": "write tg.metrics.r2_score(prediction, target)",
}

# Keywords that have no counterpart
WITHOUT = {
    "device": "the argument device of tg.compile says where a program runs",
    "dtype": "cast the result with tg.cast(x, dtype)",
    "out inplace": "tensors never change: use the result",
    "alpha": "multiply an operand, as in a + alpha * b",
    "activation": "apply it to the result, as in tg.relu(layer(x))",
    "weight": "use reduction='none', and return a weighted mean",
    "requires_grad": "parameters get gradients unless they are made with trainable=False",
    "metrics": "return them beside the loss, as in (loss, {'name': tensor}), or pass metrics= to train.fit",
    "batch_size": "inputs= has the batch size; train.fit(x=..., y=..., batch_size=...) cuts arrays",
    "shuffle": "train.fit(x=..., y=...) shuffles whole arrays",
    "weight_decay": "use optim.adamw, which has it",
    "amsgrad": "optim.adam computes plain Adam",
    "padding_mode": "outside are zeros; for others, join what you need with tg.pad or tg.concat first",
    "batch_first": "leave it out: sequences are always [B, T, features]",
    "elementwise_affine": "write the formula with ops for a norm without parameters",
    "padding_idx": "multiply the result by a mask, as in tg.where(tokens == 0, 0.0, h)",
    "key generator seed rng": "random ops draw from the seed of tg.compile",
    "x y": "write train.fit(x=..., y=...)",
}

# Patterns of Python lines that branch on a value, and the remedy
BRANCHES = (
    (r"\bwhile\b", "tg.scan repeats a step a fixed number of times, and tg.where(done, old, new) keeps what is done"),
    (r"\bassert\b", "shapes and dtypes can be asserted; return the condition as aux of the loss to look at it"),
    (r"\b(and|or)\b", "write (a) & (b) for and, (a) | (b) for or"),
    (r"\bnot\b", "write ~condition"),
    (r"[<>]=?[^<>]*[<>]", "write (a < x) & (x < b)"),
    (r"\b(max|min)\(", "write tg.maximum(a, b) or tg.minimum(a, b), and x.max() or x.min() of one tensor"),
    (r"\bsorted\(", "write tg.sort(x), which gives values and indices"),
    (r"\bif\b", "write tg.where(condition, a, b), or decide on a Python value"),
    (r"\bin\b", "write tg.any(x == value)"),
)


def found(table: Mapping[str, T], name: str) -> T | None:
    """Return the entry of a table for `name`, or None. A key is one name, or several separated by spaces."""
    return next((entry for key, entry in table.items() if name in key.split()), None)
