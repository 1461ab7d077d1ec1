"""PyTorch's names for public names whose docstring does not give one; "" where PyTorch has nothing like it."""

from __future__ import annotations

import re
from typing import Any

MENTION = re.compile(r"\b(torch(?:metrics)?(?:\.\w+)+)")

COUNTERPARTS = {
    "tg.compile": "a loop of zero_grad(), backward() and step()",
    "tg.CompiledTraining": "the model, optimizer and scheduler together",
    "tg.compile_forward": "torch.compile under torch.inference_mode()",
    "tg.load_forward": "model.load_state_dict(torch.load(path))",
    "tg.CompiledForward": "model.eval() under torch.inference_mode()",
    "tg.hyper": "a Python number in the loss",
    "tg.single_flight": "",
    "tg.sweep": "torch.func.stack_module_state with torch.vmap",
    "tg.Sweep": "torch.func.stack_module_state with torch.vmap",
    "tg.Pending": "torch.futures.Future",
    "tg.Completed": "",
    "tg.Aborted": "",
    "tg.Failed": "",
    "tg.Captures": "values that forward hooks keep",
    "tg.EarlyStopping": "lightning's EarlyStopping",
    "tg.Checkpoint": "lightning's ModelCheckpoint",
    "tg.CSVLogger": "lightning's CSVLogger",
    "tg.Parameter": "torch.nn.Parameter",
    "tg.summary": "torchinfo.summary",
    "tg.from_torch": "model.load_state_dict(state)",
    "tg.to_torch": "model.state_dict()",
    "nn.as_states": "parameters with requires_grad_(False)",
    "nn.decays": "the parameter groups of an optimizer with weight_decay",
    "nn.named_parameters": "torch.nn.Module.named_parameters",
    "nn.named_states": "torch.nn.Module.named_buffers",
    "tg.hinge_loss": "torch.mean(torch.relu(1 - targets * scores))",
    "tg.std": "torch.std, with ddof=1",
    "tg.var": "torch.var, with ddof=1",
    "tg.broadcast_to": "torch.broadcast_to",
    "tg.pad": "torch.nn.functional.pad, with pairs from the last axis",
    "tg.repeat": "torch.repeat_interleave",
    "tg.transpose": "torch.permute",
    "tg.one_hot": "torch.nn.functional.one_hot",
    "tg.scatter_add": "torch.scatter_add",
    "tg.segment_sum": "torch.index_add",
    "tg.einsum": "torch.einsum",
    "tg.matmul": "torch.matmul",
    "tg.merge_heads": "x.transpose(-3, -2).flatten(-2)",
    "tg.rope": "torchtune.modules.RotaryPositionalEmbeddings",
    "tg.split_heads": "x.unflatten(-1, (heads, -1)).transpose(-3, -2)",
    "tg.categorical": "torch.distributions.Categorical(logits=logits).sample()",
    "tg.f32": "torch.float32",
    "tg.i32": "torch.int32",
    "tg.u32": "torch.uint32",
    "tg.bool_": "torch.bool",
    "tg.DType": "torch.dtype",
    "tg.TensorType": "the shape and dtype of a tensor",
    "tg.InputType": "the shape and dtype of an input",
    "tg.asarray": "torch.as_tensor",
    "tg.meshgrid": "torch.meshgrid",
    "tg.Graph": "torch.fx.Graph",
    "tg.Tensor": "torch.fx.Proxy",
    "tg.Program": "",
    "tg.trace": "torch.fx.symbolic_trace",
    "tg.trace_forward": "torch.fx.symbolic_trace",
    "tg.capture": "torch.nn.Module.register_forward_hook",
    "tg.patch": "torch.nn.Module.register_forward_hook",
    "tg.custom_vjp": "torch.autograd.Function",
    "tg.grad": "torch.func.grad",
    "tg.hessian": "torch.func.hessian",
    "tg.jacobian": "torch.func.jacrev",
    "tg.jvp": "torch.func.jvp",
    "tg.scan": "a Python loop",
    "tg.tree_leaves": "torch.utils._pytree.tree_leaves",
    "tg.tree_map": "torch.utils._pytree.tree_map",
    "tg.value_and_grad": "torch.func.grad_and_value",
    "tg.vjp": "torch.func.vjp",
    "tg.vmap": "torch.vmap",
    "tg.tensor": "torch.tensor",
    "tg.parameter": "torch.tensor(..., requires_grad=True)",
    "tg.GradTensor": "torch.Tensor",
    "tg.no_grad": "torch.no_grad",
    "tg.eager": "calling the model",
    "tg.instantiate": "constructing the model",
    "optim.Arena": "",
    "optim.Host": "",
    "optim.Optimizer": "torch.optim.Optimizer",
    "optim.Options": "the arguments of an optimizer",
    "optim.PerParameter": "",
    "optim.Slot": "",
    "optim.Transform": "",
    "optim.accumulate": "backward() several times before step()",
    "optim.add_decayed_weights": "weight_decay= of torch.optim.AdamW",
    "optim.chain": "",
    "optim.custom": "a subclass of torch.optim.Optimizer",
    "optim.lamb": "torch_optimizer.Lamb",
    "optim.lion": "lion_pytorch.Lion",
    "optim.normalize_gradients": "",
    "optim.scale_by_adagrad": "torch.optim.Adagrad without its rate",
    "optim.scale_by_adam": "torch.optim.Adam without its rate",
    "optim.scale_by_lion": "lion_pytorch.Lion without its rate",
    "optim.scale_by_lr": "the lr of an optimizer",
    "optim.scale_by_muon": "torch.optim.Muon without its rate",
    "optim.scale_by_trust_ratio": "torch_optimizer.Lamb",
    "lr.Schedule": "torch.optim.lr_scheduler.LRScheduler",
    "init.lecun": "",
    "init.literal": "parameter.copy_(torch.from_numpy(array))",
    "metrics.accuracy": "torchmetrics.functional.accuracy",
    "metrics.auc": "torchmetrics.functional.auroc",
    "metrics.confusion_matrix": "torchmetrics.functional.confusion_matrix",
    "metrics.perplexity": "torchmetrics.functional.text.perplexity",
    "metrics.r2_score": "torchmetrics.functional.r2_score",
    "metrics.top_k_accuracy": "torchmetrics.functional.accuracy(top_k=k)",
    "tg.devices": "torch.cuda.device_count",
    "tg.DeviceInfo": "torch.cuda.get_device_properties",
    "tg.check_webgpu": "torch.cuda.is_available",
    "tg.WebGPUSupport": "",
    "tg.is_webgpu_available": "torch.cuda.is_available",
}


def counterpart(name: str, document: str) -> str:
    """Return PyTorch's name for a public name: that of the table, else the first that the docstring mentions."""
    found = MENTION.search(document)
    return COUNTERPARTS.get(name, found[1] if found else "")


def unknown(names: dict[str, tuple[str, str, Any]]) -> list[str]:
    """Return the public names without an entry here or a mention in their docstring, errors and `extend` aside."""
    return sorted(
        name
        for name, (slug, _, value) in names.items()
        if slug not in ("errors", "extend") and name not in COUNTERPARTS and not MENTION.search(value.__doc__ or "")
    )
