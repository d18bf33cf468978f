"""SPAMAdam: Adam with spike-aware clipping and periodic momentum reset (arXiv 2501.06842)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Literal, overload

import torch
from torch import Tensor
from torch.optim import Optimizer

from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.vocabulary.argument import Accepts, boolean, check_init_arguments, number, one_of, whole_number


def limit_coordinates(gradients: list[Tensor], second: list[Tensor], times: float) -> list[Tensor]:
    """Clip each coordinate whose square is above `times` its second moment."""
    limits = torch_api.foreach_mul(second, times)
    torch_api.foreach_sqrt_(limits)
    for limit in limits:
        # A coordinate that has had no gradient yet, such as a rare word's, would be held at zero for ever.
        limit.masked_fill_(limit == 0, torch.inf)
    limited = torch_api.foreach_minimum(gradients, limits)
    torch_api.foreach_maximum_(limited, torch_api.foreach_neg(limits))
    return list(limited)


def limit_norms(gradients: list[Tensor], usual: list[Tensor], count: int, times: float, decay: float) -> list[Tensor]:
    """Scale down each gradient whose norm is above `times` its running mean, and update the mean.

    `count` is the number of this step, from 1 on: the running mean is divided by the share of it that is filled.
    """
    wide = torch.float32 if gradients[0].dtype in (torch.float16, torch.bfloat16) else None
    norms = torch_api.foreach_norm(gradients, 2.0, wide)
    filled = 1 - decay ** (count - 1)
    limited = []
    for gradient, norm, mean in zip(gradients, norms, usual, strict=True):
        largest = mean * (times / filled) if filled else torch.full_like(norm, torch.inf)
        let_in = torch.minimum(norm, torch.where(largest > 0, largest, torch.inf))
        mean.copy_(torch.where(torch.isfinite(let_in), mean * decay + let_in * (1 - decay), mean))
        factor = torch.where(norm > let_in, let_in / norm, 1.0)
        limited.append(gradient * factor.to(gradient.dtype))
    return limited


def _read_betas(given: Any) -> tuple[float, float]:
    first, second = given
    return _SHARE.read(first), _SHARE.read(second)


_SHARE = number(at_least=0, below=1)["takes"]
_TAKES = {
    "lr": number(at_least=0)["takes"],
    "betas": Accepts("two numbers, 0 or more and less than 1, such as (0.9, 0.999)", _read_betas),
    "eps": number(at_least=0)["takes"],
    "weight_decay": number(at_least=0)["takes"],
    "threshold": number(above=1)["takes"],
    "reset_every": whole_number(0, "of steps")["takes"],
    "warm_up": whole_number(0, "of steps")["takes"],
    "clip": one_of("coordinate", "norm")["takes"],
    "norm_threshold": number(above=1)["takes"],
    "norm_decay": _SHARE,
    "foreach": one_of(True, False, optional=True)["takes"],
    "maximize": boolean()["takes"],
}


@check_init_arguments
class SPAMAdam(Optimizer):
    """Spike-aware Adam with momentum reset.

    A coordinate whose squared gradient is more than `threshold` times its usual one is clipped to just that, and every
    `reset_every` steps both moments are reset, with a cosine warm-up of the learning rate over `warm_up` steps: one
    spike otherwise stays in the moments for hundreds of steps.

    Args:
        params: Parameters, or groups of them.
        lr: The learning rate.
        betas: How much of the first and second moments is kept at each step.
        eps: Added to the root of the second moment.
        weight_decay: Taken off the weights directly, as AdamW does.
        threshold: How many times its usual square a squared gradient may be.
        reset_every: After how many steps the moments are forgotten; 0: never.
        warm_up: Over how many steps the learning rate comes back after that.
        clip: `"coordinate"` is the rule of the paper. `"norm"` is the older one: a tensor whose gradient norm is more
            than `norm_threshold` times its running mean is shortened to that.
        norm_threshold: See `clip`.
        norm_decay: How much of that running mean is kept at each step.
        foreach: Work on all tensors together, in a few kernels; False: on each by itself.
        maximize: Climb instead of descending.

    Raises:
        SettingsError: A value that does not fit.

    Example:

        >>> model = torch.nn.Linear(4, 1)
        >>> optimizer = SPAMAdam(model.parameters(), lr=1e-3, threshold=5000)
        >>> optimizer.param_groups[0]["threshold"]
        5000
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        threshold: float = 5000.0,
        reset_every: int = 500,
        warm_up: int = 150,
        clip: Literal["coordinate", "norm"] = "coordinate",
        norm_threshold: float = 5.0,
        norm_decay: float = 0.99,
        foreach: bool | None = None,
        maximize: bool = False,
    ) -> None:
        given = dict(locals())
        checked = {name: takes.check(name, given[name]) for name, takes in _TAKES.items()}
        if isinstance(lr, Tensor):  # stays a tensor, as in torch's optimizers: a compiled step reads it each time
            checked["lr"] = lr
        super().__init__(params, checked)

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take one step."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for (count, *_), parameters in self._buckets(group).items():
                self._update(group, count, parameters)
        return loss

    def _buckets(self, group: dict[str, Any]) -> dict[tuple[Any, ...], list[Tensor]]:
        """Group the parameters with gradients that are updated together; keys begin with their number of steps."""
        buckets: dict[tuple[Any, ...], list[Tensor]] = {}
        for index, parameter in enumerate(group["params"]):
            if parameter.grad is None:
                continue
            if parameter.grad.is_sparse or parameter.is_complex():
                raise RuntimeError("SPAMAdam takes neither sparse gradients nor complex parameters.")
            state = self.state[parameter]
            if not state:
                state["step"] = torch.tensor(0.0, dtype=torch.float32)
                state["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
                state["exp_avg_sq"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
                if group["clip"] == "norm":
                    state["usual_norm"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            state["step"] += 1
            kind = (index,) if group["foreach"] is False else (parameter.device, parameter.dtype)
            buckets.setdefault((int(state["step"].item()), *kind), []).append(parameter)
        return buckets

    def _update(self, group: dict[str, Any], count: int, parameters: list[Tensor]) -> None:
        states = [self.state[parameter] for parameter in parameters]
        first = [state["exp_avg"] for state in states]
        second = [state["exp_avg_sq"] for state in states]
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if group["maximize"]:
            gradients = list(torch_api.foreach_neg(gradients))
        every = group["reset_every"]
        since = (count - 1) % every + 1 if every else count
        if every and since == 1 and count > 1:
            torch_api.foreach_zero_(first)
            torch_api.foreach_zero_(second)
        beta1, beta2 = group["betas"]
        if group["clip"] == "coordinate":
            if since > 1:
                gradients = limit_coordinates(gradients, second, group["threshold"] / (1 - beta2 ** (since - 1)))
        else:
            usual = [state["usual_norm"] for state in states]
            gradients = limit_norms(gradients, usual, count, group["norm_threshold"], group["norm_decay"])
        rate, steps = float(group["lr"]), group["warm_up"]
        if count > every > 0 and since < steps:  # after a reset it rises from a hundredth
            rate *= 1 - 0.99 * (1 + math.cos(math.pi * since / steps)) / 2
        if group["weight_decay"]:
            torch_api.foreach_mul_(parameters, 1 - rate * group["weight_decay"])
        torch_api.foreach_lerp_(first, gradients, 1 - beta1)
        torch_api.foreach_mul_(second, beta2)
        torch_api.foreach_addcmul_(second, gradients, gradients, 1 - beta2)
        root = torch_api.foreach_sqrt(second)
        torch_api.foreach_div_(root, math.sqrt(1 - beta2**since))
        torch_api.foreach_add_(root, group["eps"])
        torch_api.foreach_addcdiv_(parameters, first, root, -rate / (1 - beta1**since))
