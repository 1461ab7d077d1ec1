"""Shapes that do not fit, axes that are not there, reductions that were forgotten."""

import tracegrad as tg
from misuse.table import classes, images, loss, texts


@loss("mse_loss_without_a_reduction", "f32[]", "f32[8,2]", "tg.mean")
def mse_loss_without_a_reduction(m, x, y):
    return tg.square(m(x) - y)


@loss("f32[8]", "tg.mean")
def reduces_over_one_axis_only(m, x, y):
    return tg.mean(tg.square(m(x) - y), axis=1)


@loss("mean", "axis 2", "f32[8,2]")
def axis_that_is_not_there(m, x, y):
    return tg.mean(m(x) - y, axis=2)


@loss("sum", "axis -3", "f32[8,2]")
def negative_axis_that_is_not_there(m, x, y):
    return tg.sum(m(x) - y, axis=-3)


@loss("sum", "1.0", "integer", "write 1")
def axis_as_a_float(m, x, y):
    return tg.sum(m(x) - y, axis=1.0)


@loss("sum", "True", "integer", "keepdims")
def axis_as_a_bool(m, x, y):
    return tg.mean(tg.sum(m(x) - y, True))


@loss("sum", "'rows'", "integer")
def axis_as_a_name(m, x, y):
    return tg.mean(tg.sum(m(x) - y, axis="rows"))


@loss("softmax", "axis 2", "f32[8,2]")
def softmax_over_a_missing_axis(m, x, y):
    return tg.mean(tg.softmax(m(x), axis=2) - y)


@loss("sum", "(0, 0)", "twice")
def same_axis_twice(m, x, y):
    return tg.sum(m(x) - y, axis=(0, 0))


@loss("sub", "f32[8,2]", "f32[8,3]")
def target_of_another_width(m, x, y):
    return tg.mean(tg.square(m(x) - x))


@loss("add", "f32[8,2]", "f32[8]")
def bias_for_each_example(m, x, y):
    return tg.mean(m(x) + tg.sum(y, axis=1))


@loss("matmul", "f32[8,3]", "f32[4,2]")
def layers_in_the_wrong_order(m, x, y):
    return tg.mean(m.l1(m.l2(x)) - y)


@loss("matmul", "f32[8,2]", "swapaxes")
def weight_transposed_as_in_pytorch(m, x, y):
    return tg.mean(y @ m.l2.W)


@loss("matmul", "f32[8,3]", "f32[8,3]", "swapaxes")
def gram_matrix_without_a_transpose(m, x, y):
    return tg.mean(x @ x) + tg.mean(m(x) - y)


@loss("matmul", "f32[]")
def matmul_with_a_scalar(m, x, y):
    return tg.mean(m(x) @ tg.mean(y))


@loss("matmul", "f32[8,2]", "f32[]", "use *")
def matmul_with_a_number(m, x, y):
    return tg.mean(m(x) @ 2.0)


@loss("reshape", "f32[8,3]", "[5,-1]")
def reshape_that_does_not_divide(m, x, y):
    return tg.mean(m(x.reshape(5, -1)))


@loss("reshape", "f32[8,3]", "[8,4]", "32")
def reshape_to_another_size(m, x, y):
    return tg.mean(m(x.reshape((8, 4))))


@loss("reshape", "-1")
def reshape_with_two_unknowns(m, x, y):
    return tg.mean(x.reshape(-1, -1)) + tg.mean(m(x) - y)


@loss("reshape", "-2")
def reshape_to_a_negative_size(m, x, y):
    return tg.mean(x.reshape(-2, 12)) + tg.mean(m(x) - y)


@loss("reshape", "8.0", "integer", "//")
def reshape_with_a_quotient(m, x, y):
    return tg.mean(x.reshape(16 / 2, 3)) + tg.mean(m(x) - y)


@loss("f32[]", "cannot be a size", "x.shape")
def reshape_with_a_tensor(m, x, y):
    return tg.mean(x.reshape(tg.sum(y))) + tg.mean(m(x) - y)


@loss("concat", "list", "tg.concat([a, b]")
def concat_of_separate_arguments(m, x, y):
    return tg.mean(tg.concat(m(x), y))


@loss("concat", "f32[8,3]", "f32[8,2]", "axis 0")
def concat_along_the_wrong_axis(m, x, y):
    return tg.mean(tg.concat([x, y])) + tg.mean(m(x))


@loss("stack", "f32[8,3]", "f32[8,2]")
def stack_of_different_shapes(m, x, y):
    return tg.mean(tg.stack([x, y])) + tg.mean(m(x))


@loss("concat", "at least one")
def concat_of_nothing(m, x, y):
    return tg.mean(tg.concat([])) + tg.mean(m(x) - y)


@loss("split", "f32[8,3]", "2", "sizes")
def split_that_does_not_divide(m, x, y):
    a, b = tg.split(x, 2, axis=1)
    return tg.mean(a) + tg.mean(b) + tg.mean(m(x) - y)


@loss("split", "(1, 1)", "3")
def split_into_too_little(m, x, y):
    a, b = tg.split(x, (1, 1), axis=1)
    return tg.mean(a) + tg.mean(b) + tg.mean(m(x) - y)


@loss("permute", "f32[8,3]", "(0, 2, 1)")
def permute_of_another_rank(m, x, y):
    return tg.mean(x.permute(0, 2, 1)) + tg.mean(m(x) - y)


@loss("transpose", "swapaxes", "(0, 0)")
def transpose_naming_an_axis_twice(m, x, y):
    return tg.mean(x.transpose(0, 0)) + tg.mean(m(x) - y)


