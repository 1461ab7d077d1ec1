"""What losses and forwards return, targets of classes, and errors that only show in the result."""

import numpy as np

import tracegrad as tg
from misuse.table import LABEL, MLP, SHAPES, X, Y, classes, compiled, loss, predict, program


@loss("loss_without_a_return", "None", "return")
def loss_without_a_return(m, x, y):
    tg.mean(tg.square(m(x) - y))


@loss("loss_that_returns_an_integer", "int", "tg.mean")
def loss_that_returns_an_integer(m, x, y):
    tg.mean(m(x) - y)
    return 0


@loss("loss_that_returns_an_array", "ndarray")
def loss_that_returns_an_array(m, x, y):
    tg.mean(m(x) - y)
    return np.zeros(())


@loss("loss_that_returns_a_list", "list", '{"name": tensor}')
def loss_that_returns_a_list(m, x, y):
    return [tg.mean(m(x) - y), {"prediction": m(x)}]


@loss("tuple", '{"name": tensor}')
def loss_that_returns_three_things(m, x, y):
    return tg.mean(m(x) - y), m(x), y


@loss("aux", "f32[8,2]", '{"name": tensor}')
def aux_without_a_name(m, x, y):
    return tg.mean(m(x) - y), m(x)


@loss("aux", "'rate'", "float", "tensor")
def aux_with_a_number(m, x, y):
    return tg.mean(m(x) - y), {"rate": 0.1}


@loss("aux", "'layers'", "list")
def aux_with_a_list(m, x, y):
    return tg.mean(m(x) - y), {"layers": [m.l1(x), m(x)]}


@loss("f32[]", "first")
def aux_before_the_loss(m, x, y):
    return {"prediction": m(x)}, tg.mean(m(x) - y)


@loss("loss_that_returns_a_dict", "dict", "aux")
def loss_that_returns_a_dict(m, x, y):
    return {"loss": tg.mean(m(x) - y)}


@loss("loss_that_returns_the_model", "MLP")
def loss_that_returns_the_model(m, x, y):
    return m


@loss("function", "call")
def loss_that_returns_a_function(m, x, y):
    return lambda: tg.mean(m(x) - y)


@classes("i32[]", "f32[]")
def loss_that_counts(m, x, label):
    return tg.sum(tg.cast(tg.argmax(m(x), axis=1) == label, tg.i32))


@program("no gradient", "argmax", raises=Warning)
def accuracy_as_a_loss():
    compiled_classes(lambda m, x, label: tg.mean(tg.argmax(m(x), axis=1) == label)).close()


@program("generator", "yield")
def loss_that_yields():
    def wrong(m, x, y):
        yield tg.mean(m(x) - y)

    compiled(loss=wrong).close()


@program("async", "await")
def loss_that_is_async():
    async def wrong(m, x, y):
        return tg.mean(m(x) - y)

    compiled(loss=wrong).close()


@program("forward_without_a_return", "None", "return")
def forward_without_a_return():
    def forward_without_a_return(m, x):
        m(x)

    tg.compile_forward(model=MLP(), forward=forward_without_a_return, inputs={"x": (8, 3)}, device="cpu")


@program("list", "1", "str", "tensors")
def forward_that_returns_text():
    tg.compile_forward(model=MLP(), forward=lambda m, x: [m(x), "done"], inputs={"x": (8, 3)}, device="cpu")


@program("nested", "'a'", "tuple")
def forward_that_returns_a_tree():
    tg.compile_forward(model=MLP(), forward=lambda m, x: {"a": (m(x), x)}, inputs={"x": (8, 3)}, device="cpu")


# Targets
@classes("softmax", "cross_entropy", "logits", raises=Warning)
def softmax_before_cross_entropy(m, x, label):
    return tg.cross_entropy(tg.softmax(m(x)), label)


@classes("softmax", "nll_loss", "log_softmax", raises=Warning)
def softmax_before_nll_loss(m, x, label):
    return tg.nll_loss(tg.softmax(m(x)), label)


@loss("sigmoid", "binary_cross_entropy_with_logits", raises=Warning)
def sigmoid_before_the_loss_with_logits(m, x, y):
    return tg.binary_cross_entropy_with_logits(tg.sigmoid(m(x)), y)


