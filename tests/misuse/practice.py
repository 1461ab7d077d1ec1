"""Mistakes met while writing ordinary programs: sequences, ops of one's own, files, training loops, looking inside."""

import tempfile

import numpy as np

import tracegrad as tg
from misuse.table import X, Y, classes, compiled, loss, program
from tracegrad import extend, nn, optim

SEQUENCES = np.zeros((2, 5, 3), np.float32)


@program("GRU", "from 0 to 5", "axis 1", "f32[2,5,3]", "got 9")
def length_of_a_sequence_beyond_its_end():
    tg.instantiate(nn.GRU(3, 4), seed=0)(SEQUENCES, lengths=np.array([2, 9], np.int32))


@loss("max", "bool[8,1]", "tg.any")
def largest_of_one_truth_value(m, x, y):
    return tg.mean(tg.cast(tg.max(m(x)[:, :1] > 0, axis=1), tg.f32) * y[:, 0])


@loss("argmax", "bool[8,1]", "tg.cast")
def place_of_one_truth_value(m, x, y):
    return tg.mean(tg.cast(tg.argmax(m(x)[:, :1] > 0, axis=1), tg.f32) * y[:, 0])


@loss("where_causal", "rank 0", "f32[8,8]", "tg.where")
def causal_fill_that_is_a_matrix(m, x, y):
    return tg.mean(tg.where_causal(m(x) @ tg.swapaxes(y, 0, 1), np.zeros((8, 8), np.float32)))


@loss("pad", "value must be a number", "'edge'", "np.pad(np.arange(n)")
def mode_of_numpys_pad(m, x, y):
    return tg.mean(tg.pad(m(x), 1, "edge"))


@loss("pad", "value must be a number", "None")
def padding_with_nothing(m, x, y):
    return tg.mean(tg.pad(m(x), 1, value=None))


ALONE = extend.elementwise("cube_alone", array="{0}**3", wgsl="({0} * {0} * {0})", vjp=lambda ct, y, x: ct * 3 * x * x)
SUMMED = extend.elementwise("cube_summed", array="{0}**3", wgsl="({0} * {0} * {0})", vjp=lambda ct, y, x: (tg.sum(ct),))


@loss("cube_alone", "a tuple", "f32[8,2] alone", "write (g,)")
def derivative_that_is_not_in_a_tuple(m, x, y):
    return tg.mean(ALONE(m(x)) * y)


@loss("cube_summed", "here of (f32[8,2],)", "got (f32[],)")
def derivative_of_another_shape(m, x, y):
    return tg.mean(SUMMED(m(x)) * y)


@classes("cross_entropy", "a score for each class", "i32[8]", "second argument")
def loss_of_predicted_classes(m, x, label):
    return tg.cross_entropy(tg.argmax(m(x), axis=-1), label)


@classes("accuracy", "a score for each class", "i32[8]", "second argument")
def accuracy_with_swapped_arguments(m, x, label):
    return tg.cross_entropy(m(x), label), {"accuracy": tg.metrics.accuracy(label, m(x))}


@loss("einsum", "the letters", "come first", "tg.einsum('ij,jk->ik', a, b)")
def einsum_with_the_letters_last(m, x, y):
    return tg.mean(tg.einsum(m(x), y, "bi,bj->bij"))


@loss("aux must be a dict of tensors", "'weight' is a float")
def number_among_the_further_results(m, x, y):
    return tg.mse_loss(m(x), y), {"weight": 0.5}


@program("no parameters", "scale is an array, a constant", "tg.init.literal(array)")
def parameter_that_is_an_array():
    class Scale(tg.Module):
        def __init__(self):
            self.scale = np.ones(3, np.float32)

    compiled(model=Scale(), loss=lambda m, x, y: tg.mse_loss((x * m.scale)[:, :2], y))


@program("precision", "did you mean 'f16'?")
def precision_by_numpys_name():
    compiled(precision="float16")


@program("no parameter", "frozen=")
def freezing_all_parameters():
    compiled(frozen="*")


@program("Conv2d", "stride must be at least 1", "got 0")
def convolution_with_a_stride_of_0():
    nn.Conv2d(1, 8, 3, stride=0)


@program("best", "3 numbers", "sweep.losses")
def best_of_a_sweep_by_one_loss():
    inputs, losses = {"x": (8, 3), "y": (8, 2)}, lambda m, x, y: tg.mse_loss(m(x), y)
    with tg.sweep(model=nn.Linear(3, 2), loss=losses, inputs=inputs, optimizer=optim.adam(), seeds=[0, 1, 2]) as sweep:
        sweep.best(sweep.step(x=X, y=Y).loss)


@program("export", "each call of step chooses a size", "sizes=64")
def page_without_a_largest_size():
    with compiled(inputs={"x": (None, 3), "y": (None, 2)}) as train, tempfile.TemporaryDirectory() as folder:
        train.export(folder)
