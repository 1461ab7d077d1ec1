"""Functions and arrays of NumPy where tensors belong, and the other way round."""

import numpy as np

import tracegrad as tg
from misuse.table import MLP, X, Y, loss, program, training
from tracegrad import nn


@loss("numpy.mean", "tg.mean")
def mean_of_numpy(m, x, y):
    return np.mean(m(x) - y)


@loss("numpy.exp", "tg.exp")
def exp_of_numpy(m, x, y):
    return tg.mean(np.exp(m(x)) - y)


@loss("numpy.concatenate", "tg.concat")
def concatenate_of_numpy(m, x, y):
    return tg.mean(np.concatenate([m(x), y], axis=1))


@loss("numpy.where", "tg.where")
def where_of_numpy(m, x, y):
    return tg.mean(np.where(y > 0, m(x), 0.0))


@loss("f32[8,2]", "NumPy array", "tg.stack")
def array_of_numpy(m, x, y):
    return tg.mean(np.array(m(x)) - y)


@loss("f32[8,2]", "NumPy array", "tg.stack([a, b])")
def array_of_tensors(m, x, y):
    return tg.mean(np.array([m(x), y]))


@loss("numpy.zeros_like", "tg.zeros_like")
def zeros_like_of_numpy(m, x, y):
    return tg.mean(m(x) - np.zeros_like(y))


@loss("numpy.clip", "tg.clip")
def clip_of_numpy(m, x, y):
    return tg.mean(np.clip(m(x), 0, 1))


@loss("numpy.dot", "a @ b")
def dot_of_numpy(m, x, y):
    return tg.mean(np.dot(x, m.l1.W)) + tg.mean(m(x) - y)


@loss("numpy.linalg.norm", "tg.norm")
def norm_of_numpy(m, x, y):
    return np.linalg.norm(m(x) - y)


@loss("numpy.isnan", "tg.")
def isnan_of_numpy(m, x, y):
    return tg.mean(tg.where(np.isnan(m(x)), 0.0, y))


@loss("numpy.maximum", "tg.maximum")
def reduction_of_a_ufunc(m, x, y):
    return tg.mean(np.maximum.reduce(m(x)))


@loss("NumPy array", "a = a + b")
def array_that_takes_a_tensor(m, x, y):
    total = np.zeros((8, 2), np.float32)
    total += m(x)
    return tg.mean(total)


@loss("NumPy array", "out=", "a = a + b")
def out_argument(m, x, y):
    return tg.mean(np.add(m(x), 1.0, out=np.zeros((8, 2))))


@loss("i32[8]", "tg.take(tg.asarray(array)")
def index_of_an_array_by_a_tensor(m, x, y):
    table = np.random.rand(5, 2)
    return tg.mean(m(x) - table[tg.argmax(y, axis=1)])


@loss("mul", "complex128", "astype")
def complex_array(m, x, y):
    return tg.mean(m(x) * np.ones(2, np.complex128))


@loss("add", "<U1", "astype")
def array_of_text(m, x, y):
    return tg.mean(m(x) + np.array(["a", "b"]))


@loss("add", "object", "astype")
def array_of_objects(m, x, y):
    return tg.mean(m(x) + np.array([1.0, None]))


@loss("add", "ragged", "equal lengths")
def ragged_list(m, x, y):
    return tg.mean(m(x) + [[1.0, 2.0], [3.0]])


@loss("copy", "never change")
def copy_of_a_tensor(m, x, y):
    return tg.mean(m(x).copy() - y)


@loss("'dot'", "x @ y")
def dot_as_a_method(m, x, y):
    return tg.mean(x.dot(m.l1.W)) + tg.mean(m(x) - y)


@loss("'median'", "tg.sort")
def median_as_a_method(m, x, y):
    return (m(x) - y).median()


@loss("'ravel'", "reshape(-1)")
def ravel(m, x, y):
    return tg.mean(m(x).ravel() - y.ravel())


@loss("'fill'", "tg.full")
def fill_of_a_tensor(m, x, y):
    return tg.mean(m(x).fill(0.0))


@loss("cast", "'float23'", "tg.f32")
def astype_of_text(m, x, y):
    return tg.mean(m(x).astype("float23") - y)


@loss("cast", "float64", "f32")
def cast_to_float64(m, x, y):
    return tg.mean(tg.cast(m(x), np.float64) - y)


@program("float32[8,3]", "tg.init.literal")
def parameter_of_an_array():
    class Net(tg.Module):
        def __init__(self):
            self.W = self.param(X)

    Net()


@training("upload_params", "ndarray", "dict")
def upload_of_an_array(train):
    train.upload_params(X)


@program("Parameter f32[3,4]", "train.download_params()")
def assigning_to_a_weight():
    layer = nn.Linear(3, 4)
    layer.W[0, 0] = 1.0


@program("Parameter f32[3,4]", "train.download_params()")
def printing_the_mean_of_a_weight():
    print(np.mean(MLP().l1.W))


@program("Parameter f32[3,4]", "train.download_params()")
def arithmetic_with_a_weight_outside():
    print(MLP().l1.W * 2)


@program("square", "Parameter f32[3,4]", "train.download_params()")
def norm_of_a_weight_outside():
    tg.sum(tg.square(MLP().l1.W))


@training("Pending", "'shape'", ".output")
def shape_of_a_pending(train):
    train.attach(forward=lambda m, x: m(x), inputs={"x": (8, 3)}).run(x=X).shape  # noqa: B018


@training("Pending", ".output")
def numpy_of_a_pending(train):
    infer = train.attach(forward=lambda m, x: m(x), inputs={"x": (8, 3)})
    np.abs(infer.run(x=X) - Y)
