"""Trainings of 200 steps that use randomness, buffers and state, and everything that must not differ after them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, AdamW, Optimizer

STEPS = 200


@dataclass(frozen=True)
class Outcome:
    """What a training leaves behind."""

    losses: list[float]
    state: dict[str, Tensor]
    """Weights and buffers."""
    optimizer: list[Any]
    random_state: tuple[Any, ...]
    """Of torch, Python and numpy."""

    def must_equal(self, other: Outcome) -> None:
        """Bit by bit."""
        assert self.losses == other.losses
        assert self.state.keys() == other.state.keys()
        for name, value in self.state.items():
            assert torch.equal(value, other.state[name]), name
        for mine, theirs in zip(self.optimizer, other.optimizer, strict=True):
            assert torch.equal(mine, theirs) if isinstance(mine, Tensor) else mine == theirs
        assert self.random_state == other.random_state


def seed() -> None:
    random.seed(7)
    np.random.seed(7)
    torch.manual_seed(7)


def outcome_of(losses: list[float], model: nn.Module, optimizer: Optimizer) -> Outcome:
    """Take down everything now."""
    name, keys, *rest = np.random.get_state()
    states = [value for state in optimizer.state.values() for value in state.values()]
    return Outcome(
        losses,
        {key: value.clone() for key, value in model.state_dict().items()},
        [tensor.clone() if isinstance(tensor, Tensor) else tensor for tensor in states],
        (torch.get_rng_state().numpy().tobytes(), random.getstate(), name, keys.tobytes(), *rest),
    )


def model_with(*layers: nn.Module) -> nn.Sequential:
    """A small network around the given layers, for 6 inputs and 16 hidden."""
    return nn.Sequential(nn.Linear(6, 16), *layers, nn.Tanh(), nn.Linear(16, 1))


def batch() -> tuple[Tensor, Tensor]:
    """Random data, drawn from all three generators."""
    return torch.randn(8, 6) * random.uniform(0.5, 1.5), torch.full((8, 1), np.random.rand())


def loop(
    make_optimizer: Callable[[Any], Optimizer],
    *layers: nn.Module,
    accumulate: int = 1,
    bf16: bool = False,
    scaler: GradScaler | None = None,
    clip: bool = False,
    compiled: bool = False,
    steps: int = STEPS,
) -> Outcome:
    """An ordinary loop with these ingredients."""
    seed()
    model = model_with(*layers)
    optimizer = make_optimizer(model.parameters())
    forward: Callable[[Tensor], Tensor] = torch.compile(model) if compiled else model
    losses = []
    for step in range(steps):
        for _ in range(accumulate):
            inputs, targets = batch()
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                loss = nn.functional.mse_loss(forward(inputs), targets) / accumulate
            (scaler.scale(loss) if scaler else loss).backward()
            losses.append(loss.item())
        if scaler and step % 7 == 3:
            model[0].weight.grad[0, 0] = math.inf  # so that the scaler skips this step
        if scaler and clip:
            scaler.unscale_(optimizer)
        if clip:
            clip_grad_norm_(model.parameters(), 0.5)
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        optimizer.zero_grad()
    return outcome_of(losses, model, optimizer)


def sgd(parameters: Any) -> Optimizer:
    return SGD(parameters, lr=0.05, momentum=0.9)


def adamw(parameters: Any) -> Optimizer:
    return AdamW(parameters, lr=0.01)


def fused(parameters: Any) -> Optimizer:
    return AdamW(parameters, lr=0.01, fused=True)


def growing_scaler() -> GradScaler:
    return GradScaler("cpu", init_scale=1024.0, growth_interval=5)


def computed_weights() -> Outcome:
    """Train weights that are computed when they are read, which changes buffers."""
    seed()
    old, new = nn.Linear(16, 16), nn.Linear(16, 16)
    return loop(sgd, nn.utils.spectral_norm(old), nn.utils.parametrizations.spectral_norm(new))


def scripted() -> Outcome:
    seed()
    return loop(sgd, torch.jit.script(nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16))))


def lightning() -> Outcome:
    """The same with a Trainer."""
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model_with(nn.Dropout(0.2))
            self.losses: list[float] = []

        def training_step(self, data: Any, index: int) -> Tensor:
            inputs, targets = batch()
            loss = nn.functional.mse_loss(self.model(inputs), targets)
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self) -> Optimizer:
            return adamw(self.parameters())

    seed()
    module = Module()
    trainer = pl.Trainer(
        max_steps=STEPS,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
        gradient_clip_val=0.5,
    )
    trainer.fit(module, torch.utils.data.DataLoader(torch.zeros(STEPS, 1), batch_size=1))
    optimizer = trainer.optimizers[0]
    return outcome_of(module.losses, module, optimizer)


TRAININGS: dict[str, Callable[[], Outcome]] = {
    "SGD": lambda: loop(sgd),
    "AdamW": lambda: loop(adamw),
    "fused AdamW": lambda: loop(fused),
    "dropout": lambda: loop(adamw, nn.Dropout(0.3)),
    "batch norm": lambda: loop(sgd, nn.BatchNorm1d(16)),
    "spectral norm": computed_weights,
    "scripted": scripted,
    "accumulation": lambda: loop(adamw, nn.Dropout(0.1), accumulate=3),
    "clipping": lambda: loop(sgd, clip=True),
    "bf16 autocast": lambda: loop(adamw, nn.Dropout(0.1), bf16=True),
    "a loss scaler": lambda: loop(adamw, scaler=growing_scaler(), clip=True),
    "a loss scaler and fused AdamW": lambda: loop(fused, scaler=growing_scaler()),
    "torch.compile and dropout": lambda: loop(adamw, nn.Dropout(0.3), compiled=True),
    "Lightning": lightning,
}
