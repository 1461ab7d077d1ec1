"""Habits of Keras and JAX."""

import tracegrad as tg
from misuse.table import MLP, SHAPES, X, Y, compiled, loss, mse, program, shared, training
from tracegrad import init, lr, nn, optim


@program("Dense", "nn.Linear")
def dense():
    nn.Dense(10)


@program("Linear", "'activation'", "tg.relu", raises=TypeError)
def layer_with_an_activation():
    nn.Linear(3, 4, activation="relu")


@program("Linear", "'use_bias'", "bias", raises=TypeError)
def layer_with_use_bias():
    nn.Linear(3, 4, use_bias=False)


@program("Linear", "out_dim", raises=TypeError)
def layer_without_its_input_size():
    nn.Linear(10)


@program("init", "'zeros'", "tg.init.zeros()")
def initializer_as_text():
    nn.Linear(3, 4, init="zeros")


@program("init", "glorot_uniform", "xavier")
def initializer_of_keras():
    init.glorot_uniform()


@program("init", "call")
def initializer_that_is_not_called():
    nn.Linear(3, 4, init=init.zeros)


@program("adam", "learning_rate", "lr=", raises=TypeError)
def learning_rate():
    optim.adam(learning_rate=0.01)


@program("adam", "epsilon", "eps", raises=TypeError)
def epsilon_written_out():
    optim.adam(lr=0.01, epsilon=1e-7)


@program("adam", "clipnorm", "clip_grad_norm", raises=TypeError)
def clipnorm():
    optim.adam(lr=0.01, clipnorm=1.0)


@program("optimizer", "'adam'", "optim.adam(")
def optimizer_as_text():
    compiled(optimizer="adam").close()


@program("loss", "'mse'", "function")
def loss_as_text():
    compiled(loss="mse").close()


@program("compile", "metrics", raises=TypeError)
def compile_with_metrics():
    tg.compile(model=MLP(), loss=mse, inputs=SHAPES, optimizer=optim.adam(), metrics=["accuracy"])


@training("fit", "fit(x, y, batch_size=...)", "got 32")
def fit_with_positional_targets(train):
    train.fit(X, Y, 32, progress=False)


@training("fit", "batch_size")
def fit_with_a_batch_size(train):
    train.fit([(X, Y)], batch_size=8, progress=False)


@training("fit", "x, y", "batch")
def fit_of_one_array(train):
    train.fit(X, progress=False)


@training("'predict'", "attach")
def predict_of_a_training(train):
    train.predict(X)


@training("'summary'", "tg.summary")
def summary_of_a_training(train):
    train.summary()


@training("'evaluate'", "attach")
def evaluate_of_a_training(train):
    train.evaluate(X, Y)


@program("MLP", "'fit'", "tg.compile")
def fit_of_a_model():
    MLP().fit(X, Y)


@program("MLP", "'compile'", "tg.compile")
def compile_of_a_model():
    MLP().compile(optimizer="adam", loss="mse")


@program("MLP", "'add'", "attribute")
def adding_a_layer():
    MLP().add(nn.Linear(2, 2))


@loss("'newshape'", "write shape=", raises=TypeError)
def reshape_with_a_name(m, x, y):
    return tg.mean(tg.reshape(x, newshape=(3, 8))) + tg.mean(m(x) - y)


# JAX
@program("jit", "tg.compile")
def jit():
    tg.jit(mse)


@program("numpy", "tg.")
def numpy_of_jax():
    tg.numpy.mean(X)


@program("random", "tg.randn")
def keys_of_random_numbers():
    tg.random.PRNGKey(0)


@loss("at", "tg.scatter_add")
def update_at_an_index(m, x, y):
    return tg.mean(m(x).at[0].set(1.0))


@loss("uniform", "'key'", "seed of tg.compile", raises=TypeError)
def random_numbers_of_a_key(m, x, y):
    return tg.mean(m(x) - tg.uniform(key=0, shape=(8, 2)))


@program("'argnum'", "argnums", raises=TypeError)
def grad_with_a_misspelt_argument():
    tg.grad(lambda x: x, argnum=0)


@program("lax", "tg.scan")
def lax():
    tg.lax.scan(lambda c, x: (c, x), 0.0, X)


@program("cond", "tg.where")
def cond():
    tg.cond(True, lambda: 1, lambda: 2)


@program("pmap", "vmap")
def pmap():
    tg.pmap(lambda x: x)(X)


@training("'apply'", "attach")
def apply_of_a_training(train):
    train.apply(X)


@program("optim.adam", "'init'", "tg.compile")
def optimizer_of_optax():
    optim.adam(lr=0.01).init(MLP())


@program("update", "train.step")
def update_of_an_optimizer():
    optim.adam(lr=0.01).update({}, {})


@program("init.randn", "'stddev'", "scale=0.1", raises=TypeError)
def unknown_argument_of_an_initializer():
    init.randn(stddev=0.1)


@program("cosine_annealing", "final", raises=TypeError)
def schedule_with_a_wrong_name():
    lr.cosine_annealing(peak=0.1, end=0.0, steps=100)


@program("apply", "call")
def functional_call_of_a_training():
    shared().model.apply({}, X)
