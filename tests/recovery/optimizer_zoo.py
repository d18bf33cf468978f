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
            for each in group["params"]:
                self.state[each].setdefault("seen", 0)
                self.state[each]["seen"] += 1
                if each.grad is not None:
                    each -= group["lr"] / group["k"] * each.grad


class ZerosForNone(Optimizer):
    """Takes a missing gradient for zero, as a Muon of several processes does, and moves by momentum all the same."""

    def __init__(self, params: Iterable[Tensor]) -> None:
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for each in group["params"]:
                if each.grad is None:
                    each.grad = torch.zeros_like(each)
                state = self.state[each]
                state["momentum"] = 0.9 * state.get("momentum", torch.zeros_like(each)) + each.grad
                each.sub_(group["lr"] * state["momentum"])


class Unchecked(Optimizer):
    """Knows of no missing gradients, and fails at those that are not finite; counts in an attribute."""

    def __init__(self, params: Iterable[Tensor]) -> None:
        super().__init__(params, {"lr": 0.1})
        self.steps = 0

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        self.steps += 1
        parameters = [each for group in self.param_groups for each in group["params"]]
        gradients = [each.grad for each in parameters]
        torch.linalg.eigvalsh(torch.stack([each.square().sum() for each in gradients]).diag())
        torch._foreach_add_(parameters, gradients, alpha=-0.1 / self.steps)

    def state_dict(self) -> dict[str, object]:
        return {**super().state_dict(), "steps": self.steps}


class Lookahead(Optimizer):
    """Steps an optimizer of its own."""

    def __init__(self, params: Iterable[Tensor]) -> None:
        super().__init__(params, {})
        self.inner = torch.optim.Adam(self.param_groups, lr=0.01)
        self.slow = [each.detach().clone() for group in self.param_groups for each in group["params"]]

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        self.inner.step()
        parameters = [each for group in self.param_groups for each in group["params"]]
        for slow, each in zip(self.slow, parameters, strict=True):
            slow.lerp_(each, 0.5)
            each.copy_(slow)

    def state_dict(self) -> dict[str, object]:
        return {**super().state_dict(), "inner": self.inner.state_dict(), "slow": self.slow}


class SAM(Optimizer):
    """Moves the weights by the gradients that it finds, asks for others there, and moves back to step with those."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        super().__init__(parameters, {"rho": 0.05})
        self.base = torch.optim.Adam(self.param_groups, lr=0.1)

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor]) -> None:  # type: ignore[override]
        everything = [each for group in self.param_groups for each in group["params"] if each.grad is not None]
        norm = torch.stack([each.grad.norm() for each in everything]).norm()
        for each in everything:
            self.state[each]["old"] = each.data.clone()
            each.add_(each.grad * (0.05 / (norm + 1e-12)))
        self.zero_grad()
        with torch.enable_grad():
            closure()
        for each in everything:
            if each.grad is not None:
                each.data = self.state[each]["old"]
        self.base.step()


class Muon:
    """A Muon for the matrices and an AdamW for the rest, as people train with them."""

    def __init__(self, model: Module, muon_first: bool) -> None:
        matrices = [each for each in model.parameters() if each.dim() == 2]
        rest = [each for each in model.parameters() if each.dim() != 2]
        pair = [torch.optim.Muon(matrices, lr=0.01), torch.optim.AdamW(rest, lr=0.01)]
        self.optimizers: list[Optimizer] = pair if muon_first else pair[::-1]

    def step(self) -> None:
        for each in self.optimizers:
            each.step()

    def zero_grad(self) -> None:
        for each in self.optimizers:
            each.zero_grad()
