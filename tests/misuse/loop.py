"""Habits of loops: methods of other trainers, keywords of their fit, callbacks."""

import tracegrad as tg
from misuse.table import X, Y, compiled, predict, program, training
from tracegrad import nn


@training("CompiledTraining", "'optimizer'", "train.set_lr(lr)")
def optimizer_of_a_training(train):
    return train.optimizer


@training("CompiledTraining", "'requires_grad_'", "train.freeze(")
def training_that_shall_not_train(train):
    train.requires_grad_(False)


@training("CompiledTraining", "'save_weights'", "train.save(path)")
def save_weights(train):
    train.save_weights("weights.h5")


@training("CompiledTraining", "'history'", "train.fit(...) returns")
def history_of_a_training(train):
    return train.history


@training("CompiledTraining", "'buffers'", "train.states()")
def buffers_of_a_training(train):
    return list(train.buffers())


@training("CompiledTraining", "'from_torch'", "tg.from_torch(state_dict, train)")
def from_torch_as_a_method(train):
    train.from_torch({})


@training("Pending", "'metrics'", ".aux")
def metrics_of_a_step(train):
    return train.step(x=X, y=Y).metrics


@training("CompiledForward", "'predict'", ".run(x=x).output")
def predict_of_a_forward(train):
    return train.attach(forward=predict, inputs={"x": (8, 3)}).predict(X)


@training("CompiledForward", "'eval'", "leave it out")
def eval_of_a_forward(train):
    train.attach(forward=predict, inputs={"x": (8, 3)}).eval()


@training("CompiledForward", "'save'", "train.save(path)")
def save_of_a_forward(train):
    train.attach(forward=predict, inputs={"x": (8, 3)}).save("model")


@training("fit", "'num_epochs'", "epochs=3", raises=TypeError)
def num_epochs(train):
    train.fit(x=X, y=Y, num_epochs=3)


@training("fit", "'sample_weight'", "reduction='none'", raises=TypeError)
def sample_weight(train):
    train.fit(x=X, y=Y, sample_weight=X[:, 0])


@training("fit", "'patience'", "tg.EarlyStopping", raises=TypeError)
def patience_of_fit(train):
    train.fit(x=X, y=Y, patience=3)


@training("fit", "'learning_rate'", "train.set_lr(lr)", raises=TypeError)
def learning_rate_of_fit(train):
    train.fit(x=X, y=Y, learning_rate=0.1)


@training("fit", "'steps_per_epoch'", "steps=", raises=TypeError)
def steps_per_epoch(train):
    train.fit(x=X, y=Y, steps_per_epoch=10)


@training("fit", "'val_loader'", "validation=", raises=TypeError)
def val_loader(train):
    train.fit(x=X, y=Y, val_loader=[(X, Y)])


@program("Checkpoint", "'save_best_only'", "best=None", raises=TypeError)
def save_best_only():
    tg.Checkpoint("best.safetensors", save_best_only=True)


@program("Checkpoint", "'monitor'", "best='val_loss'", raises=TypeError)
def monitor_of_a_checkpoint():
    tg.Checkpoint("best.safetensors", monitor="val_loss")


@program("TensorBoard", "'log_dir'", "folder='runs'", raises=TypeError)
def log_dir_of_tensorboard():
    tg.TensorBoard(log_dir="runs")


@program("TensorBoard", "folder=", raises=TypeError)
def tensorboard_without_a_folder():
    tg.TensorBoard()


@program("Linear", "'bias_initializer'", "train.upload_params", raises=TypeError)
def bias_initializer():
    nn.Linear(3, 4, bias_initializer="ones")


@program("optim.adam", "'params'", "leave it out", raises=TypeError)
def parameters_of_an_optimizer():
    tg.optim.adam(params=[], lr=0.1)


@program("Linear", "'in_features'", "layer.W.shape")
def in_features_of_a_layer():
    return nn.Linear(3, 4).in_features


@program("y", "f32[8,2]", "f32[16]", "y.reshape(-1, 2)")
def flat_targets_beside_inputs_of_any_size():
    with compiled(inputs={"x": (None, 3), "y": (None, 2)}) as train:
        return train.step(x=X, y=Y.reshape(-1)).loss


@training("metrics", "tg.metrics.accuracy(m(x), y)")
def metric_of_tg_metrics_itself(train):
    train.fit(x=X, y=Y, validation=(X, Y), metrics={"r2": tg.metrics.r2_score}, progress=False)


@training("'weights'", "one dict", "{'weights': ...")
def array_of_another_name(train):
    train.fit(x=X, weights=Y, progress=False)


@program("backward", "'retain_graph'", "leave it out")
def retaining_a_graph():
    tg.sum(tg.parameter(X)).backward(retain_graph=True)


@program("init.zeros", "no arguments")
def shape_for_an_initialiser():
    return nn.Linear(3, 2, init=tg.init.zeros(3))
