"""Habits of PyTorch: its keywords, methods, names of modules, and its training loop."""

import numpy as np

import tracegrad as tg
from misuse.table import MLP, SHAPES, X, Y, classes, compiled, images, loss, mse, program, shared, training
from tracegrad import nn, optim


# Keywords
@loss("sum", "'dim'", "axis=1", raises=TypeError)
def keyword_dim_of_a_method(m, x, y):
    return tg.mean((m(x) - y).sum(dim=1))


@loss("mean", "'dim'", "axis=", raises=TypeError)
def keyword_dim_of_a_function(m, x, y):
    return tg.mean(m(x) - y, dim=(0, 1))


@loss("sum", "'keepdim'", "keepdims=True", raises=TypeError)
def keyword_keepdim(m, x, y):
    return tg.mean(tg.sum(m(x) - y, axis=1, keepdim=True))


@classes("softmax", "'dim'", "axis=-1", raises=TypeError)
def softmax_over_dim(m, x, label):
    return tg.mean(tg.softmax(m(x), dim=-1))


@loss("concat", "'dim'", "axis=1", raises=TypeError)
def concat_over_dim(m, x, y):
    return tg.mean(tg.concat([m(x), y], dim=1))


@loss("var", "'unbiased'", "ddof", raises=TypeError)
def variance_unbiased(m, x, y):
    return tg.var(m(x) - y, unbiased=False)


@classes("cross_entropy", "'target'; write targets=", "write logits=", raises=TypeError)
def cross_entropy_of_target(m, x, label):
    return tg.cross_entropy(input=m(x), target=label)


@classes("x.cummax(axis)[0] picks element 0", "values only", "Write x.cummax(axis)", raises=Warning)
def values_of_a_running_maximum(m, x, label):
    return tg.cross_entropy(m(x).cummax(1)[0][None], label[:1])


@classes("x.max(axis)[0] picks element 0", "values only", "x.argmax(axis)", raises=Warning)
def the_pair_that_max_gives_elsewhere(m, x, label):
    return tg.mean(m(x).max(1)[0])


@classes("nll_loss", "weight must be f32[5]", "f32[6]")
def nll_loss_with_weights_of_more_classes(m, x, label):
    return tg.nll_loss(tg.log_softmax(m(x)), label, weight=tg.ones(6))


@classes("cross_entropy", "weight must be f32[5]", "f32[4]")
def weights_of_fewer_classes(m, x, label):
    return tg.cross_entropy(m(x), label, weight=tg.ones(4))


@loss("relu", "'inplace'", "use the result", raises=TypeError)
def relu_in_place(m, x, y):
    return tg.mean(tg.relu(m(x), inplace=True) - y)


@loss("zeros", "'device'", "tg.compile", raises=TypeError)
def zeros_on_a_device(m, x, y):
    return tg.mean(m(x) - tg.zeros((8, 2), device="cuda"))


@loss("dropout", "'train'", "training=True", raises=TypeError)
def dropout_with_a_misspelt_flag(m, x, y):
    return tg.mean(tg.dropout(m(x), p=0.5, train=True) - y)


@program("Linear", "'in_features'", "in_dim", raises=TypeError)
def linear_with_names_of_pytorch():
    nn.Linear(in_features=3, out_features=4)


@program("Linear", "'device'", "tg.compile", raises=TypeError)
def linear_on_a_device():
    nn.Linear(3, 4, device="cuda")


@program("Conv2d", "'padding_mode'", "tg.pad", raises=TypeError)
def convolution_that_reflects():
    nn.Conv2d(1, 4, 3, padding=1, padding_mode="reflect")


@program("Embedding", "'padding_idx'", "vocab, dim", raises=TypeError)
def embedding_with_a_padding_index():
    nn.Embedding(7, 4, padding_idx=0)


@program("adam", "betas", "beta1", raises=TypeError)
def adam_with_betas():
    optim.adam(lr=0.01, betas=(0.9, 0.999))


@program("adam", "amsgrad", "plain Adam", raises=TypeError)
def amsgrad():
    optim.adam(lr=0.01, amsgrad=True)


@program("lr", "tg.compile(model=")
def optimizer_of_parameters_as_in_pytorch():
    optim.adam([MLP().l1.W], 0.01)


@program("MLP", "parameters", "named_parameters")
def optimizer_of_model_parameters():
    optim.adam(MLP().parameters(), lr=0.01)


# Methods of tensors
@loss("x.size", "24", "x.shape[0]")
def size_as_a_method(m, x, y):
    return tg.sum(m(x) - y) / x.size()


@loss("x.size", "24", "x.shape[0]")
def size_of_an_axis(m, x, y):
    return tg.sum(m(x) - y) / x.size(0)


@loss("f32[8,2]", "'view'", "x.reshape")
def view_of_a_tensor(m, x, y):
    return tg.mean(m(x).view(-1) - y.view(-1))


