"""Interfaces of probes: what they are given before and after a step, and what they return."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, Protocol, TypeAlias

from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from mlflow_stability.probes.hooks.guarded_hooks import PartGuard
from mlflow_stability.probes.parameters.layers import Layers
from mlflow_stability.probes.step.readback import Block
from mlflow_stability.vocabulary.measured.layer_arrays import AttentionMap
from mlflow_stability.vocabulary.settings import Settings


class StepView(NamedTuple):
    optimizer: Optimizer
    step: int
    layers: Layers  # modules of the parameters
    unscale: Tensor | None = None  # the scale to divide gradients by where a loss scaler left them scaled, or None
    skipped: bool = False  # after a step: whether it is known to have been skipped
    place: str = ""  # place of signals of the whole model; empty unless several trainings run side by side
    norm: Tensor | float | None = None
    """Before a step: the unscaled norm of all gradients of this optimizer, or None where it was not measured."""
    limits: Mapping[str, float] = MappingProxyType({})  # the script's clipping limits: ``max_norm``, ``clip_value``
    kept_for: int = 0
    """Before a step: the number of steps in a row that added to the gradients of the step before; 0 while not
    certain."""
    late_clips: int = 0
    """Before a step: the number of steps in a row whose gradients were clipped only after they had been used."""


Guard: TypeAlias = PartGuard  # wraps the body of a hook so that an error of ours never reaches the training


def next_multiple(step: int, *periods: int) -> int:
    """Return the first multiple of any period after a step."""
    return min([step - step % period + period for period in periods])


class Probe:
    """Measures something, on the device, without waiting for it; methods that are not overridden are not called."""

    part: str  # its name in messages about a failure
    is_periodic = False  # whether it is due at each step that `next_due` returns: then `due` is not called there

    def due(self, step: int) -> bool:
        """Return whether to measure this capture; called once for each that `next_due` does not skip."""
        raise NotImplementedError

    def next_due(self, step: int) -> int:
        """Return the next step after this one that may be due; `due` is not called before it."""
        raise NotImplementedError

    def before_step(self, _view: StepView) -> None:
        """Runs when gradients are complete and not used yet, once for each optimizer of the capture."""

    def after_step(self, _view: StepView) -> None: ...

    def blocks(self, _step: int) -> Sequence[Block]:
        """Return the measurements of a capture that is over."""
        return ()

    def forget(self) -> None:
        """Drop unfinished measurements: Ctrl-C, or what a signal raises, has ended a method half-way."""

    def close(self) -> None:
        """Remove everything from the models at the end of the recording."""


class PeriodicProbe(Probe):
    """A probe that is due at each multiple of any of its periods, in steps."""

    is_periodic = True

    def __init__(self, *periods: int) -> None:
        self._periods = periods

    def due(self, step: int) -> bool:
        return 0 in [step % period for period in self._periods]

    def next_due(self, step: int) -> int:
        return next_multiple(step, *self._periods)


class ForwardProbe(Protocol):
    """Measures inside the forward pass of a model."""

    part: str  # its name in messages about a failure

    def due(self, own_step: int) -> bool:
        """Return whether to measure; `own_step` is the number of captures that this model has trained.

        Called once for each capture and model that `next_due` does not skip.
        """
        ...

    def next_due(self, own_step: int) -> int:
        """Return the next own step after this one that may be due."""
        ...

    def open(self, root: Module, step: int, alive: Callable[[], bool]) -> None:
        """Begin to measure, right before the forward pass of `root`.

        `alive` tells an observer or a mode whether that pass is still running: where Ctrl-C comes while a probe is
        closed, what remains must do nothing until the next pass begins.
        """
        ...

    def close(self, whole: bool) -> None:
        """Remove everything. Unless the pass ended normally (`whole`), forget its measurements."""
        ...

    def blocks(self) -> Sequence[Block]:
        """Return, and forget, the measurements of a capture that is over."""
        ...

    def finish(self) -> None:
        """Deliver outstanding measurements at the end of the recording."""
        ...


@dataclass(frozen=True, slots=True)
class ProbeContext:
    settings: Settings
    guard: Guard
    models: Callable[[], Sequence[Module]]  # the models that train
    say: Callable[[str], None]  # prints a message to the training's output
    keep_attention: Callable[[AttentionMap], None]  # keeps a map of attention beside the journal

    @property
    def layers(self) -> int:
        """Steps between measurements of layers."""
        return self.settings.layers_every_n_steps

    @property
    def budget(self) -> int | None:
        """Bytes that copies may take."""
        return self.settings.memory_budget


ProbeFactory: TypeAlias = Callable[[ProbeContext], Probe | ForwardProbe | None]
"""Returns a probe, or None where these settings do not ask for it.

A file with `SIGNALS` has them in `PROBES`, a tuple; nothing else is needed for it to be measured.
"""
NORMS_EVERY = 10  # steps between measurements of the whole model's weights, updates and momentum


def next_sampled_step(own_step: int, first: int, every: int) -> int:
    """Return the next own step after this one that is `first` or a multiple of `every`."""
    return min(first, next_multiple(own_step, every)) if own_step < first else next_multiple(own_step, every)
