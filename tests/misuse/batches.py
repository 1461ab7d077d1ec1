"""What `step`, `run_steps`, `run` and `fit` are given."""

import numpy as np

import tracegrad as tg
from misuse.table import SHAPES, X, Y, compiled, predict, program, training


@training("step", "by name", "step(x=..., y=...)", "3")
def batch_by_position(train):
    return train.step(X, Y, X).loss


@training("step", "by name", "step(x=..., y=...)", "write step(*batch)")
def batch_as_a_tuple(train):
    return train.step((X, Y)).loss


@training("step", "x given twice")
def one_array_by_position(train):
    return train.step(X, x=X).loss


@training("step", "y: missing", "f32[8,2]")
def missing_input(train):
    return train.step(x=X).loss


@training("step", "label: unknown", "y: missing", "x f32[8,3]")
def input_of_another_name(train):
    return train.step(x=X, label=Y).loss


@training("step", "X: unknown", "did you mean x")
def input_in_capitals(train):
    return train.step(X=X, y=Y).loss


@training("step", "given twice", "x")
def input_given_twice(train):
    return train.step({"x": X}, x=X, y=Y).loss


@training("x", "f32[8,3]", "f32[8,2]", "swapped")
def inputs_swapped(train):
    return train.step(x=Y, y=X).loss


@training("x", "f32[8,3]", "f32[4,3]", "drop")
def last_smaller_batch(train):
    return train.step(x=X[:4], y=Y[:4]).loss


@training("x", "f32[8,3]", "f32[16,3]", "inputs=")
def batch_that_is_too_large(train):
    return train.step(x=np.concatenate([X, X]), y=np.concatenate([Y, Y])).loss


@training("x", "f32[8,3]", "f32[3,8]", "transpose")
def batch_transposed(train):
    return train.step(x=X.T, y=Y).loss


@training("x", "f32[8,3]", "f32[24]", "reshape")
def batch_flattened(train):
    return train.step(x=X.ravel(), y=Y).loss


@training("x", "f32[8,3]", "f32[3]", "x[None]")
def one_example_without_a_batch(train):
    return train.step(x=X[0], y=Y[0]).loss


@training("y", "f32[8,2]", "f32[8]")
def target_as_a_vector(train):
    return train.step(x=X, y=Y[:, 0]).loss


@training("x", "f32[8,3]", "float64[]")
def number_for_a_batch(train):
    return train.step(x=1.0, y=Y).loss


@training("x", "None")
def none_for_a_batch(train):
    return train.step(x=None, y=Y).loss


@training("x", "str")
def text_for_a_batch(train):
    return train.step(x="a picture.png", y=Y).loss


@training("x", "different lengths", "pad")
def lists_of_different_lengths(train):
    return train.step(x=[[1.0, 2.0, 3.0], [1.0, 2.0]], y=Y).loss


@training("x", "generator", "list")
def generator_for_a_batch(train):
    return train.step(x=(row for row in X), y=Y).loss


@training("x", "dict")
def dict_for_a_batch(train):
    return train.step(x={"values": X}, y=Y).loss


@training("x", "object", "astype")
def array_of_python_objects(train):
    return train.step(x=X.astype(object), y=Y).loss


@training("x", "complex128", "x.real")
def complex_batch(train):
    return train.step(x=X.astype(complex), y=Y).loss


@training("x", "datetime64")
def dates_for_a_batch(train):
    return train.step(x=np.full((8, 3), np.datetime64("2020-01-01")), y=Y).loss


@training("x", "float64", "3.403e+38")
def doubles_that_overflow(train):
    return train.step(x=X.astype(np.float64) * 1e300, y=Y).loss


@training("x", "int64", "astype(np.float32)")
def integers_that_are_not_exact(train):
    return train.step(x=np.full((8, 3), 2**24 + 1), y=Y).loss


@training("run_steps", "4", "f32[4,8,3]", "f32[8,3]")
def steps_of_another_number(train):
    return train.run_steps(4, x=np.stack([X] * 3), y=Y).loss


@training("run_steps", "n", "'10'")
def number_of_steps_as_text(train):
    return train.run_steps("10", x=X, y=Y).loss


@training("run_steps", "0", "from 1 to")
def no_steps(train):
    return train.run_steps(0, x=X, y=Y).loss


@training("run_steps", "n", raises=TypeError)
def steps_without_a_number(train):
    return train.run_steps(x=X, y=Y).loss


@training("run_steps", "first", "run_steps(10, batch)")
def batch_where_the_number_of_steps_belongs(train):
    return train.run_steps({"x": X, "y": Y}).loss


