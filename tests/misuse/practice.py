"""Mistakes met while writing ordinary programs: sequences, ops of one's own, files, training loops, looking inside."""

import numpy as np

import tracegrad as tg
from misuse.table import loss, program
from tracegrad import extend, nn

SEQUENCES = np.zeros((2, 5, 3), np.float32)


@program("GRU", "from 0 to 5", "axis 1", "f32[2,5,3]", "got 9")
def length_of_a_sequence_beyond_its_end():
    tg.instantiate(nn.GRU(3, 4), seed=0)(SEQUENCES, lengths=np.array([2, 9], np.int32))


@loss("max", "bool[8,1]", "tg.any")
def largest_of_one_truth_value(m, x, y):
    return tg.mean(tg.cast(tg.max(m(x)[:, :1] > 0, axis=1), tg.f32) * y[:, 0])


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
