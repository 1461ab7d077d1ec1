"""Models that are none, or that cannot be read."""

import dataclasses

import numpy as np

import tracegrad as tg
from misuse.table import MLP, SHAPES, X, compiled, loss, mse, predict, program
from tracegrad import nn


@program("MLP", "call it: MLP(")
def model_as_a_class():
    compiled(model=MLP).close()


@program("function mse", "swapped")
def loss_and_model_swapped():
    compiled(model=mse, loss=MLP()).close()


@program("None", "tg.Module")
def model_left_none():
    compiled(model=None).close()


@program("dict", "parameters")
def model_of_arrays():
    compiled(model={"W": X}).close()


@program("CompiledTraining", "tg.Module")
def training_as_a_model():
    with compiled() as train:
        compiled(model=train).close()


@program("Net", "tg.Module")
def model_without_the_base_class():
    class Net:
        def __init__(self):
            self.l = nn.Linear(3, 2)

        def __call__(self, x):
            return self.l(x)

    compiled(model=Net()).close()


@program("Net", "no parameters", "set", "list")
def layers_in_a_set():
    class Net(tg.Module):
        def __init__(self):
            self.layers = {nn.Linear(3, 2)}

    compiled(model=Net()).close()


@program("Net", "layers", "generator", "list")
def layers_in_a_generator():
    class Net(tg.Module):
        def __init__(self):
            self.layers = (nn.Linear(3, 2) for _ in range(2))

    compiled(model=Net()).close()


@program("Net", "no parameters", "self.param")
def layers_that_were_not_kept():
    class Net(tg.Module):
        def __init__(self):
            hidden = nn.Linear(3, 2)
            self.width = hidden.W.shape[1]

    compiled(model=Net()).close()


@program("Net", "'l2'", "super().__init__()")
def base_class_not_initialised():
    class Net(MLP):
        def __init__(self):
            self.l3 = nn.Linear(2, 2)

    compiled(model=Net()).close()


@program("missing shape=", raises=TypeError)
def parameter_made_by_the_class():
    class Net(tg.Module):
        W = tg.Module.param((3, 2))

    Net()


@program("MLP.param", "__init__")
def parameter_made_after_init():
    model = MLP()
    model.extra = model.param((3,))


@loss("parameter", "__init__")
def parameter_made_in_a_loss(m, x, y):
    return tg.mean(m(x) + m.param(2) - y)


@loss("parameter", "__init__")
def layer_made_in_a_loss(m, x, y):
    return tg.mean(nn.Linear(2, 2)(m(x)) - y)


@program("shape", "integers", "2.0")
def parameter_with_a_float_size():
    nn.Linear(3, 4 / 2)


@program("shape", "at least 1", "[3,0]")
def parameter_of_size_zero():
    nn.Linear(3, 0)


@program("shape", "at least 1", "[-1]")
def parameter_of_a_negative_size():
    class Net(tg.Module):
        def __init__(self):
            self.scale = self.param(-1)

    Net()


@program("shape", "'3'")
def parameter_with_a_size_as_text():
    nn.Linear("3", 2)


@program("shape", "None")
def parameter_without_a_size():
    nn.Linear(None, 2)


@program("shape", "f32[3,4]", ".shape")
def parameter_shaped_by_a_parameter():
    class Net(tg.Module):
        def __init__(self):
            self.l = nn.Linear(3, 4)
            self.scale = self.param(self.l.W)

    Net()


@program("init", "0.1", "tg.init.literal")
def parameter_with_a_number_for_init():
    class Net(tg.Module):
        def __init__(self):
            self.scale = self.param(3, init=0.1)

    Net()


@program("literal", "[8,3]", "[3,4]")
def values_of_another_shape():
    nn.Linear(3, 4, init=tg.init.literal(X))


@program("init.uniform", "low", "high")
def uniform_with_bounds_swapped():
    tg.init.uniform(1.0, -1.0)


@program("param", "float64", "tg.f32")
def parameter_of_float64():
    class Net(tg.Module):
        def __init__(self):
            self.W = self.param(3, dtype=np.float64)

    Net()


@program("groups=3", "in_ch=4")
def groups_that_do_not_divide():
    nn.Conv2d(4, 6, 3, groups=3)


@program("kernel_size", "(3, 3, 3)")
def kernel_of_three_sizes():
    nn.Conv2d(1, 4, (3, 3, 3))


@program("kernel_size", "1.5")
def kernel_of_a_float_size():
    nn.Conv2d(1, 4, 1.5)


@program("Parameter f32[3,4]", "tg.instantiate")
def forward_on_parameters():
    predict(MLP(), X)


@loss("MLP", "'l3'", "l1, l2")
def layer_that_is_not_there(m, x, y):
    return tg.mean(m.l3(m(x)) - y)


@loss("MLP", "'l22'", "l2")
def layer_misspelt(m, x, y):
    return tg.mean(m.l22(tg.relu(m.l1(x))) - y)


@loss("Linear", "'w'", "W")
def weight_in_lower_case(m, x, y):
    return tg.mean(tg.square(m.l1.w)) + tg.mean(m(x) - y)


@loss("Linear", raises=TypeError)
def layer_called_with_two_inputs(m, x, y):
    return tg.mean(m.l1(x, y))


@program("trainable", "tg.compile_forward")
def nothing_to_train():
    class Net(tg.Module):
        def __init__(self):
            self.W = self.param((3, 2), trainable=False)

    compiled(model=Net(), loss=lambda m, x, y: tg.mean(x @ m.W - y)).close()


@program("l2.W", "l2.b", "does not use", raises=Warning)
def layer_that_the_loss_does_not_use():
    compiled(loss=lambda m, x, y: tg.mean(m.l1(x)) - tg.mean(y)).close()


@program("'y'", "does not use", raises=Warning)
def input_that_the_loss_does_not_use():
    compiled(loss=lambda m, x, y: tg.mean(tg.square(m(x)))).close()


@program("does not use", "l1.W", "leave them out", raises=Warning)
def loss_without_the_model():
    compiled(loss=lambda m, x, y: tg.mean(x) - tg.mean(y)).close()


@program("Config", "tg.Module")
def dataclass_that_is_no_module():
    @dataclasses.dataclass
    class Config:
        layer: nn.Linear

    compiled(model=Config(nn.Linear(3, 2)), loss=lambda m, x, y: tg.mean(m.layer(x) - y)).close()


@program("two parameters", "rename")
def keys_that_look_alike():
    compiled(model={1: nn.Linear(3, 2), "1": nn.Linear(3, 2)}, loss=lambda m, x, y: tg.mean(m[1](x) - y)).close()


@program("Net", "no parameters", "__init__")
def constructor_that_is_misspelt():
    class Net(tg.Module):
        def __int__(self):
            self.l = nn.Linear(3, 2)

    compiled(model=Net()).close()


@program("Net", "eager tensor", "self.param")
def eager_tensors_as_parameters():
    class Net(tg.Module):
        def __init__(self):
            self.W = tg.parameter(np.zeros((3, 2), np.float32))

        def __call__(self, x):
            return x @ self.W

    tg.compile(model=Net(), loss=mse, inputs=SHAPES, optimizer=tg.optim.adam(lr=0.1), device="cpu").close()


@program("matmul", "Randn")
def initialiser_as_a_parameter():
    class Net(tg.Module):
        def __init__(self):
            self.W = tg.init.randn(0.1)
            self.b = self.param(2)

        def __call__(self, x):
            return x @ self.W + self.b

    compiled(model=Net()).close()
