"""Tensors, modules and optimizers of PyTorch where those of this library belong."""

import tracegrad as tg
from misuse.table import MLP, SHAPES, Y, loss, mse, program, training


@loss("add", "torch", ".numpy()", needs="torch")
def tensor_of_pytorch_as_an_operand(m, x, y):
    import torch

    return tg.mean(m(x) + torch.ones(8, 2))


@loss("torch.mean", "tg.mean", needs="torch")
def function_of_pytorch_on_a_tensor(m, x, y):
    import torch

    return torch.mean(m(x) - y)


@loss("torch.nn.functional.relu", "tg.relu", needs="torch")
def activation_of_pytorch_in_a_loss(m, x, y):
    import torch

    return tg.mean(torch.nn.functional.relu(m(x)) - y)


@loss("torch", "tg.", needs="torch")
def layer_of_pytorch_in_a_loss(m, x, y):
    import torch

    return tg.mean(torch.nn.Linear(3, 2)(x) - y)


@program("optimizer", "optim.adam(", needs="torch")
def optimizer_of_pytorch():
    import torch

    adam = torch.optim.Adam([torch.zeros(3, requires_grad=True)])
    tg.compile(model=MLP(), loss=mse, inputs=SHAPES, optimizer=adam, device="cpu")


@program("Linear", "tg.Module", needs="torch")
def model_of_pytorch():
    import torch

    tg.compile(model=torch.nn.Linear(3, 2), loss=mse, inputs=SHAPES, optimizer=tg.optim.adam(), device="cpu")


@program("torch.int64", "tg.i32", needs="torch")
def dtype_of_pytorch():
    import torch

    tg.zeros(3, dtype=torch.int64)


@training("x", "detach()", needs="torch")
def batch_of_pytorch_with_a_gradient(train):
    import torch

    return train.step(x=torch.ones(8, 3, requires_grad=True), y=Y).loss


@training("label", "unknown", needs="torch")
def batch_of_a_loader_with_other_names(train):
    import torch

    data = [{"x": torch.ones(8, 3), "label": torch.ones(8, 2)}]
    train.fit(torch.utils.data.DataLoader(data, batch_size=None), progress=False)
