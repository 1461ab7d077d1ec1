"""Names that are misspelt, or of another library; settings of ops that are none."""

import tracegrad as tg
from misuse.table import X, classes, loss, program
from tracegrad import nn, optim


@program("'softmx'", "tg.softmax")
def op_misspelt():
    tg.softmx(X)


@program("'Relu'", "tg.relu")
def op_in_capitals():
    tg.Relu(X)


@program("'linear'", "nn.Linear")
def layer_in_lower_case():
    tg.linear(3, 4)


@program("'Linaer'", "nn.Linear")
def layer_name_misspelt():
    nn.Linaer(3, 4)


@program("'Conv2D'", "nn.Conv2d")
def layer_with_the_name_of_keras():
    nn.Conv2D(1, 4, 3)


@program("'LSTMCell'", "rnn(x[:, None], state)", "tg.scan")
def layer_that_does_not_exist():
    nn.LSTMCell(3, 4)


@program("'MultiHeadAttention'", "nn.MultiheadAttention")
def attention_as_a_layer():
    nn.MultiHeadAttention(4, 2)


@program("'adamW'", "optim.adamw")
def optimizer_misspelt():
    optim.adamW(lr=0.1)


@program("'Adagrad'", "optim.")
def optimizer_that_does_not_exist():
    optim.Adagrad(lr=0.1)


@program("'Linear'", "nn.Linear")
def layer_of_the_wrong_module():
    tg.Linear(3, 4)


@program("'adam'", "optim.adam")
def optimizer_of_the_wrong_module():
    tg.adam(lr=0.1)


@program("'cosine_annealing'", "lr.cosine_annealing")
def schedule_of_the_wrong_module():
    optim.cosine_annealing(0.1, 0.0, 100)


@program("'DataLoader'", "train.fit")
def data_loader():
    tg.DataLoader([X], batch_size=4)


@program("'sine'", "tg.sin")
def function_with_a_long_name():
    tg.sine(X)


@program("'log_softmx'", "tg.log_softmax")
def another_op_misspelt():
    tg.log_softmx(X)


@program("'frobnicate'", "dir(tracegrad)")
def name_that_is_like_no_other():
    tg.frobnicate(X)


@loss("gelu", "'fast'", '"none"', '"tanh"')
def approximation_that_is_none(m, x, y):
    return tg.mean(tg.gelu(m(x), approximate="fast") - y)


@loss("where", "bool", "f32[8,2]", "compare")
def where_of_numbers(m, x, y):
    return tg.mean(tg.where(y, m(x), 0.0))


@loss("logical_and", "bool", "f32[8,2]")
def and_of_numbers(m, x, y):
    return tg.mean(tg.where(m(x) & y, m(x), 0.0))


@classes("add", "f32[8]", "i32[8]", "tg.cast")
def adding_classes_to_numbers(m, x, label):
    return tg.mean(m(x)[:, 0] + label)


@classes("mul", "0.5", "i32[8]", "tg.cast")
def half_of_a_class(m, x, label):
    return tg.mean(m(x)) + tg.mean(tg.cast(label * 0.5, tg.f32))


@classes("f32[]", "i32[]", "gradient")
def sum_of_comparisons(m, x, label):
    return tg.sum(tg.argmax(m(x), axis=1) == label)


@classes("log", "i32[8]", "tg.cast")
def logarithm_of_classes(m, x, label):
    return tg.mean(tg.log(label)) + tg.mean(m(x))


@classes("matmul", "i32[8]", "tg.cast")
def product_with_classes(m, x, label):
    return tg.mean(label @ m(x))


@classes("embedding", "f32[8,3]", "tg.i32")
def embedding_of_numbers(m, x, label):
    return tg.mean(tg.embedding(m.l1.W, x)) + tg.mean(m(x))


@loss("arange", "'8'")
def range_as_text(m, x, y):
    return tg.mean(tg.arange("8")) + tg.mean(m(x) - y)


@loss("one_hot", "'5'")
def number_of_classes_as_text(m, x, y):
    return tg.mean(tg.one_hot(tg.arange(5), "5")) + tg.mean(m(x) - y)


@loss("full", "'zero'", "float(text)")
def full_of_text(m, x, y):
    return tg.mean(tg.full((8, 2), "zero") - m(x) + y)


@loss("zeros", "-2")
def zeros_of_a_negative_size(m, x, y):
    return tg.mean(tg.zeros((8, -2))) + tg.mean(m(x) - y)


@loss("pow", "f32[8,2]", "'2'")
def power_as_text(m, x, y):
    return tg.mean((m(x) - y) ** "2")


@loss("repeat", "1.5")
def repeat_of_a_fraction(m, x, y):
    return tg.mean(tg.repeat(x, 1.5, axis=0)) + tg.mean(m(x) - y)


@loss("stack", "f32[8,2]", "list")
def stack_of_one_tensor(m, x, y):
    return tg.mean(tg.stack(m(x), y))


@loss("take", "index 9", "size 8", "-8 to 7")
def take_past_the_end(m, x, y):
    return tg.mean(tg.take(m(x), [0, 9], axis=0))
