"""Attributes that models, optimizers and trainings have in other libraries, with what to write instead."""

from __future__ import annotations

from tracegrad.habits import WHERE

TRAINING = "pass a flag of your own to the forward, as in tg.dropout(x, 0.1, training)"
WEIGHTS = "train.params() returns the trained values by name; nn.named_parameters(model) lists the declarations"
STEP = "tg.compile(...) makes a training; its train.step(x=..., y=...) computes gradients and updates the parameters"

# Attributes of models, layers and parameters of a model
MODELS = {
    "to cuda cpu device": WHERE,
    "train eval training": TRAINING,
    "parameters": f"{WEIGHTS}; an optimizer takes neither, as in optim.adam(lr=1e-3)",
    "named_parameters state_dict get_weights weights": WEIGHTS,
    "load_state_dict set_weights load_weights": "write train.upload_params(record)",
    "zero_grad backward step": STEP,
    "fit compile evaluate predict": "tg.compile(model=..., loss=...) makes a training",
    "register_buffer": "write self.state(shape, init=tg.init.literal(array))",
    "register_parameter": "write self.param(shape, init=tg.init.literal(array))",
    "add_module add append register_module": "assign layers to attributes, or keep a list",
    "forward apply": "call the model or layer itself, as in m(x), which runs __call__",
    "modules children": "vars(model) has the attributes",
    "summary": "write tg.summary(model)",
    "weight kernel": "write layer.W",
    "bias": "write layer.b",
    "in_features out_features in_dim out_dim": "write layer.W.shape",
    "reset_parameters init": "init= of the layer says how it begins; train.reset() draws the values again",
    "freeze requires_grad trainable": "write train.freeze('layer.*'), or trainable=False where the layer is made",
    "save": "write train.save(path)",
    "requires_grad_": "make the parameter with trainable=False",
}  # fmt: skip

OPTIMIZERS = {
    "step zero_grad backward update minimize apply_gradients": STEP,
    "param_groups learning_rate": "train.set_lr(lr) changes the rate of a training",
    "state_dict load_state_dict state": "train.save(path) and train.load(path) keep its state",
    "init": "tg.compile makes its state",
    "compute_gradients": "write tg.grad(function)",
}

# Of the loss of a step, which is a float
LOSSES = {
    "item detach cpu numpy tolist data float": "leave it out: the loss is a Python float already",
    "backward grad": STEP,
}

RUN = "write train.attach(forward=..., inputs=...).run(x=x).output"
TRAININGS = {
    "parameters state_dict get_weights weights": "write train.params()",
    "load_state_dict set_weights load_params": "write train.upload_params(record), or tg.from_torch(state_dict, train)",
    "named_parameters": "write train.params().items()",
    "buffers named_buffers": "write train.states()",
    "save_weights save_model": "write train.save(path)",
    "load_weights load_model": "write train.load(path), or tg.load_forward(path, ...) to run only",
    "history metrics epoch": "train.fit(...) returns the history; hooks get a state with epoch and metrics",
    "callbacks log logger": "write train.fit(..., callbacks=[...], log=...)",
    "optimizer scheduler opt_state": "train.set_lr(lr) and train.set(...) change it, train.save(path) keeps its state",
    "requires_grad_ requires_grad frozen trainable": "write train.freeze('pattern.*') and train.unfreeze('pattern.*')",
    "init init_weights apply_init": "write train.reset(), or train.reset(seed=1)",
    "compile": "it is compiled; tg.compile makes another",
    "onnx to_onnx": "train.export(folder) writes a page; tg.to_torch(train) gives a state dict for PyTorch",
    "to_torch": "write tg.to_torch(train)",
    "from_torch": "write tg.from_torch(state_dict, train)",
    "validate test score": "write train.fit(..., validation=(x, y)), or train.attach(forward=..., inputs=...).run(x=x)",
    "stop_training": "write state.stop() in a hook of train.fit",
    "num_params count_params": "write tg.summary(model)",
    "ema": "write train.download_params(ema=True), of an optimizer made with ema=",
    "steps step_count global_step": "train.step(x=..., y=...).step is the number of a step",
    "grad": "write train.download_grads()",
    "plot": "write train.fit(...).plot()",
    "copy clone": "write train.save(path), and load it into another training; tg.sweep trains many at once",
    "output": RUN,
    "eval predict forward apply evaluate run __call__": RUN,
    "zero_grad backward train_step train_on_batch update": STEP,
    "param_groups learning_rate": "read train.lr, and write train.set_lr(lr)",
    "train": "write train.step(x=..., y=...), or train.fit(batches)",
    "to cuda cpu": WHERE,
    "summary": "write tg.summary(model)",
    "gradients grads": "write train.download_grads()",
    "loss": "train.step(x=..., y=...).loss has the loss of a step",
}

RUNNING = "write .run(x=x).output"
FORWARDS = {
    "predict forward apply output numpy": RUNNING,
    "eval train": f"leave it out, and {RUNNING}: a forward does not train",
    "step fit": "a forward only runs; the training has step and fit",
    "save": "write train.save(path); tg.load_forward(path, ...) reads it",
    "export": "write train.export(folder, forwards={'predict': infer})",
    "to cuda cpu": WHERE,
    "parameters state_dict get_weights weights named_parameters": "write .params()",
    "load_state_dict set_weights load_params": "write .upload_params(record), or tg.from_torch(state_dict, infer)",
    "output_shape": "write .graph_for(x=x), or .run(x=x).output.shape",
}

RESULT = "read .loss of a step, or .output of a run, which is an array"
PENDINGS = {
    "item numpy detach cpu tolist data": RESULT,
    "backward": STEP,
    "metrics accuracy": "read .aux, which has what the loss returns beside itself, as r.aux['accuracy']",
    "wait get": "write .result(), which waits",
    "shape dtype ndim size argmax max min mean sum T reshape astype": RESULT,
}
