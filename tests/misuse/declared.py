"""What `inputs=`, `device=`, `seed=` and their kin may say."""

import numpy as np

import tracegrad as tg
from misuse.table import MLP, SHAPES, X, Y, compiled, mse, predict, program
from tracegrad import optim


@program("'a-b'", "'a_b'", "Python identifier")
def input_name_with_a_hyphen():
    tg.trace(model=MLP(), loss=mse, inputs={"a-b": (8, 3), "y": (8, 2)})


@program("'1x'", "Python identifier")
def input_name_with_a_digit_in_front():
    tg.trace(model=MLP(), loss=mse, inputs={"1x": (8, 3), "y": (8, 2)})


@program("''", "Python identifier")
def input_name_that_is_empty():
    tg.trace(model=MLP(), loss=mse, inputs={"": (8, 3), "y": (8, 2)})


@program("first argument", "model")
def input_named_like_the_model():
    tg.trace(model=MLP(), loss=lambda m, y: tg.mean(m(y)), inputs={"m": (8, 3), "y": (8, 2)})


@program("inputs", "dict", '{"x": (64, 784)}')
def inputs_as_a_list():
    tg.trace(model=MLP(), loss=mse, inputs=[(8, 3), (8, 2)])


@program("inputs", "dict")
def inputs_as_one_shape():
    tg.trace(model=MLP(), loss=mse, inputs=(8, 3))


@program("dict", '{"x": (64, 784)}')
def inputs_as_a_set():
    tg.trace(model=MLP(), loss=mse, inputs={"x"})


@program("'x'", "a shape or a type", "ndarray", "(8, 3)", "step")
def inputs_as_arrays():
    tg.trace(model=MLP(), loss=mse, inputs={"x": X, "y": Y})


@program("'x'", "float64", "f32")
def input_of_a_numpy_dtype():
    tg.trace(model=MLP(), loss=mse, inputs={"x": np.float64, "y": (8, 2)})


@program("'x'", "i32", "no shape", "tg.i32[")
def input_of_a_dtype_alone():
    tg.trace(model=MLP(), loss=mse, inputs={"x": tg.i32, "y": (8, 2)})


@program("'x'", "tg.i32[64, 128]")
def input_of_a_dtype_and_a_shape():
    tg.trace(model=MLP(), loss=mse, inputs={"x": (tg.i32, (8, 3)), "y": (8, 2)})


@program("'x'", "8.0", "integer")
def input_size_as_a_float():
    tg.trace(model=MLP(), loss=mse, inputs={"x": (16 / 2, 3), "y": (8, 2)})


@program("'x'", "-1", "None")
def input_size_of_minus_one():
    tg.trace(model=MLP(), loss=mse, inputs={"x": (-1, 3), "y": (-1, 2)})


@program("'x'", "0", "at least 1")
def input_size_of_zero():
    tg.trace(model=MLP(), loss=mse, inputs={"x": (0, 3), "y": (0, 2)})


@program("'x'", "None", "a number")
def batch_size_left_open_in_a_trace():
    tg.trace(model=MLP(), loss=mse, inputs={"x": (None, 3), "y": (None, 2)})


@program("'x'", "'8x3'")
def input_shape_as_text():
    tg.trace(model=MLP(), loss=mse, inputs={"x": "8x3", "y": (8, 2)})


@program("'x'", "True")
def input_size_as_a_bool():
    tg.trace(model=MLP(), loss=mse, inputs={"x": (8, True), "y": (8, 2)})


@program("'X'", "'x'")
def input_name_in_capitals():
    tg.trace(model=MLP(), loss=mse, inputs={"X": (8, 3), "y": (8, 2)})


@program("tg", "i64", "tg.i32")
def dtype_i64():
    tg.trace(model=MLP(), loss=mse, inputs={"x": tg.i64[8], "y": (8, 2)})


