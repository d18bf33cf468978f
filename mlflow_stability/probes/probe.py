"""Interfaces of probes: what a probe is given before and after a step, and what calls it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from torch import Tensor
from torch.optim import Optimizer

from mlflow_stability.probes.block import Block
from mlflow_stability.probes.parameters.layers import Layers


@dataclass(frozen=True, slots=True)
class StepView:
    """One optimizer of a capture."""

    optimizer: Optimizer
    step: int
    layers: Layers
    """Which parameter belongs to which module."""
    unscale: Tensor | None = None
    """By what gradients must be divided that a loss scaler has left scaled; None: they are as they are."""
    skipped: bool = False
    """After a step: it is known not to have been taken."""
    place: str = ""
    """Where signals of the whole model belong: nothing is said unless several trainings run side by side."""
    norm: Tensor | None = None
    """Before a step: that of all gradients of this optimizer, unscaled; None: nobody took it."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """With which limits the script has clipped these gradients: ``max_norm``, ``clip_value``."""


class Guard(Protocol):
    """Wraps the body of a hook so that an error of ours never reaches the training.

    The wrapped body returns None once its part is switched off, or when it failed.
    """

    def __call__(self, part: str, body: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a body that belongs to a part, such as ``gradient norm``."""
        ...


class Probe(Protocol):
    """Measures something, on the device, without waiting for it."""

    part: str
    """How it is called where it fails."""

    def due(self, step: int) -> bool:
        """Whether this capture is to be measured; asked once for each that `next_due` has not passed over."""
        ...

    def next_due(self, step: int) -> int:
        """The next step after this one that may be due: nobody asks `due` before it."""
        ...

    def before_step(self, view: StepView) -> None:
        """Runs when gradients are complete and not used yet, once for each optimizer of the capture."""
        ...

    def after_step(self, view: StepView) -> None:
        """Runs right after that optimizer's step."""
        ...

    def blocks(self, step: int) -> Sequence[Block]:
        """What was measured: the capture is over."""
        ...


def next_multiple(step: int, *periods: int) -> int:
    """The first multiple of any of them after a step."""
    return min([step - step % each + each for each in periods])


class BaseProbe:
    """What most probes do at most moments: nothing. A method that is left as it is here is not called."""

    is_periodic = False
    """Whether it is due at each step that `next_due` names: then `due` is not asked there."""

    def before_step(self, _view: StepView) -> None:
        """Runs when gradients are complete and not used yet."""

    def after_step(self, _view: StepView) -> None:
        """Runs right after the step."""

    def blocks(self, _step: int) -> Sequence[Block]:
        """What was measured: the capture is over."""
        return ()


class PeriodicProbe(BaseProbe):
    """A probe that is due every so many steps."""

    is_periodic = True

    def __init__(self, *periods: int) -> None:
        self._periods = periods
        """Due is each multiple of any of them."""

    def due(self, step: int) -> bool:
        """Whether this step is to be measured."""
        return 0 in [step % each for each in self._periods]

    def next_due(self, step: int) -> int:
        """The next step that is due."""
        return next_multiple(step, *self._periods)


def next_sampled_step(own_step: int, first: int, every: int) -> int:
    """The first turn after this one at which those look that do so at a first one and at every so many."""
    return min(first, next_multiple(own_step, every)) if own_step < first else next_multiple(own_step, every)


@runtime_checkable
class Forgetful(Protocol):
    """A probe that holds something from one place of a capture to the next; so do others that a guard runs.

    The guard calls this when Ctrl-C, or what the script raises from a signal, has ended one of its bodies half-way.
    """

    def forget(self) -> None:
        """Let go of what was begun: the capture was interrupted."""
        ...
