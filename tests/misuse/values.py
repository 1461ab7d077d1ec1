"""Python that wants a number of a traced tensor, which has none."""

import math

import tracegrad as tg
from misuse.table import loss


@loss("bool[]", "if", "tg.where")
def traced_tensor_in_an_if(m, x, y):
    error = tg.mean(m(x) - y)
    if error > 1.0:
        return error
    return tg.square(error)


@loss("bool[8,2]", "tg.where")
def traced_tensor_in_a_conditional_expression(m, x, y):
    return tg.mean(m(x) - y if m(x) > y else y - m(x))


@loss("bool[]", "while", "tg.scan")
def traced_tensor_in_a_while(m, x, y):
    error = tg.mean(tg.square(m(x) - y))
    while error > 1.0:
        error = error / 2
    return error


@loss("bool[]", "&", "and")
def and_between_traced_tensors(m, x, y):
    ok = tg.all(x > 0) and tg.all(y > 0)
    return tg.where(ok, tg.mean(m(x)), 0.0)


@loss("bool[8,2]", "~", "not")
def not_of_a_traced_tensor(m, x, y):
    return tg.mean(tg.where(not (y > 0), m(x), 0.0))


@loss("bool[8,2]", "(a < x) & (x < b)")
def chained_comparison_of_traced_tensors(m, x, y):
    return tg.mean(tg.where(0 < y < 1, m(x), 0.0))


@loss("bool[]", "assert")
def assert_about_a_traced_tensor(m, x, y):
    assert tg.mean(x) < 10
    return tg.mean(m(x) - y)


@loss("f32[]", "aux")
def float_of_a_traced_tensor(m, x, y):
    return float(tg.mean(m(x) - y))


@loss("f32[]", "int()", "shape")
def int_of_a_traced_tensor(m, x, y):
    return tg.mean(m(x)[: int(tg.sum(y))])


@loss("i32[]", "range")
def range_of_a_traced_tensor(m, x, y):
    total = tg.mean(m(x))
    for k in range(tg.argmax(y[0])):
        total = total + y[0, k]
    return total


@loss("i32[]", "tg.take", "tg.stack")
def traced_tensor_as_an_index_of_a_list(m, x, y):
    return [tg.mean(m(x)), tg.mean(y)][tg.argmax(y[0])]


@loss("i32[]", "slice", "tg.take")
def traced_tensor_as_a_bound_of_a_slice(m, x, y):
    return tg.mean(m(x)[: tg.argmax(y[0])])


@loss("f32[]", "aux")
def print_with_a_number_format(m, x, y):
    error = tg.mean(m(x) - y)
    print(f"loss {error:.3f}")
    return error


@loss("f32[]", "tg.exp")
def math_of_a_traced_tensor(m, x, y):
    return tg.mean(m(x)) * math.exp(tg.mean(y))


@loss("bool[8,2]", "tg.maximum")
def max_of_python_between_tensors(m, x, y):
    return tg.mean(max(m(x), y))


@loss("bool[]", "sort")
def sorted_of_a_traced_tensor(m, x, y):
    return sorted(m(x)[:, 0])[0]


@loss("f32[8]", "tg.any")
def membership_of_a_number_in_a_tensor(m, x, y):
    return tg.mean(m(x)) if 0.0 in y[:, 0] else tg.mean(y)


@loss("f32[]", "rank 0", "iterate")
def iterating_over_a_scalar(m, x, y):
    total = 0.0
    for value in tg.mean(m(x) - y):
        total = total + value
    return total


@loss("f32[]", "length")
def length_of_a_scalar(m, x, y):
    return tg.mean(m(x) - y) / len(tg.sum(x))


@loss("f32[8,2]", "in place", "tg.where")
def assignment_to_an_element(m, x, y):
    out = m(x)
    out[0, 0] = 0.0
    return tg.mean(out - y)


@loss("f32[8,2]", "in place", "tg.where")
def addition_to_a_slice(m, x, y):
    out = m(x)
    out[:, 0] += 1.0
    return tg.mean(out - y)


@loss("f32[8,2]", "never change", "tg.concat")
def deletion_of_an_element(m, x, y):
    out = m(x)
    del out[0]
    return tg.mean(out - y)


@loss("add", "'1'")
def adding_text(m, x, y):
    return tg.mean(m(x) + "1")


@loss("add", "None", "tensor")
def adding_none(m, x, y):
    return tg.mean(m(x) + None)


@loss("sub", "tg.stack", "list")
def subtracting_a_list_of_tensors(m, x, y):
    return tg.mean(m(x) - [y[:, 0], y[:, 1]])


@loss("mean", "tg.stack")
def mean_of_a_list_of_tensors(m, x, y):
    return tg.mean([tg.mean(m(x)), tg.mean(y)])


@loss("flip", "tg.sort(x)[0]")
def flipping_all_results_of_a_sort(m, x, y):
    return tg.mean(tg.flip(tg.sort(m(x)), 0) * y)


@loss("tg.tensor(x)", "tg.asarray(x)")
def calling_the_type_of_tensors_as_in_pytorch(m, x, y):
    return tg.mean(m(x) * tg.Tensor([1.0, 2.0]))


@loss("mul", "d['x']")
def multiplying_a_dict(m, x, y):
    return tg.mean(m(x) * {"y": y})


@loss("MLP", "call", "m(x)")
def adding_a_model_instead_of_its_output(m, x, y):
    return tg.mean(m + y)


@loss("f32[8,2]", "divmod", "a // b")
def divmod_of_a_tensor(m, x, y):
    return tg.mean(divmod(m(x), 2)[1])


@loss("remainder", "f32[8,2]", "i32[2]", "tg.cast")
def remainder_by_integers(m, x, y):
    return tg.mean(m(x) % tg.arange(1, 3))


@loss("f32[8,2]", "^", "**")
def caret_for_a_power(m, x, y):
    return tg.mean((m(x) - y) ^ 2)


@loss("<<", "2**k")
def shift_of_a_tensor(m, x, y):
    return tg.mean(y << 1)
