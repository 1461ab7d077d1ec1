"""Mistakes with functions that are passed to `fit`, with limits of time, and with names of new ops."""

import numpy as np

import tracegrad as tg
from misuse.table import MLP, SHAPES, X, Y, mse, program, shared
from tracegrad import extend, optim, safetensors


@program("on_step must be a function of the state", "takes ()", "write def on_step(state)")
def hook_without_a_state():
    shared().fit(x=X, y=Y, batch_size=8, progress=False, on_step=lambda: None)


@program("on_epoch must be a function of the state", "(epoch, loss)", "write def on_epoch(state)")
def hook_of_two_arguments():
    shared().fit(x=X, y=Y, batch_size=8, progress=False, on_epoch=lambda epoch, loss: print(epoch, loss))


@program("on_evaluate must be a function of the state", "takes ()")
def hook_that_would_never_run():
    shared().fit(x=X, y=Y, batch_size=8, progress=False, on_evaluate=lambda: None)


class WithoutState:
    """A callback as other libraries have it."""

    def on_epoch(self):
        """Return nothing."""


@program("on_epoch must be a function of the state", "takes ()", "write def on_epoch(state)")
def callback_without_a_state():
    shared().fit(x=X, y=Y, batch_size=8, progress=False, callbacks=[WithoutState()])


class WithArguments:
    """A callback as other libraries have it."""

    def on_begin(self, logs):
        """Return nothing."""


@program("on_begin must be a function without arguments", "(logs)", "write def on_begin()")
def callback_whose_beginning_takes_something():
    shared().fit(x=X, y=Y, batch_size=8, progress=False, callbacks=[WithArguments()])


@program("evaluate must be a function of the training", "(model, x, y)", "write def evaluate(training)")
def evaluation_of_a_model():
    shared().fit(x=X, y=Y, batch_size=8, progress=False, evaluate=lambda model, x, y: {"error": 0.0})


@program("log must be a function of the record", "(step, loss)", "write def log(record)")
def log_of_two_arguments():
    shared().fit(x=X, y=Y, batch_size=8, progress=False, log=lambda step, loss: print(step, loss))


@program("digest: losses must be numbers, got ['a']", "pass history.loss")
def digest_of_text():
    shared().digest(["a"])


@program("tensors must be a dict of arrays by name, got list")
def file_of_a_list():
    safetensors.write("weights.safetensors", [np.zeros(3, np.float32)])


@program("timeout must be a number of seconds or None, got '1'")
def limit_of_time_as_text():
    shared().step(x=X, y=Y).result("1")


@program("timeout must be a number of seconds or None, got nan")
def limit_of_time_that_is_nan():
    shared().step(x=X, y=Y).result(float("nan"))


@program("primitive 'exp' exists", "choose another name")
def op_with_a_name_that_exists():
    extend.register(extend.Primitive("exp", "map", lambda x: x, np.exp))


@program("family must be one of", "map", "got 'elementwise'")
def op_of_an_unknown_family():
    extend.register(extend.Primitive("exponential", "elementwise", lambda x: x, np.exp))


@program("primitive 'add' exists", "choose another name")
def row_with_a_name_that_exists():
    extend.elementwise("add", array="add", wgsl="({0} + {1})")


@program("freeze: parameters must be a function of the name", "takes ()", "write def parameters(name)")
def selection_without_a_name():
    shared().freeze(lambda: True)


@program("export: pass labels as a list of texts", "got 10")
def number_of_labels():
    shared().export("site", labels=10)


@program("export: pass vocabulary as a list of texts", "got 27")
def number_of_tokens():
    shared().export("site", vocabulary=27)


@program("from_torch: the names of weights are text, got 0", "write net.state_dict()")
def weights_by_number():
    tg.from_torch({0: np.zeros((4, 3), np.float32)}, shared())


@program("rename must be a dict of prefixes", "a function of a name", "got 'l1'")
def renaming_as_text():
    tg.from_torch({"a.weight": np.zeros((4, 3), np.float32)}, shared(), rename="l1")


@program("rename must be a dict of prefixes", "got {'a': 1}")
def renaming_to_numbers():
    tg.from_torch({"a.weight": np.zeros((4, 3), np.float32)}, shared(), rename={"a": 1})


@program("metric must be the name of a metric", "got 5")
def patience_in_place_of_a_metric():
    tg.EarlyStopping(5)


@program("single_flight: fn must be a function of the argument", "got 'step'")
def single_flight_of_a_name():
    tg.single_flight("step")


@program("single_flight: fn must be a function of the argument", "takes (x, y)")
def single_flight_of_two_arguments():
    tg.single_flight(lambda x, y: shared().step(x=x, y=y))


@program("all of the same length, such as seeds=[0, 1, 2]", "got seeds=3")
def sweep_of_a_number_of_members():
    tg.sweep(model=MLP(), loss=mse, inputs=SHAPES, optimizer=optim.sgd(0.1), seeds=3, device="cpu")


@program("tracegrad.optim has no 'groups'", "groups={'pattern.*': {...}}")
def groups_as_a_function():
    optim.groups({"l1.*": {"lr": 0.1}})
