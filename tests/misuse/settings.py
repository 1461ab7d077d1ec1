"""Optimizers, learning rates, hyperparameters."""

import numpy as np

import tracegrad as tg
from misuse.table import MLP, compiled, program, training
from tracegrad import lr, optim


@program("lr", "'1e-3'", "number")
def rate_as_text():
    optim.adam(lr="1e-3")


@program("lr", "None")
def rate_none():
    optim.adam(lr=None)


@program("lr", "-0.1", "at least 0")
def rate_below_zero():
    optim.sgd(lr=-0.1)


@program("lr", "inf", "finite")
def rate_that_is_infinite():
    optim.sgd(lr=float("inf"))


@program("lr", "nan", "at least 0")
def rate_that_is_nan():
    optim.sgd(lr=np.float32("nan"))


@program("lr", "CosineAnnealing", "call")
def schedule_that_is_not_called():
    optim.adam(lr=lr.cosine_annealing)


@program("lr", "function", "lr.Schedule")
def schedule_that_is_a_function():
    optim.adam(lr=lambda step: 0.1 / step)


@program("lr", "optim.adam(", "schedule")
def optimizer_as_a_rate():
    optim.adam(lr=optim.adam())


@program("adamw", "lr", raises=TypeError)
def rate_given_twice():
    optim.adamw(0.1, lr=0.1)


@program("beta1", "2.0", "below 1")
def beta_above_one():
    optim.adam(lr=0.1, beta1=2.0)


@program("adam", "beta1", "'0.9'", "number")
def beta_as_text():
    optim.adam(lr=0.1, beta1="0.9")


@program("adam", "beta1", "(0.9, 0.999)", "number")
def betas_as_one_tuple():
    optim.adam(0.1, (0.9, 0.999))


@program("eps", "-1", "at least 0")
def eps_below_zero():
    optim.adam(lr=0.1, eps=-1)


@program("sgd", "momentum", "-0.9")
def momentum_below_zero():
    optim.sgd(lr=0.1, momentum=-0.9)


@program("sgd", "nesterov", "momentum")
def nesterov_without_momentum():
    optim.sgd(lr=0.1, nesterov=True)


@program("weight_decay", "nan")
def decay_that_is_nan():
    optim.adamw(lr=0.1, weight_decay=float("nan"))


@program("clip_grad_norm", "0", "above 0")
def clipping_to_nothing():
    optim.adam(lr=0.1, clip_grad_norm=0)


@program("clip_grad_norm", "True", "number")
def clipping_as_a_flag():
    optim.adam(lr=0.1, clip_grad_norm=True)


@program("accumulate", "1.5", "integer")
def accumulation_of_a_fraction():
    optim.adam(lr=0.1, accumulate=1.5)


@program("accumulate", "0", "at least 1")
def accumulation_of_nothing():
    optim.adam(lr=0.1, accumulate=0)


@program("ema", "2", "below 1")
def average_above_one():
    optim.adam(lr=0.1, ema=2)


@program("decay_filter", "True", "pattern", "function")
def decay_filter_as_a_switch():
    optim.adamw(lr=0.1, decay_filter=True)


@program("normalize_grads", "3", "pattern", "function")
def normalising_as_a_number():
    optim.adam(lr=0.1, normalize_grads=3)


@program("cosine_annealing", "steps", "0", "above 0")
def schedule_of_no_steps():
    lr.cosine_annealing(peak=0.1, final=0.0, steps=0)


@program("cosine_annealing", "steps", "'100'")
def schedule_of_steps_as_text():
    lr.cosine_annealing(peak=0.1, final=0.0, steps="100")


@program("cosine_annealing", "peak", "'0.1'")
def schedule_with_a_peak_as_text():
    lr.cosine_annealing(peak="0.1", final=0.0, steps=100)


@program("linear", "final", "nan")
def schedule_that_ends_in_nan():
    lr.linear(peak=0.1, final=float("nan"), steps=100)


@program("exponential", "peak", "-1")
def schedule_below_zero():
    lr.exponential(peak=-1, gamma=0.9)


@program("multi_step", "milestones", "30")
def milestones_as_a_number():
    lr.multi_step(peak=0.1, milestones=30)


@program("one_cycle", "pct_start", "30")
def percent_for_a_share():
    lr.one_cycle(peak=0.1, steps=100, pct_start=30)


@program("warmup", "after", "'cosine'")
def warmup_with_a_name():
    lr.warmup(peak=0.1, steps=10, after="cosine")


@program("lr.cosine_restarts", "T_0'; write steps=5", "T_mult'; write growth=2", raises=TypeError)
def restarts_with_arguments_of_pytorch():
    lr.cosine_restarts(peak=0.1, final=0.0, T_0=5, T_mult=2)


@program("lr.cosine_restarts", "growth must be an integer, got 1.5")
def restarts_that_grow_by_a_fraction():
    lr.cosine_restarts(peak=0.1, final=0.0, steps=5, growth=1.5)


@program("lr.warmup", "missing after=", raises=TypeError)
def warmup_without_what_follows():
    lr.warmup(peak=0.1, steps=10)


@program("'cosine'", "lr.cosine_annealing")
def schedule_with_a_short_name():
    lr.cosine(0.1, 100)


@program("'CosineAnnealingLR'", "lr.cosine_annealing")
def schedule_with_the_name_of_pytorch():
    lr.CosineAnnealingLR(0.1, 100)


@program("'he_normal'", "kaiming")
def initialiser_with_the_name_of_keras():
    tg.init.he_normal()


@program("'trunc_normal_'", "init.truncated_normal")
def initialiser_with_another_name():
    tg.init.trunc_normal_(0.1)


@program("randn", "scale", "-0.1")
def initialiser_of_a_negative_scale():
    tg.init.randn(-0.1)


@program("randn", "scale", "'0.1'")
def initialiser_of_a_scale_as_text():
    tg.init.randn("0.1")


@program("init.uniform", "high", raises=TypeError)
def uniform_with_one_bound():
    tg.init.uniform(0.1)


@program("CosineAnnealing", raises=TypeError)
def schedule_used_as_a_number():
    rate = lr.cosine_annealing(peak=0.1, final=0.0, steps=100)
    print(rate * 2)


@training("set_lr", "'fast'")
def setting_a_rate_as_text(train):
    train.set_lr("fast")


@training("set", "momentum", "beta1")
def setting_what_the_optimizer_does_not_have(train):
    train.set(momentum=0.9)


@training("set", "learning_rate", "lr")
def setting_a_rate_by_another_name(train):
    train.set(learning_rate=0.1)


@training("set", "beta1", "2.0")
def setting_a_beta_above_one(train):
    train.set(beta1=2.0)


@training("set", "eps", "nan")
def setting_nan(train):
    train.set(eps=float("nan"))


@training("set", "beta1", "[0.9]")
def setting_a_list(train):
    train.set(beta1=[0.9])


@program("hyper", "'a b'")
def hyperparameter_with_a_space():
    compiled(loss=lambda m, x, y: tg.mean(m(x) - y) * tg.hyper("a b", 1.0)).close()


@program("hyper", "'temperature'", "1.0", "2.0")
def hyperparameter_with_two_defaults():
    compiled(
        loss=lambda m, x, y: tg.mean(m(x) * tg.hyper("temperature", 1.0) - y * tg.hyper("temperature", 2.0))
    ).close()


@program("adam", "model", "tg.compile")
def optimizer_of_a_model():
    optim.adam(MLP())