@loss("'cuda'", "device")
def tensor_to_cuda(m, x, y):
    return tg.mean(m(x.cuda()) - y.cuda())


@loss("'to'", "tg.cast", "device")
def tensor_to_a_device(m, x, y):
    return tg.mean(m(x.to("cuda")) - y)


@loss("'float'", "tg.cast(x, tg.f32)")
def tensor_to_float(m, x, y):
    return tg.mean(m(x.float()) - y)


@loss("'backward'", "tg.compile")
def backward_in_a_loss(m, x, y):
    error = tg.mean(m(x) - y)
    error.backward()
    return error


@loss("'item'", "aux")
def item_in_a_loss(m, x, y):
    error = tg.mean(m(x) - y)
    print(error.item())
    return error


@loss("'detach'", "tg.stop_gradient")
def detach_in_a_loss(m, x, y):
    return tg.mean(m(x) - m(x).detach() - y)


@loss("'unsqueeze'", "tg.expand_dims")
def unsqueeze_of_a_tensor(m, x, y):
    return tg.mean(m(x).unsqueeze(0) - y)


@loss("'masked_fill'", "tg.where")
def masked_fill_of_a_tensor(m, x, y):
    return tg.mean(m(x).masked_fill(y > 0, 0.0))


@loss("'add_'", "write x + y")
def method_in_place(m, x, y):
    return tg.mean(m(x).add_(y))


@loss("'numpy'", "aux")
def numpy_of_a_traced_tensor(m, x, y):
    return tg.mean(m(x).numpy() - y)


@loss("'permut'", "x.permute")
def method_misspelt(m, x, y):
    return tg.mean(m(x).permut(1, 0))


@loss("'requires_grad_'", "trainable=False")
def requires_grad_of_an_input(m, x, y):
    x.requires_grad_()
    return tg.mean(m(x) - y)


# Names
@program("ModuleList", "list")
def module_list():
    nn.ModuleList([nn.Linear(3, 4), nn.Linear(4, 2)])


@program("ReLU", "tg.relu")
def relu_as_a_module():
    nn.ReLU()


@program("Softmax", "tg.softmax")
def softmax_as_a_module():
    nn.Softmax()


@program("CrossEntropyLoss", "tg.cross_entropy")
def loss_as_a_module():
    nn.CrossEntropyLoss()


@program("functional", "tg.")
def functional():
    nn.functional.relu(X)


@program("Parameter", "self.param")
def parameter_of_nn():
    nn.Parameter(X)


@program("MaxPool2d", "tg.max_pool2d")
def pool_as_a_module():
    nn.MaxPool2d(2)


@program("SoftMarginLoss", "tg.softplus")
def loss_as_a_class():
    nn.SoftMarginLoss()


@program("stride", "f32[2]", "b[:, None, None]")
def bias_of_a_convolution():
    tg.conv2d(np.ones((1, 1, 4, 4)), np.ones((2, 1, 3, 3)), np.zeros(2, np.float32))


@program("embedding", "swapped")
def embedding_of_functional():
    tg.embedding(np.array([0, 1]), np.ones((3, 2), np.float32))


@program("SGD", "optim.sgd")
def optimizer_in_capitals():
    optim.SGD(lr=0.1)


@program("lr_scheduler", "tracegrad.lr")
def scheduler_of_optim():
    optim.lr_scheduler.CosineAnnealingLR(optim.adam(), 10)


@program("cat", "tg.concat")
def cat():
    tg.cat([X, Y])


@program("from_numpy", "tg.tensor")
def from_numpy():
    tg.from_numpy(X)


@program("manual_seed", "did you mean")
def seed_misspelt():
    tg.manual_sed(0)


@program("cuda")
def cuda_is_available():
    tg.cuda.is_available()


# Models
@program("MLP", "'to'", "device")
def model_to_cuda():
    MLP().to("cuda")


@program("MLP", "'cuda'", "device")
def model_cuda():
    MLP().cuda()


@program("MLP", "'train'", "training")
def model_train():
    MLP().train()


@program("MLP", "'eval'", "training")
def model_eval():
    MLP().eval()


@program("MLP", "'state_dict'", "train.params()")
def model_state_dict():
    MLP().state_dict()


@program("MLP", "'zero_grad'", "train.step")
def model_zero_grad():
    MLP().zero_grad()


@program("Net", "'register_buffer'", "self.state(")
def register_buffer():
    class Net(tg.Module):
        def __init__(self):
            self.register_buffer("mean", X)

    Net()


@program("Net", "__call__")
def forward_instead_of_call():
    class Net(tg.Module):
        def __init__(self):
            self.l = nn.Linear(3, 2)

        def forward(self, x):
            return self.l(x)

    tg.trace(model=Net(), loss=mse, inputs=SHAPES)


@images("'forward'", "call")
def calling_forward_of_a_layer(m, x, label):
    return tg.mean(m.conv.forward(x)) + tg.mean(m.dense.W)