@program("'float32'", "tg.f32")
def dtype_float32():
    tg.trace(model=MLP(), loss=mse, inputs={"x": tg.float32[8, 3], "y": (8, 2)})


@program("device", "'gpu'", "'webgpu'")
def device_gpu():
    tg.compile(model=MLP(), loss=mse, inputs=SHAPES, optimizer=optim.adam(), device="gpu")


@program("device", "'cuda:0'", "'webgpu'")
def device_cuda():
    tg.compile(model=MLP(), loss=mse, inputs=SHAPES, optimizer=optim.adam(), device="cuda:0")


@program("device", "'CPU'", "'cpu'")
def device_in_capitals():
    tg.compile(model=MLP(), loss=mse, inputs=SHAPES, optimizer=optim.adam(), device="CPU")


@program("device", "None", "'auto'")
def device_none():
    tg.compile(model=MLP(), loss=mse, inputs=SHAPES, optimizer=optim.adam(), device=None)


@program("device", "0", "'auto'")
def device_as_a_number():
    tg.compile_forward(model=MLP(), forward=predict, inputs={"x": (8, 3)}, device=0)


@program("seed", "'42'", "integer")
def seed_as_text():
    tg.compile(model=MLP(), loss=mse, inputs=SHAPES, optimizer=optim.adam(), seed="42", device="cpu")


@program("seed", "-1")
def seed_below_zero():
    tg.compile(model=MLP(), loss=mse, inputs=SHAPES, optimizer=optim.adam(), seed=-1, device="cpu")


@program("precision", "'fp16'", "'f16'")
def precision_fp16():
    tg.compile(model=MLP(), loss=mse, inputs=SHAPES, optimizer=optim.adam(), precision="fp16", device="cpu")


@program("precision", "tg.f32", "'f32'")
def precision_as_a_dtype():
    tg.compile(model=MLP(), loss=mse, inputs=SHAPES, optimizer=optim.adam(), precision=tg.f32, device="cpu")


@program("max_cached_shapes", "at least 1")
def no_cached_shapes():
    tg.compile_forward(model=MLP(), forward=predict, inputs={"x": (None, 3)}, max_cached_shapes=0, device="cpu")


@program("max_cached_shapes", "None", "integer")
def cached_shapes_without_a_limit():
    tg.compile_forward(model=MLP(), forward=predict, inputs={"x": (None, 3)}, max_cached_shapes=None, device="cpu")


@program("tg.compile", "missing loss=", raises=TypeError)
def compile_without_a_loss():
    tg.compile(model=MLP(), inputs=SHAPES, optimizer=optim.adam(), device="cpu")


@program("tg.compile", "missing optimizer=", raises=TypeError)
def compile_without_an_optimizer():
    tg.compile(model=MLP(), loss=mse, inputs=SHAPES, device="cpu")


@program("optimizer", "call", "optim.adam")
def optimizer_that_is_not_called():
    tg.compile(model=MLP(), loss=mse, inputs=SHAPES, optimizer=optim.adam, device="cpu")


@program("optimizer", "transform", "optim.custom")
def transform_as_an_optimizer():
    tg.compile(model=MLP(), loss=mse, inputs=SHAPES, optimizer=optim.scale_by_adam(), device="cpu")


@program("optimizer", "0.01", "optim.adam")
def rate_as_an_optimizer():
    tg.compile(model=MLP(), loss=mse, inputs=SHAPES, optimizer=0.01, device="cpu")


@program("inside another trace")
def compile_in_a_loss():
    model = MLP()

    def wrong(m, x, y):
        infer = tg.compile_forward(model=model, forward=predict, inputs={"x": (8, 3)}, device="cpu")
        return tg.mean(infer.run(x=X).output - y)

    compiled(loss=wrong).close()


@program("step", "tracing")
def training_in_a_loss():
    with compiled() as train:
        compiled(loss=lambda m, x, y: train.step(x=x, y=y).loss).close()
