"""grad, vmap, scan and their kin; random numbers; eager tensors."""

import numpy as np

import tracegrad as tg
from misuse.table import LABEL, MLP, X, Y, loss, program


@program("grad", "f32[8]", "scalar")
def gradient_of_a_vector():
    tg.grad(lambda w: tg.sum(X @ w, axis=1))(np.ones((3, 2), np.float32))


@program("grad", "i32[]", "f32")
def gradient_of_a_count():
    tg.grad(lambda w: tg.argmax(w))(np.ones(3, np.float32))


@program("grad", "None", "return")
def gradient_of_nothing():
    tg.grad(lambda w: None)(np.ones(3, np.float32))


@program("grad", "i32[8]", "f32")
def gradient_by_integers():
    tg.grad(lambda w: tg.sum(tg.cast(w, tg.f32)))(LABEL)


@program("grad", "function", "tg.grad(fn)(x)")
def gradient_of_a_value():
    tg.grad(tg.sum(tg.tensor(X)))


@program("grad", "aux", "has_aux=True")
def gradient_with_an_undeclared_aux():
    tg.grad(lambda w: (tg.sum(w), {"w": w}))(np.ones(3, np.float32))


@program("grad", "argnums", "2")
def gradient_by_a_missing_argument():
    tg.grad(lambda w: tg.sum(w), argnums=2)(np.ones(3, np.float32))


@program("vmap", "f32[8,3]", "f32[2]", "different sizes")
def vmap_over_different_sizes():
    tg.vmap(lambda a, b: tg.sum(a) * b)(X, np.ones(2, np.float32))


@program("vmap", "in_axes", "2 entries", "1 argument")
def vmap_with_too_many_axes():
    tg.vmap(lambda a: tg.sum(a), in_axes=(0, None))(X)


@program("vmap", "axis 2", "f32[8,3]")
def vmap_over_a_missing_axis():
    tg.vmap(lambda a: tg.sum(a), in_axes=2)(X)


@program("vmap", "at least one")
def vmap_over_nothing():
    tg.vmap(lambda a: tg.sum(a), in_axes=None)(X)


@program("vmap", "in_axes", "'rows'")
def vmap_over_a_name():
    tg.vmap(lambda a: tg.sum(a), in_axes="rows")(X)


@program("vmap", "out_axes", "1", "f32[]")
def vmap_with_a_missing_axis_of_the_result():
    tg.vmap(lambda a: tg.sum(a), out_axes=1)(X)


@program("vmap", "function")
def vmap_of_a_value():
    tg.vmap(X)


@loss("scan", "f32[8,4]", "f32[8,2]", "carry")
def scan_that_changes_the_shape_of_its_carry(m, x, y):
    h, _ = tg.scan(lambda h, t: (h @ m.l2.W, None), m.l1(x), length=3)
    return tg.mean(h)


@loss("add", "i32[]", "f32[]", "tg.cast")
def scan_that_changes_the_type_of_its_carry(m, x, y):
    n, _ = tg.scan(lambda n, row: (n + tg.sum(row), None), 0, x)
    return tg.mean(m(x)) + n


@loss("scan", "pair", "(carry, y)")
def scan_that_returns_one_value(m, x, y):
    total, _ = tg.scan(lambda h, row: h + row, tg.zeros(3), x)
    return tg.mean(total) + tg.mean(m(x) - y)


@loss("scan", "f32[8,3]", "f32[2]")
def scan_over_different_lengths(m, x, y):
    total, _ = tg.scan(lambda h, t: (h + t[1], None), 0.0, (x, tg.ones(2)))
    return total + tg.mean(m(x) - y)


@loss("scan", "length")
def scan_without_a_length(m, x, y):
    total, _ = tg.scan(lambda h, _: (h * 2.0, None), tg.mean(m(x) - y))
    return total


@loss("scan", "length", "-1")
def scan_of_a_negative_length(m, x, y):
    total, _ = tg.scan(lambda h, _: (h * 2.0, None), tg.mean(m(x) - y), length=-1)
    return total


@loss("scan", "function")
def scan_with_arguments_in_another_order(m, x, y):
    total, _ = tg.scan(tg.zeros(3), lambda h, row: (h + row, None), x)
    return tg.mean(total) + tg.mean(m(x) - y)


@loss("scan", "capture", "'h'")
def capture_in_a_scan(m, x, y):
    total, _ = tg.scan(lambda h, row: (tg.capture("h", h + row), None), tg.zeros(3), x)
    return tg.mean(total) + tg.mean(m(x) - y)


