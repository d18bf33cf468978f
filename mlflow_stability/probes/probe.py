"""Interfaces of probes: what a probe is given before and after a step, and what calls it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from mlflow_stability.probes.block import Block
from mlflow_stability.probes.parameters.layers import Layers
from mlflow_stability.vocabulary.measured import AttentionMap
from mlflow_stability.vocabulary.settings import Settings


class StepView(NamedTuple):
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
    norm: Tensor | float | None = None
    """Before a step: that of all gradients of this optimizer, unscaled; None: nobody took it."""
    limits: Mapping[str, float] = MappingProxyType({})
    """With which limits the script has clipped these gradients: ``max_norm``, ``clip_value``."""
    kept_for: int = 0
    """Before a step: in how many steps in a row gradients were added to those of the step before; 0: not for sure."""


class Guard(Protocol):
    """Wraps the body of a hook so that an error of ours never reaches the training.

    The wrapped body returns None once its part is switched off, or when it failed.
    """

    def __call__(self, part: str, body: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a body that belongs to a part, such as ``gradient norm``."""
        ...

    @property
    def off(self) -> Mapping[str, str]:
        """The parts that are switched off, and why."""
        ...

    def contain(self, part: str, failure: BaseException, forget: Callable[[], None] | None = None) -> None:
        """Runs within ``except`` in a wrapped body: end an error of a part of it there, raise any other again."""


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


@runtime_checkable
class ForwardProbe(Protocol):
    """Looks into the forward pass of a model."""

    part: str
    """How it is called where it fails."""

    def due(self, own_step: int) -> bool:
        """Whether to look; `own_step`: how many captures this model has trained.

        Asked once for each capture and model that `next_due` has not passed over.
        """
        ...

    def next_due(self, own_step: int) -> int:
        """The next turn after this one that may be due."""
        ...

    def open(self, root: Module, step: int, alive: Callable[[], bool]) -> None:
        """Begin to look, right before the forward pass of `root`.

        `alive` tells from within an observer or a mode whether that pass is still going on: where Ctrl-C comes while
        a probe is closed, what is left must do nothing until the next pass begins.
        """
        ...

    def close(self, whole: bool) -> None:
        """Take everything off again. `whole`: the pass ended as it should; else forget what was seen."""
        ...

    def blocks(self) -> Sequence[Block]:
        """What was measured: the capture is over. Empties itself."""
        ...

    def finish(self) -> None:
        """The recording ends: hand over what is still on its way."""
        ...


@dataclass(frozen=True, slots=True)
class ProbeContext:
    """What a recording offers to the probes that it is measured by."""

    settings: Settings
    guard: Guard
    models: Callable[[], Sequence[Module]]
    """The models that train."""
    say: Callable[[str], None]
    """Tells a person who looks at the training's output."""
    keep_attention: Callable[[AttentionMap], None]
    """Keeps a map of attention beside the journal."""

    @property
    def layers(self) -> int:
        """Every how many steps layers are measured."""
        return self.settings.layers_every_n_steps

    @property
    def budget(self) -> int | None:
        """How many bytes copies may take."""
        return self.settings.memory_budget


ProbeFactory: TypeAlias = Callable[[ProbeContext], Probe | ForwardProbe | None]
"""Makes a probe, or none where these settings do not ask for it.

A file with `SIGNALS` has them in `PROBES`, a tuple; nothing else is needed for it to be measured.
"""
NORMS_EVERY = 10
"""Every how many steps the whole model's weights, updates and momentum are measured."""


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

    def close(self) -> None:
        """The recording ends: leave the models alone."""


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
