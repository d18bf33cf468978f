"""Other tools that watch a training while it runs, each set up as its own documentation does it.

Versions: `requirements.txt` beside this file. mlflow.pytorch.autolog records a loop of one's own only through the
TensorBoard writer, so that the loss goes there.
"""

from __future__ import annotations

import importlib.util
import itertools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Protocol

import mlflow
import torch


class Training(Protocol):
    """The points of a training at which a tool is called."""

    model: torch.nn.Module
    optimizer: Any
    after: Callable[[torch.nn.Module, torch.Tensor], None] | None
    ended: Callable[[torch.Tensor], None] | None
    within: Callable[[], Any]


Closing = Callable[[], object]
"""Ends what a tool began."""


def mlflow_autolog(training: Training) -> Closing:
    from torch.utils.tensorboard import SummaryWriter

    mlflow.pytorch.autolog()
    writer, steps = SummaryWriter("tensorboard"), itertools.count()
    training.ended = lambda loss: writer.add_scalar("loss", loss.item(), next(steps))
    return writer.close


def wandb_watch(training: Training) -> Closing:
    import wandb

    run = wandb.init(mode="offline", project="overhead", settings=wandb.Settings(silent=True))
    run.watch(training.model, log="all", log_freq=100)
    training.ended = lambda loss: run.log({"loss": loss.item()})
    return run.finish


def anomaly_mode(training: Training) -> Closing:
    warnings.filterwarnings("ignore", message="Anomaly Detection has been enabled")
    training.within = torch.autograd.detect_anomaly
    return lambda: None


def stabilityguard(training: Training, action: str = "skip") -> Closing:
    from stabilityguard import GuardedOptimizer

    training.optimizer = GuardedOptimizer(
        training.optimizer, training.model, spike_threshold=10.0, nan_action=action, log_every=50
    )
    return lambda: None


def trainscope(training: Training) -> Closing:
    from trainscope import TrainScope
    from trainscope.core.config import TrainScopeConfig

    config = TrainScopeConfig(integrations={"wandb": False})  # it would join the run of `wandb_watch`
    scope = TrainScope(training.model, training.optimizer, config=config).attach()
    steps = itertools.count()
    training.after = lambda _, loss: scope.step(loss.item(), batch_index=next(steps))
    return scope.detach


def torchmortem(training: Training) -> Closing:
    from torchmortem import Autopsy

    autopsy = Autopsy(training.model, optimizer=training.optimizer)
    autopsy.attach()
    training.ended = lambda loss: autopsy.step(loss=loss.item())
    return autopsy.detach


@dataclass(frozen=True, slots=True)
class Tool:
    """What a tool is called in the table, and how it is set up."""

    title: str
    set_up: Callable[[Training], Closing]


TOOLS = {
    "mlflow": Tool("`mlflow.pytorch.autolog()`, loss by TensorBoard writer", mlflow_autolog),
    "wandb": Tool('`wandb.watch(log="all", log_freq=100)`, offline', wandb_watch),
    "torch": Tool("`torch.autograd.detect_anomaly()`", anomaly_mode),
    "stabilityguard": Tool('stabilityguard, `nan_action="skip"`', stabilityguard),
    "trainscope": Tool("trainscope", trainscope),
    "torchmortem": Tool("torchmortem", torchmortem),
}
"""By the module that has to be installed."""


def installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def named(name: str) -> str:
    """Return what a tool is called in the table, with its version."""
    return f"{TOOLS[name].title} ({f'{name} {version(name)}' if installed(name) else 'not installed'})"