@loss("scan", "outside")
def scan_that_leaks_a_tensor(m, x, y):
    kept = []
    tg.scan(lambda h, row: (h + row, kept.append(row)), tg.zeros(3), x)
    return tg.mean(kept[0]) + tg.mean(m(x) - y)


@program("custom_vjp", "2", "1")
def custom_derivative_of_too_few():
    @tg.custom_vjp
    def product(a, b):
        return a * b

    product.defvjp(lambda a, b: (a * b, (a, b)), lambda kept, ct: (ct * kept[1],))
    tg.grad(lambda a, b: tg.sum(product(a, b)))(X, X)


@program("custom_vjp", "f32[8,3]", "f32[]")
def custom_derivative_of_another_shape():
    @tg.custom_vjp
    def double(a):
        return a * 2.0

    double.defvjp(lambda a: (a * 2.0, ()), lambda kept, ct: (tg.sum(ct),))
    tg.grad(lambda a: tg.sum(double(a)))(X)


@program("custom_vjp", "defvjp")
def custom_derivative_that_is_missing():
    @tg.custom_vjp
    def double(a):
        return a * 2.0

    tg.grad(lambda a: tg.sum(double(a)))(X)


@program("jvp", "f32[8,3]", "f32[8,2]")
def direction_of_another_shape():
    tg.jvp(lambda a: tg.sum(a * a), (X,), (Y,))


@program("jvp", "tuple", "(x,)")
def direction_that_is_not_in_a_tuple():
    tg.jvp(lambda a: tg.sum(a * a), X, X)


@program("checkpoint", "function")
def checkpoint_of_a_value():
    tg.checkpoint(X)


@program("tg.repeat", "n=", "init=", raises=TypeError)
def repeat_without_a_number():
    tg.repeat(lambda c: c + 1)


# Random numbers
@loss("dropout", "p", "1.5", "[0, 1]")
def dropout_of_more_than_all(m, x, y):
    return tg.mean(tg.dropout(m(x), 1.5) - y)


@loss("dropout", "p", "50")
def dropout_in_percent(m, x, y):
    return tg.mean(tg.dropout(m(x), 50) - y)


@loss("randn", "got 2", "shape", raises=TypeError)
def random_numbers_of_a_shape_in_pieces(m, x, y):
    return tg.mean(tg.randn(8, 2) - m(x))


@loss("categorical", "i32[8]", "f32")
def drawing_from_integers(m, x, y):
    return tg.mean(tg.categorical(tg.arange(8))) + tg.mean(m(x) - y)


@program("manual_seed", "'0'", "integer")
def seed_of_eager_numbers_as_text():
    tg.manual_seed("0")


@program("backward", "requires", "tg.parameter")
def backward_without_parameters():
    tg.sum(tg.tensor([1.0, 2.0])).backward()


@program("matmul", "f32[2,2]", "f32[3]")
def eager_shapes_that_do_not_fit():
    tg.tensor([[1.0, 2.0], [3.0, 4.0]]) @ [1.0, 2.0, 3.0]


@program("f32[2]", "in place")
def eager_tensor_changed_in_place():
    x = tg.tensor([1.0, 2.0])
    x[0] = 3.0


@program("item", "f32[2]", "one")
def item_of_a_vector():
    tg.tensor([1.0, 2.0]).item()


@program("bool[2]", "tg.all")
def truth_of_a_vector():
    if tg.tensor([1.0, 2.0]) > 0:
        print("positive")


@program("i32[2]", "gradient", "f32")
def gradient_of_integers():
    tg.parameter([1, 2], dtype=tg.i32)


@program("numpy.exp", "tg.exp")
def numpy_function_of_an_eager_tensor():
    np.exp(tg.parameter([1.0, 2.0]))


@program("x.size", "2", "x.shape[0]")
def size_of_an_eager_tensor():
    tg.tensor([1.0, 2.0]).size()


@program("sum", "'dim'", "axis=0", raises=TypeError)
def keyword_dim_of_an_eager_tensor():
    tg.tensor([1.0, 2.0]).sum(dim=0)


@program("sum", "1.0", "write 1")
def axis_as_a_float_of_an_eager_tensor():
    tg.tensor(X).sum(axis=1.0)


@program("eager tensor", "gradient", "x.detach()")
def eager_parameter_in_a_loss():
    w = tg.parameter(np.ones((3, 2), np.float32))
    tg.trace_forward(model=MLP(), forward=lambda m, x: m(x) + x @ w, inputs={"x": (8, 3)})
