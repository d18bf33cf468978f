"""Every place in torch that watching needs, and which of them this torch does not have.

The oldest torch that has them all is 2.6: before it, clipping took its norm inside `clip_grad_norm_`, where nobody
could see it, and there was no `torch.accelerator`.
"""

from __future__ import annotations

from importlib import import_module

import torch

OLDEST_TORCH = "2.6"

# Where each is found, as `module:name`, and what would not be seen without it.
PATCH_POINTS: dict[str, str] = {
    "torch.optim.optimizer:register_optimizer_step_pre_hook": "the gate of every optimizer",
    "torch.optim.optimizer:register_optimizer_step_post_hook": "the end of every step",
    "torch.optim.optimizer:Optimizer.__init__": "the first step of a training without backward passes",
    "torch.autograd:_get_sequence_nr": "the first step of a training without backward passes",
    "torch.optim.optimizer:Optimizer.profile_hook_step": "steps inside steps",
    "torch.optim.optimizer:Optimizer.zero_grad": "gradients that are thrown away",
    "torch.nn:Module.zero_grad": "gradients that are thrown away",
    "torch.autograd:backward": "the loss",
    "torch.nn.utils.clip_grad:_get_total_norm": "the norm before clipping",
    "torch.nn.utils:get_total_norm": "the norm before clipping",
    "torch.nn.utils.clip_grad:_clip_grads_with_norm_": "at which norm gradients are clipped",
    "torch.nn.utils:clip_grads_with_norm_": "at which norm gradients are clipped",
    "torch.nn.utils.clip_grad:clip_grad_value_": "at which value gradients are clipped",
    "torch.nn.utils:clip_grad_value_": "at which value gradients are clipped",
    "torch.amp:GradScaler.scale": "the loss before scaling",
    "torch.amp:GradScaler.unscale_": "gradients whose scale was taken off",
    "torch.amp:GradScaler.step": "steps that a loss scaler skipped",
    "torch:_foreach_norm": "the gradient norm in a handful of kernels",
    "torch.compiler:is_compiling": "code that is being compiled",
    "torch.accelerator:current_stream": "one copy to the host that nobody waits for",
    "torch:get_device_module": "one copy to the host that nobody waits for",
}


def torch_version() -> str:
    """The torch that is installed."""
    return str(torch.__version__)


def missing_patch_points() -> dict[str, str]:
    """The places that this torch does not have, with what would not be seen."""
    return {where: seen for where, seen in PATCH_POINTS.items() if not _exists(where)}


def _exists(where: str) -> bool:
    module, _, path = where.partition(":")
    try:
        found: object = import_module(module)
    except ImportError:
        return False
    for name in path.split("."):
        found = getattr(found, name, None)
    return found is not None
