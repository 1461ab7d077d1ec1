"""The names of NumPy, PyTorch, Keras and JAX with their counterparts in tracegrad: the tables behind the remedies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")

NO_NUMBERS = "a traced tensor has no values; return it beside the loss as aux, or record it with tg.capture"
CAST = "write tg.cast(x, tg.f32), or another dtype"
WHERE = "leave it out: the argument device of tg.compile says where a program runs"
MIDDLE = "write tg.sort(x, axis)[0], and take the element at the middle or at the quantile"
SIZED = "the size of its result depends on values; compute it in NumPy, and pass the result as an input"
ONE_LETTER = "write the operator, as a < b, or its function, as tg.less(a, b)"
PERMUTED = "write x.permute(...), or tg.swapaxes(x, a, b)"
STACKED = "write tg.concat([a, b], axis), or tg.stack([a, b], axis) for a new axis"
LIKE = "write tg.zeros(x.shape), or tg.randn(x.shape)"
PRODUCT = "write a @ b, or tg.einsum"
SOLVED = "tracegrad does not decompose or invert matrices; do that in NumPy, and pass the result as an input"
SEGMENTS = "write tg.segment_sum(x, segments, n); of ones it counts, and the sum over the count is the mean"
LOG_SUMS = "write tg.log(tg.cumsum(tg.exp(x - tg.max(x)), axis)) + tg.max(x)"
SUBSET = "write tg.where(mask, x, 0), because the number of elements kept is not known while tracing"

# Attributes of tensors
TENSORS = {
    "item numpy tolist data grad": NO_NUMBERS,
    "type_as float long int half double bool type": CAST,
    "values indices": "x.max(axis) gives the values, x.argmax(axis) their positions; tg.sort gives both",
    "clone copy": "leave it out: tensors never change",
    "requires_grad requires_grad_": "parameters made with self.param(..., trainable=False) get no gradient; "
    "see also tg.stop_gradient",
    "dot mm bmm mv": "write x @ y",
    "median quantile percentile kthvalue": MIDDLE,
    "unique nonzero": SIZED,
    "masked_select": SUBSET,
    "eq ne lt le gt ge less greater equal": ONE_LETTER,
    "diagonal trace": "tg.diag(x) is the diagonal of a matrix, and tg.sum(tg.diag(x)) the trace",
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
    "cpu": "leave it out: x.numpy() returns the values of an eager tensor",
    "cuda": WHERE,
    "device": WHERE,
    "contiguous": "leave it out: every tensor is contiguous",
    "masked_fill": "write tg.where(mask, value, x)",
    "gather": "write tg.take_along_axis(x, indices, axis)",
    "at": "write tg.where(mask, value, x), or tg.scatter_add(x, indices, updates)",
    "unbind unstack": "write [x[:, k] for k in range(x.shape[1])], or tg.split(x, parts, axis)",
    "numel": "write x.size",
    "mT mH adjoint": "write tg.swapaxes(x, -1, -2)",
    "expand_as": "write tg.broadcast_to(x, y.shape)",
    "add_ sub_ mul_ div_ copy_": "tensors never change: write x + y, and use the result",
    "addmm baddbmm": PRODUCT,
    "remainder fmod floor_divide": "write a - tg.floor(a / b) * b, or tg.floor(a / b)",
    "scatter scatter_ index_add index_add_": SEGMENTS,
    "register_hook": "tg.custom_vjp gives a function a gradient of your own; tg.capture records a value",
    "logcumsumexp": LOG_SUMS,
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
    "rand_like randn_like empty_like empty": LIKE,
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
    "erfc": "write 1 - tg.erf(x)",
    "lgamma gammaln digamma erfinv": "there is no gamma function; of inputs, compute it in NumPy and pass the result",
    "logaddexp": "write tg.logsumexp(tg.stack([a, b]), 0)",
    "lerp": "write a + (b - a) * weight",
    "diff": "write x[1:] - x[:-1]",
    "cummax cummin": "tg.scan with tg.maximum in its step keeps the largest so far",
    "logcumsumexp": LOG_SUMS,
    "amax amin nanmax nanmin": "write tg.max(x, axis) or tg.min(x, axis); tg.nan_to_num removes NaN first",
    "average nanmean nansum": "write tg.mean or tg.sum, of tg.where(mask, x, 0) for a part; tg.nan_to_num removes NaN",
    "count_nonzero": "write tg.sum(x != 0)",
    "allclose isclose array_equal": "write tg.all(tg.abs(a - b) <= 1e-6)",
    "isin": "write tg.any(x[:, None] == values, 1)",
    "dot inner vdot tensordot mm bmm mv addmm baddbmm": PRODUCT,
    "inv inverse svd qr cholesky solve det slogdet pinv eig eigh lstsq": SOLVED,
    "cross": "write it with x[..., 0], x[..., 1] and x[..., 2]; the loss over classes is tg.cross_entropy",
    "diagonal fill_diagonal": "tg.diag(x) takes the diagonal of a matrix, or makes a diagonal matrix of a vector",
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
    "binary_cross_entropy bce bce_loss BCELoss": "write tg.binary_cross_entropy_with_logits, of what goes into "
    "the sigmoid",
    "fold Fold": "write tg.col2im(columns, shape, kernel)",
    "upsample Upsample resize zoom": "write tg.interpolate(x, size, mode='bilinear')",
    "grid_sample affine_grid bicubic": "tg.interpolate has mode='nearest', 'linear' and 'bilinear'",
    "AdaptiveAvgPool2d GlobalAvgPool2d global_avg_pool2d": "write tg.adaptive_avg_pool2d(x, 1), or x.mean((2, 3))",
    "adaptive_max_pool2d adaptive_max_pool1d": "write x.max((2, 3)) for one window, or tg.max_pool2d",
    "clip_by_value": "write tg.clip(x, lo, hi)",
    "reduce_sum reduce_mean": "write tg.sum(x, axis) or tg.mean(x, axis)",
    "std_mean var_mean": "write tg.std(x, axis) and tg.mean(x, axis)",
    "aminmax ptp": "write tg.max(x) and tg.min(x)",
    "mode": SIZED,
    "relu6 hardsigmoid hardswish hard_swish threshold ReLU6 Hardswish": "write it with tg.clip",
    "prelu selu celu PReLU SELU CELU": "write it with tg.where(x > 0, x, ...), or tg.elu and tg.leaky_relu",
    "swish": "write tg.silu",
    "glu mish GLU Mish": "write it with tg.sigmoid, tg.tanh and tg.softplus",
    "logsigmoid": "write tg.log_sigmoid(x)",
    "softsign softmin": "write x / (1 + tg.abs(x)), or tg.softmax(-x)",
    "accuracy accuracy_score": "write tg.metrics.accuracy(logits, targets)",
    "roc_auc_score auc auroc": "write tg.metrics.auc(scores, targets)",
    "r2_score confusion_matrix perplexity top_k_accuracy": "it is in tg.metrics",
    "hinge_embedding_loss margin_ranking_loss": "write tg.mean(tg.relu(margin - difference))",
    "DataLoader data": "train.fit takes any iterable of batches, a PyTorch DataLoader too",
    "TensorDataset Dataset random_split train_test_split": "pass arrays, as in train.fit(x=x, y=y, validation=0.1)",
    "SummaryWriter": "write train.fit(..., callbacks=[tg.TensorBoard(folder)])",
    "callbacks Callback": "train.fit(callbacks=[...]) takes tg.EarlyStopping, tg.Checkpoint, tg.CSVLogger, "
    "tg.TensorBoard, and any object with on_step, on_epoch or on_evaluate",
    "LearningRateScheduler": "use tracegrad.lr, as in optim.adam(lr=lr.linear(...))",
    "clip_grad_norm_ clip_grad_norm clip_by_norm": "write optim.adam(lr=..., clip_grad_norm=1.0)",
    "clip_grad_value_ clip_grad_value": "optim.custom takes a transform of your own; clip_grad_norm= clips by the norm",
    "Variable": "parameters are declared in __init__: self.W = self.param(shape, init=...)",
    "GradScaler autocast amp float16 bfloat16 half f16": "write tg.compile(..., precision='f16')",
    "DataParallel DistributedDataParallel pmap shard_map": "write tg.compile(..., device='jax', mesh=...); "
    "tg.vmap maps a function",
    "optimizers": "optimizers are in tracegrad.optim, as optim.adam",
    "losses": "losses are functions, as tg.mse_loss and tg.cross_entropy",
    "layers": "layers are in tracegrad.nn, as nn.Linear",
    "activations": "activations are functions, as tg.relu",
    "initializers": "first values are in tracegrad.init, as init.kaiming()",
    "regularizers": "optim.adamw has weight_decay; or add tg.sum(tg.square(m.W)) to the loss",
    "PRNGKey key seed set_seed Generator": "seed= of tg.compile pins all randomness",
    "tree tree_util": "write tg.tree_map or tg.tree_leaves",
    "Identity Lambda": "nn.Sequential takes functions, as lambda x: x",
    "Input Model": "derive tg.Module, and call its layers in __call__",
    "MLP Mlp": "write nn.Sequential(nn.Linear(2, 8), tg.relu, nn.Linear(8, 1))",
    "LayerNormalization": "write nn.LayerNorm(dim)",
    "BatchNormalization": "write nn.BatchNorm(dim)",
    "GroupNormalization": "write nn.GroupNorm(groups, dim)",
    "Bidirectional": "write nn.LSTM(..., bidirectional=True)",
    "TimeDistributed": "leave it out: nn.Linear works on the last axis",
    "GlobalAveragePooling2D GlobalAveragePooling1D": "write x.mean((2, 3)), or x.mean(2)",
    "Dropout1d Dropout2d Dropout3d SpatialDropout1D SpatialDropout2D": "multiply by "
    "tg.dropout(tg.ones((n, c, 1, 1)), p)",
    "PositionalEncoding SinusoidalPositionalEncoding": "write nn.Embedding(length, dim)(tg.arange(length)), or tg.rope",
    "weight_norm spectral_norm": "compute the weight in __call__, as W / tg.norm(W, 0); self.state keeps a vector",
    "inference_mode eval": "write train.attach(forward=..., inputs=...).run(x=x).output",
    "rearrange": "write x.reshape(...) and x.permute(...)",
    "pad_sequence pack_padded_sequence": "pad in NumPy; nn.LSTM and its kin take lengths=, attention takes mask=",
    "TripletMarginLoss MarginRankingLoss": "write tg.mean(tg.relu(margin - difference))",
    "CTCLoss": "write tg.ctc_loss",
    "ParameterList ParameterDict": "keep parameters in a plain list or dict",
    "Conv": "write nn.Conv1d, nn.Conv2d or nn.Conv3d",
    "conv": "write tg.conv1d, tg.conv2d or tg.conv3d",
    "lookahead swa AveragedModel ema EMA": "write optim.adam(lr=..., ema=0.999), and train.download_params(ema=True)",
    "apply_updates": "train.step(x=..., y=...) computes gradients and updates the parameters",
    "multi_transform masked": "write optim.adam(lr=..., groups={'pattern.*': {...}})",
    "softmax_cross_entropy softmax_cross_entropy_with_integer_labels sparse_categorical_crossentropy "
    "categorical_crossentropy": "write tg.cross_entropy(logits, targets)",
    "sigmoid_cross_entropy sigmoid_binary_cross_entropy binary_crossentropy": "write "
    "tg.binary_cross_entropy_with_logits",
    "mean_squared_error squared_error MSE": "write tg.mse_loss",
    "mean_absolute_error mae MAE mae_loss": "write tg.l1_loss",
    "l2_loss": "write tg.mse_loss, or tg.sum(tg.square(x))",
    "gaussian_nll_loss GaussianNLLLoss": "write tg.mean(0.5 * (tg.log(var) + tg.square(y - mean) / var))",
    "poisson_nll_loss PoissonNLLLoss": "write tg.mean(tg.exp(log_rate) - y * log_rate)",
    "soft_margin_loss": "write tg.mean(tg.softplus(-y * x)), for y of 1 and -1",
    "distributions Normal Categorical Bernoulli log_prob kl_divergence": "write the formula, as "
    "-0.5 * tg.square((x - mean) / std) - tg.log(std) of a normal density; tg.log_softmax gives those of classes",
    "masked_mean": "write tg.sum(tg.where(mask, x, 0)) / tg.sum(tg.cast(mask, tg.f32))",
    "masked_softmax": "write tg.softmax(tg.where(mask, x, -1e9), axis)",
    "set_default_device": "the environment variable TRACEGRAD_DEVICE says what device='auto' means",
    "for_loop while_loop": "tg.scan(step, carry, xs) runs a loop",
    "vectorize": "write tg.vmap(f)",
    "onnx": "train.export(folder) writes a page; tg.to_torch(train) gives a state dict for PyTorch",
    "quantize quantization": "there are no integer kernels; precision='f16' halves the memory",
    "fft": "there is no Fourier transform; do it in NumPy, before the values go in",
    "linalg": SOLVED,
    "cdist pairwise_distance": "write tg.norm(a[:, None] - b[None], axis=-1)",
    "roc_auc": "write tg.metrics.auc(scores, targets)",
    "f1 f1_score precision_score recall_score": "compute it from tg.metrics.confusion_matrix",
    "profile": "write train.profile()",
    "count_parameters num_params": "print(tg.summary(model)) counts parameters",
    "cuda device": "the argument device of tg.compile says where a program runs",
    "lr_scheduler schedules schedulers": "use tracegrad.lr, as in optim.adam(lr=lr.linear(...))",
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
    "functional F": "its functions are in tg., such as tg.relu",
    "numpy": "its functions are in tg., such as tg.mean",
    "BCEWithLogitsLoss": "write tg.binary_cross_entropy_with_logits",
    "bool": "write tg.bool_",
    **{name: TENSORS[name] for name in ("unsqueeze", "masked_fill", "gather", "chunk", "detach", "view", "expand")},
    "tensor_split": TENSORS["chunk"],
    "unbind unstack": TENSORS["unbind unstack"],
    "clone copy": TENSORS["clone copy"],
    "shape": "write x.shape",
    "vector_norm": "write tg.norm(x, axis=axis)",
    "convolve correlate": "write tg.conv1d",
    "GradientTape": "tg.grad(f) is the gradient of a function; tg.compile derives a whole step",
    "embedding_bag EmbeddingBag": "write tg.mean(tg.embedding(table, indices), axis=1)",
    "ZeroPad2d ConstantPad2d": "write tg.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))",
    "utils": "clipping belongs to the optimizer, as optim.adam(lr=..., clip_grad_norm=1.0)",
    "init": "first values are in tracegrad.init, as init.kaiming()",
    "scaled_dot_product_attention flash_attention": "write tg.attention(q, k, v)",
    "plot_history": "write train.fit(...).plot()",
    "rematerialize recompute": "write tg.remat(fn)",
    "fit train Trainer LightningModule": "tg.compile(model=..., loss=...) makes a training, which has train.fit and "
    "train.step",
    "load_model load_state_dict": "train.load(path) resumes; tg.load_forward(path, model=..., forward=..., inputs=...)",
    "no_gradient": "write tg.stop_gradient(x) in a loss, tg.no_grad() around eager code",
    "jit": "tg.compile compiles a whole training step, tg.compile_forward a forward",
    "Adamax ASGD Rprop LBFGS SparseAdam": "optim.adam is similar; optim.custom takes a transform of your own",
}

# Names in the modules lr and init, which mean something else in other modules
SCHEDULES = {
    "cosine cosine_decay CosineAnnealing CosineDecay": "write lr.cosine_annealing(peak, final, steps)",
    "warmup_cosine cosine_with_warmup warmup_cosine_decay get_cosine_schedule_with_warmup": "write "
    "lr.warmup(peak, 100, after=lr.cosine_annealing(peak, final, steps))",
    "step StepLR step_lr": "write lr.staircase(peak, every, gamma)",
    "ReduceLROnPlateau reduce_on_plateau": "write lr.plateau(peak); fit tells it the loss, your loop lr_metric(x)",
    "LambdaLR lambda_lr piecewise piecewise_constant polynomial PolynomialLR noam inverse_sqrt "
    "CosineAnnealingWarmRestarts cosine_annealing_warm_restarts CyclicLR cyclic": "derive tg.lr.Schedule: a "
    "frozen dataclass with start: int | None = None and value(self, s), or call train.set_lr(rate) between steps",
    "SequentialLR ChainedScheduler sequential join": "write lr.warmup(peak, steps, after=another)",
    "fixed": "write lr.constant(rate), or the rate itself",
    "cosine_decay_schedule cosine_schedule": "write lr.cosine_annealing(peak, final, steps)",
    "warmup_cosine_decay_schedule": "write lr.warmup(peak, 100, after=lr.cosine_annealing(peak, final, steps))",
    "piecewise_constant_schedule": "write lr.multi_step(peak, milestones, gamma)",
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
    "zeros_like ones_like full_like empty_like": "write tg.full_like(x, value)",
    "ravel moveaxis": "write x.reshape(...) or x.permute(...)",
    "unique nonzero": SIZED,
    "median percentile quantile": MIDDLE,
    "arcsin arccos arctan arctan2": "write tg.asin, tg.acos, tg.atan or tg.atan2",
    "absolute": "write tg.abs",
}  # fmt: skip

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
