"""Every optimizer whose broken steps must change nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from mlflow_stability.recovery.spam_adam import SPAMAdam

Make = Callable[[Iterable[Tensor]], Optimizer]

OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "sgd fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "adamw foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "adamw tensor lr": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.01), foreach=False),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
    "adadelta": lambda p: torch.optim.Adadelta(p),
    "adamax": lambda p: torch.optim.Adamax(p),
    "asgd": lambda p: torch.optim.ASGD(p, lr=0.01),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
    "spam": lambda p: SPAMAdam(p, lr=0.01, reset_every=4, warm_up=2),
    "spam norm": lambda p: SPAMAdam(p, lr=0.01, clip="norm"),
    "counting": lambda p: CountingSGD(p),
    "zeros for none": lambda p: ZerosForNone(p),
    "unchecked": lambda p: Unchecked(p),
    "lookahead": lambda p: Lookahead(p),
}


class CountingSGD(Optimizer):
    """Counts its steps in its group, as some published optimizers do, whether there are gradients or not."""

    def __init__(self, params: Iterable[Tensor]) -> None:
        super().__init__(params, {"lr": 0.1, "k": 0})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["k"] += 1
            for param in group["params"]:
                self.state[param].setdefault("seen", 0)
                self.state[param]["seen"] += 1
                if param.grad is not None:
                    param -= group["lr"] / group["k"] * param.grad


class ZerosForNone(Optimizer):
    """Takes a missing gradient for zero, as a Muon of several processes does, and moves by momentum all the same."""

    def __init__(self, params: Iterable[Tensor]) -> None:
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is None:
                    param.grad = torch.zeros_like(param)
                state = self.state[param]
                state["momentum"] = 0.9 * state.get("momentum", torch.zeros_like(param)) + param.grad
                param.sub_(group["lr"] * state["momentum"])


class Unchecked(Optimizer):
    """Knows of no missing gradients, and fails at those that are not finite; counts in an attribute."""

    def __init__(self, params: Iterable[Tensor]) -> None:
        super().__init__(params, {"lr": 0.1})
        self.steps = 0

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        self.steps += 1
        parameters = [param for group in self.param_groups for param in group["params"]]
        gradients = [parameter.grad for parameter in parameters]
        torch.linalg.eigvalsh(torch.stack([gradient.square().sum() for gradient in gradients]).diag())
        torch._foreach_add_(parameters, gradients, alpha=-0.1 / self.steps)

    def state_dict(self) -> dict[str, object]:
        return {**super().state_dict(), "steps": self.steps}


class Lookahead(Optimizer):
    """Steps an optimizer of its own."""

    def __init__(self, params: Iterable[Tensor]) -> None:
        super().__init__(params, {})
        self.inner = torch.optim.Adam(self.param_groups, lr=0.01)
        self.slow = [param.detach().clone() for group in self.param_groups for param in group["params"]]

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        self.inner.step()
        parameters = [param for group in self.param_groups for param in group["params"]]
        for slow, item in zip(self.slow, parameters, strict=True):
            slow.lerp_(item, 0.5)
            item.copy_(slow)

    def state_dict(self) -> dict[str, object]:
        return {**super().state_dict(), "inner": self.inner.state_dict(), "slow": self.slow}


class SAM(Optimizer):
    """Moves the weights by the gradients that it finds, asks for others there, and moves back to step with those."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        super().__init__(parameters, {"rho": 0.05})
        self.base = torch.optim.Adam(self.param_groups, lr=0.1)

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor]) -> None:  # type: ignore[override]
        everything = [param for group in self.param_groups for param in group["params"] if param.grad is not None]
        norm = torch.stack([parameter.grad.norm() for parameter in everything]).norm()
        for parameter in everything:
            self.state[parameter]["old"] = parameter.data.clone()
            parameter.add_(parameter.grad * (0.05 / (norm + 1e-12)))
        self.zero_grad()
        with torch.enable_grad():
            closure()
        for parameter in everything:
            if parameter.grad is not None:
                parameter.data = self.state[parameter]["old"]
        self.base.step()


class Muon:
    """A Muon for the matrices and an AdamW for the rest, as people train with them."""

    def __init__(self, model: Module, muon_first: bool) -> None:
        matrices = [parameter for parameter in model.parameters() if parameter.dim() == 2]
        rest = [parameter for parameter in model.parameters() if parameter.dim() != 2]
        pair = [torch.optim.Muon(matrices, lr=0.01), torch.optim.AdamW(rest, lr=0.01)]
        self.optimizers: list[Optimizer] = pair if muon_first else pair[::-1]

    def step(self) -> None:
        for optimizer in self.optimizers:
            optimizer.step()

    def zero_grad(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad()