@loss("broadcast_to", "f32[8,3]", "[8,6]")
def broadcast_of_a_long_axis(m, x, y):
    return tg.mean(x.broadcast_to((8, 6))) + tg.mean(m(x) - y)


@loss("squeeze", "f32[8,3]", "axis 1")
def squeeze_of_a_long_axis(m, x, y):
    return tg.mean(x.squeeze(1)) + tg.mean(m(x) - y)


@loss("pad", "f32[8,3]", "(before, after)")
def pad_in_the_order_of_pytorch(m, x, y):
    return tg.mean(tg.pad(x, (1, 1, 2, 2))) + tg.mean(m(x) - y)


@loss("pad", "negative")
def pad_by_less_than_nothing(m, x, y):
    return tg.mean(tg.pad(x, -1)) + tg.mean(m(x) - y)


@loss("getitem", "index 8", "f32[8,2]", "-8 to 7")
def index_past_the_end(m, x, y):
    return tg.mean(m(x)[8]) + tg.mean(x[8] - y[0])


@loss("getitem", "f32[8,3]", "3 indices")
def index_of_an_axis_too_many(m, x, y):
    return tg.mean(x[0, 0, 0]) + tg.mean(m(x) - y)


@loss("getitem", "1.5", "integer")
def index_that_is_a_float(m, x, y):
    return tg.mean(x[1.5]) + tg.mean(m(x) - y)


@loss("getitem", "bool[8,3]", "tg.where")
def index_by_a_mask(m, x, y):
    return tg.mean(x[x > 0]) + tg.mean(m(x) - y)


@loss("narrow", "f32[8,3]", "axis 1")
def narrow_past_the_end(m, x, y):
    return tg.mean(x.narrow(1, 2, 5)) + tg.mean(m(x) - y)


@loss("einsum", "bc", "f32[8,3]")
def einsum_of_another_rank(m, x, y):
    return tg.einsum("abc,bc->", x, y) + tg.mean(m(x))


@loss("einsum", "f32[8,3]", "f32[8,2]")
def einsum_of_different_sizes(m, x, y):
    return tg.einsum("ij,ij->", x, y) + tg.mean(m(x))


@loss("einsum")
def einsum_with_an_unknown_output(m, x, y):
    return tg.einsum("ij->k", x) + tg.mean(m(x) - y)


@loss("mse_loss", "f32[8,2]", "f32[8]")
def mse_of_a_column_and_a_vector(m, x, y):
    return tg.mse_loss(m(x), y[:, 0])


@loss("mse_loss", "f32[8,1]", "f32[8]", "tg.squeeze(x, -1) of the first")
def mse_of_one_column_and_a_vector(m, x, y):
    return tg.mse_loss(m(x)[:, :1], y[:, 0])


@images("conv2d", "f32[2,8,8,1]", "f32[4,1,3,3]", "x.permute(0, 3, 1, 2)")
def images_with_channels_last(m, x, label):
    y = m.conv(x.permute(0, 2, 3, 1))
    return tg.cross_entropy(m.dense(tg.flatten(y)), label)


@images("conv2d", "f32[1,8,8]", "x[None]")
def one_image_without_a_batch(m, x, label):
    return tg.mean(m.conv(x[0])) + tg.mean(m.dense.W)


@images("max_pool2d", "f32[2,4,8,8]", "9x9", "smaller")
def pool_larger_than_the_image(m, x, label):
    return tg.mean(tg.max_pool2d(m.conv(x), 9)) + tg.mean(m.dense.W)


@images("matmul", "f32[2,256]", "f32[64,5]")
def dense_layer_after_a_forgotten_pool(m, x, label):
    return tg.cross_entropy(m.dense(tg.flatten(m.conv(x))), label)


@images("matmul", "f32[2,4,4,4]", "f32[64,5]", "flatten")
def dense_layer_without_a_flatten(m, x, label):
    return tg.cross_entropy(m.dense(tg.max_pool2d(m.conv(x), 2)), label)


@images("max_pool2d", "'2'")
def pool_size_as_text(m, x, label):
    return tg.mean(tg.max_pool2d(m.conv(x), "2")) + tg.mean(m.dense.W)


@images("conv2d", "padding", "'same'")
def padding_same_as_in_keras(m, x, label):
    return tg.mean(tg.conv2d(x, m.conv.W, padding="same")) + tg.mean(m.dense.W)


@images("conv2d", "stride", "0")
def stride_of_nothing(m, x, label):
    return tg.mean(tg.conv2d(x, m.conv.W, stride=0)) + tg.mean(m.dense.W)


@texts("split_heads", "f32[2,6,4]", "3")
def heads_that_do_not_divide_the_width(m, tokens):
    return tg.mean(tg.split_heads(m.table(tokens), 3)) + tg.mean(m.head.W)


@texts("attention", "f32[2,6,4]", "f32[2,6,2]")
def attention_of_different_widths(m, tokens):
    h = m.table(tokens)
    return tg.mean(tg.attention(h, h[:, :, :2], h)) + tg.mean(m.head.W)


@texts("cross_entropy", "f32[2,6,7]", "i32[2,5]")
def next_words_shifted_on_one_side_only(m, tokens):
    return tg.cross_entropy(m.head(m.table(tokens)), tokens[:, 1:])


@classes("layer_norm", "f32[8,5]", "f32[3]")
def norm_of_another_width(m, x, label):
    return tg.cross_entropy(tg.layer_norm(m(x), tg.ones(3), tg.zeros(3)), label)