@images("Conv2d", "'weight'", "layer.W")
def weight_of_a_layer(m, x, label):
    return tg.mean(tg.square(m.conv.weight)) + tg.mean(m.dense.W)


@images("Conv2d", "'bias'", "layer.b")
def bias_of_a_layer(m, x, label):
    return tg.mean(tg.square(m.conv.bias)) + tg.mean(m.dense.W)


@program("Parameter f32[3,4]", "tg.instantiate")
def calling_a_model_on_an_array():
    MLP()(X)


# The training loop
@program("optim.adam", "'step'", "train.step")
def optimizer_step():
    optim.adam(lr=0.01).step()


@program("zero_grad", "train.step")
def optimizer_zero_grad():
    optim.adam(lr=0.01).zero_grad()


@training("Pending", "'item'", ".loss")
def item_of_a_pending(train):
    train.step(x=X, y=Y).item()


@training("CompiledTraining", "cannot be called", "train.step(")
def calling_a_training(train):
    train(X, Y)


@training("CompiledTraining", "'parameters'", "train.params()")
def parameters_of_a_training(train):
    train.parameters()


@training("CompiledTraining", "'eval'", "attach")
def eval_of_a_training(train):
    train.eval()


@training("Pending", ".loss")
def pending_as_a_number(train):
    total = 0.0
    total += train.step(x=X, y=Y)


@training("Pending", ".loss")
def pending_with_a_number_format(train):
    print(f"{train.step(x=X, y=Y):.3f}")


@training("Pending", ".output")
def pending_as_an_array(train):
    with train.attach(forward=lambda m, x: m(x), inputs={"x": (8, 3)}) as infer:
        infer.run(x=X).argmax(axis=1)


@training("Pending", ".loss")
def unpacking_a_pending(train):
    value, aux = train.step(x=X, y=Y)


@program("no_grad", "tg.stop_gradient")
def no_grad_in_a_loss():
    def wrong(m, x, y):
        with tg.no_grad():
            target = m(x)
        return tg.mean(tg.square(target - y))

    compiled(loss=wrong).close()


@program("loss_fn", "loss", raises=TypeError)
def compile_with_loss_fn():
    tg.compile(model=MLP(), loss_fn=mse, inputs=SHAPES, optimizer=optim.adam(lr=0.01))


@program("tg.compile", "by name", "model=", raises=TypeError)
def compile_as_torch_compile():
    tg.compile(MLP())


@training("save", "path", raises=TypeError)
def save_as_torch_save(train):
    train.save()


@program("optim.adam", "'state_dict'", "train.save")
def state_of_an_optimizer():
    optim.adam(lr=0.01).state_dict()


@training("CompiledTraining", "'param_groups'", "train.set_lr")
def param_groups(train):
    train.param_groups[0]["lr"] = 0.1


@program("'append'", "list")
def unknown_attribute_of_shared():
    shared().model.append(nn.Linear(2, 2))


# What a new user tried first
@training("the loss of a step", "'item'", "leave it out")
def item_of_a_loss(train):
    train.step(x=X, y=Y).loss.item()


@training("the loss of a step", "'backward'", "train.step(")
def backward_of_a_loss(train):
    train.step(x=X, y=Y).loss.backward()


@program("Mixed", "layer is a module of PyTorch", "tracegrad.nn", needs="torch")
def a_layer_of_pytorch():
    import torch

    class Mixed(tg.Module):
        def __init__(self):
            self.layer = torch.nn.Linear(3, 2)

    compiled(model=Mixed())


@program("'parameters'", "an optimizer takes neither", "optim.adam(lr=")
def parameters_for_an_optimizer():
    optim.adam(MLP().parameters(), lr=0.01)


@program("'sigmoid_'", "tg.sigmoid(x)", "tensors never change")
def sigmoid_in_place():
    compiled(loss=lambda m, x, y: tg.mean(m(x).sigmoid_() - y))


@program("'F'", "tg.relu")
def functional_as_f():
    tg.F.relu(X)


@program("cross_entropy", "f32[2,5,4,4]", "i32[2,4,4]", "logits.permute(0, 2, 3, 1)")
def classes_on_axis_1():
    tg.cross_entropy(np.zeros((2, 5, 4, 4), np.float32), np.zeros((2, 4, 4), np.int32))


@program("cross_entropy", "'axis'", "last axis", "x.permute(")
def axis_of_the_classes():
    tg.cross_entropy(np.zeros((2, 5), np.float32), np.zeros(2, np.int32), axis=1)


@program("sub", "f32[B,T,2]", "f32[T,B,2]")
def named_sizes_in_another_order():
    compiled(inputs={"x": ("B", "T", 3), "y": ("T", "B", 2)})


@program("matmul", "f32[B,4]", "f32[3,4]", "= 4 must equal")
def wrong_features_beside_an_open_size():
    compiled(inputs={"x": ("B", 4), "y": ("B", 2)})