@classes("nll_loss", "f32[8,5]", "argmax")
def one_hot_targets(m, x, label):
    return tg.nll_loss(tg.log_softmax(m(x)), tg.one_hot(label, 5))


@loss("cross_entropy", "f32[8,2]", "i32", "tg.i32[")
def float_targets(m, x, y):
    return tg.cross_entropy(m(x), y[:, 0])


@classes("cross_entropy", "i32[8,1]", "f32[8,5]", "reshape")
def targets_as_a_column(m, x, label):
    return tg.cross_entropy(m(x), label.reshape(-1, 1))


@classes("cross_entropy", "swapped", "i32[8]", "f32[8,5]")
def logits_and_targets_swapped(m, x, label):
    return tg.cross_entropy(label, m(x))


@classes("binary_cross_entropy_with_logits", "i32", "tg.cast")
def integer_targets_of_two_classes(m, x, label):
    return tg.binary_cross_entropy_with_logits(m(x)[:, 0], label)


@classes("cross_entropy", "'avg'", "'mean'")
def reduction_that_is_none(m, x, label):
    return tg.cross_entropy(m(x), label, reduction="avg")


@classes("cross_entropy", "f32[8]", "tg.mean")
def reduction_none_and_no_mean(m, x, label):
    return tg.cross_entropy(m(x), label, reduction="none")


@classes("label_smoothing", "[0, 1]", "10")
def smoothing_in_percent(m, x, label):
    return tg.cross_entropy(m(x), label, label_smoothing=10)


@classes("cross_entropy", "class 7", "0 to 4")
def constant_target_out_of_range(m, x, label):
    return tg.cross_entropy(m(x), np.full(8, 7, np.int32))


@classes("one_hot", "f32", "tg.i32")
def one_hot_of_floats(m, x, label):
    return tg.mean(m(x) - tg.one_hot(tg.cast(label, tg.f32), 5))


@program("label", "value 5", "0 to 4", "counted from 0")
def targets_counted_from_one():
    with compiled_classes() as train:
        return train.step(x=X, label=LABEL + 1).loss


@program("label", "float64", "i32", "astype")
def targets_given_as_floats():
    with compiled_classes() as train:
        return train.step(x=X, label=LABEL + 0.5).loss


@program("label", "i32[8]", "f32[8,5]", "argmax")
def targets_given_as_one_hot():
    with compiled_classes() as train:
        return train.step(x=X, label=np.eye(5, dtype=np.float32)[LABEL]).loss


@program("tokens", "value 9", "0 to 6")
def word_out_of_range():
    infer = tg.compile_forward(
        model=tg.nn.Embedding(7, 4), forward=lambda m, tokens: m(tokens), inputs={"tokens": tg.i32[4]}, device="cpu"
    )
    with infer:
        return infer.run(tokens=[0, 1, 9, 2]).output


@program("log", "f32[8,3]", "nothing was changed")
def logarithm_of_negative_numbers():
    with compiled(loss=lambda m, x, y: tg.mean(tg.log(x)) + tg.mean(m(x) - y)) as train:
        return train.step(x=X, y=Y).loss


@program("nothing was changed", "'x'", late=True)
def batch_with_a_nan():
    with compiled() as train:
        return train.step(x=np.where(X > 0.9, np.nan, X), y=Y).loss


def compiled_classes(loss=lambda m, x, label: tg.cross_entropy(m(x), label)):
    return compiled(model=MLP(out=5), loss=loss, inputs={"x": (8, 3), "label": tg.i32[8]})


@program("predict", "f32[8,2]", "tg.mean")
def forward_given_as_a_loss():
    compiled(loss=predict, inputs={"x": (8, 3)}).close()


@program("y", "m, x, y", "model")
def loss_without_the_model_argument():
    compiled(loss=lambda x, y: tg.mean(x) - tg.mean(y)).close()


@program("y", "m", "inputs")
def loss_with_the_model_last():
    compiled(loss=lambda x, y, m: tg.mean(m(x) - y)).close()


@program("function", "f32[]")
def loss_that_is_a_value():
    compiled(loss=tg.mean(tg.tensor(Y))).close()


@program("y", "not declared", "declared")
def loss_that_takes_an_undeclared_input():
    compiled(inputs={"x": (8, 3)}).close()


@program("'z'", "does not take it")
def loss_that_does_not_take_an_input():
    compiled(inputs={**SHAPES, "z": (3,)}).close()