@training("fit", "epochs", "0")
def fit_for_no_epochs(train):
    train.fit([(X, Y)], epochs=0, progress=False)


@training("fit", "epochs", "1.0")
def fit_for_a_float_of_epochs(train):
    train.fit([(X, Y)], epochs=1.0, progress=False)


@training("fit", "data", "None")
def fit_of_nothing(train):
    train.fit(None, progress=False)


@training("fit", "no batch")
def fit_of_an_empty_list(train):
    train.fit([], progress=False)


@training("fit", "function", "call")
def fit_of_a_function(train):
    def batches():
        yield X, Y

    train.fit(batches, progress=False)


@training("fit", "3 values", "x, y")
def batches_of_three_values(train):
    train.fit([(X, Y, Y)], progress=False)


@training("fit", "callbacks", "list")
def callback_that_is_not_in_a_list(train):
    train.fit([(X, Y)], callbacks=print, progress=False)


@program("fit", "epoch 2", "generator", "list")
def generator_for_two_epochs():
    with compiled() as train:
        train.fit(((X, Y) for _ in range(2)), epochs=2, progress=False)


@program("fit", "evaluate", "0.5", '{"accuracy"')
def evaluation_that_returns_a_number():
    with compiled() as train:
        train.fit([(X, Y)], evaluate=lambda t: 0.5, progress=False)


@program("fit", "evaluate", "0.9")
def evaluation_that_is_a_value():
    with compiled() as train:
        train.fit([(X, Y)], evaluate=0.9, progress=False)


@program("run", "x", "f32[8,3]", "f32[8,2]")
def forward_of_another_width():
    with compiled() as train:
        infer = train.attach(forward=predict, inputs={"x": (None, 3)})
        return infer.run(x=Y).output


@program("run", "x", "None", "empty")
def forward_of_an_empty_batch():
    with compiled() as train:
        infer = train.attach(forward=predict, inputs={"x": (None, 3)})
        return infer.run(x=X[:0]).output


@program("run", "x", "y", "equal sizes", "8", "4")
def free_sizes_that_differ():
    with compiled() as train:
        infer = train.attach(forward=lambda m, x, y: m(x) - y, inputs={"x": (None, 3), "y": (None, 2)})
        return infer.run(x=X, y=Y[:4]).output


@program("run", "by name", "run(x=...)")
def forward_by_position():
    with compiled() as train:
        return train.attach(forward=predict, inputs={"x": (8, 3)}).run(X, Y).output


@program("CompiledForward", "run(")
def calling_a_forward():
    with compiled() as train:
        return train.attach(forward=predict, inputs={"x": (8, 3)})(X)


@program("run", "y: unknown", "x f32[8,3]")
def targets_given_to_a_forward():
    with compiled() as train:
        return train.attach(forward=predict, inputs={"x": (8, 3)}).run(x=X, y=Y).output


@program("tokens", "float32", "i32", "astype")
def words_as_floats():
    infer = tg.compile_forward(
        model=tg.nn.Embedding(7, 4), forward=lambda m, tokens: m(tokens), inputs={"tokens": tg.i32[4]}, device="cpu"
    )
    with infer:
        return infer.run(tokens=np.array([0, 1, 1.5, 2], np.float32)).output


@program("embedding", "f32[4]", "tg.i32[")
def words_declared_as_floats():
    tg.compile_forward(
        model=tg.nn.Embedding(7, 4), forward=lambda m, tokens: m(tokens), inputs={"tokens": (4,)}, device="cpu"
    ).close()


@program("run", "no loss", "output")
def loss_of_a_forward():
    with compiled() as train:
        return train.attach(forward=predict, inputs={"x": (8, 3)}).run(x=X).loss


@training("step", "no output", "loss")
def output_of_a_step(train):
    return train.step(x=X, y=Y).output


@program("aux", "'acc'", "accuracy", raises=KeyError)
def aux_that_is_misspelt():
    with compiled(loss=lambda m, x, y: (tg.mean(m(x) - y), {"accuracy": tg.mean(y)})) as train:
        return train.step(x=X, y=Y).aux["acc"]


@program("captures", "'hiden'", "hidden", raises=KeyError)
def capture_that_is_misspelt():
    with compiled(loss=lambda m, x, y: tg.mean(m.l2(tg.capture("hidden", m.l1(x))) - y)) as train:
        return train.step(x=X, y=Y).captures["hiden"]


@program("step", "x", "f32[8,3]", "int64[2]")
def shapes_instead_of_a_batch():
    with compiled() as train:
        return train.step(SHAPES).loss
