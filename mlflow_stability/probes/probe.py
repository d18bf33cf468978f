"""Interfaces of probes: what they are given before and after a step, and what they return.

Also the base of probes that observe modules during the forward pass of some steps, and the names of these modules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from mlflow_stability.probes.hooks.guarded_hooks import PartGuard
from mlflow_stability.probes.hooks.module_calls import MODULE_CALLS
from mlflow_stability.probes.model_discovery import plain_name, unwrapped
from mlflow_stability.probes.parameters.layers import Layers
from mlflow_stability.probes.step.readback import Block
from mlflow_stability.vocabulary.measured.layer_arrays import AttentionMap
from mlflow_stability.vocabulary.settings import Settings


@dataclass(slots=True)
class ClipCounts:
    """Clippings in a row, up to now, that cannot do what the script wants."""

    late: int = 0  # of gradients that the optimizers had used already
    empty: int = 0  # of no gradients at all
    scaled: int = 0  # of gradients that a loss scaler had scaled


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
    clips: ClipCounts = ClipCounts()  # before a step
    discarded: int = 0
    """Before a step: number of backward passes since the last one whose gradients were cleared; 0 while not certain."""


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

    def at_loss(self, tensors: Any) -> None:
        """Runs before each backward pass from these tensors, for a probe that `TrainingPace.looks` names."""

    def training_began(self, _step: int, _place: str) -> None:
        """Runs before the first step of a further training, whose signals of the whole model have this place."""

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

    def next_due(self, own_step: int) -> int:
        """Return the next own step after this one that may be due."""

    def open(self, root: Module, step: int, alive: Callable[[], bool]) -> None:
        """Begin to measure, right before the forward pass of `root`.

        `alive` tells an observer or a mode whether that pass is still running: where Ctrl-C comes while a probe is
        closed, what remains must do nothing until the next pass begins.
        """

    def close(self, whole: bool) -> None:
        """Remove everything. Unless the pass ended normally (`whole`), forget its measurements."""

    def blocks(self) -> Sequence[Block]:
        """Return, and forget, the measurements of a capture that is over."""

    def finish(self) -> None:
        """Deliver outstanding measurements at the end of the recording."""


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


FIRST_STEP = 10  # of a model that is measured
Before = Callable[[Module, tuple[Any, ...], dict[str, Any]], None]
After = Callable[[Module, tuple[Any, ...], Any], None]


class WatchedModules:
    """Names of the modules inside the models that were seen, so that modules of two models have different names.

    Names are without what wrappers add, and begin with the model's class where several models train. Guarantees:
    neither models nor modules are kept alive.
    """

    def __init__(self, models: Callable[[], Sequence[Module]]) -> None:
        self._models = models  # returns the models that train

    def inside(self, root: Module) -> Iterator[tuple[str, Module]]:
        """Yield the modules in `root` without `root` itself, each once, in the order of the model."""
        title, path = self._place(root)
        scripted: set[Module] = set()
        for name, module in Module.named_modules(root):
            if isinstance(module, torch.jit.ScriptModule):  # hooks do not run inside it
                scripted.update(Module.modules(module))
            plain = ".".join(filter(None, (path, plain_name(name))))
            if plain and module not in scripted:
                yield title + plain, module

    def _place(self, root: Module) -> tuple[str, str]:
        """Return the title of the model of `root`, and the path of `root` in it: usually `root` is the model."""
        part = unwrapped(root)
        for model in map(unwrapped, self._models()):
            for name, module in () if model is part else Module.named_modules(model):
                if module is part or module is root:
                    return self._title(model), plain_name(name)
        return self._title(part), ""

    def _title(self, model: Module) -> str:
        models = list(map(unwrapped, self._models()))
        if all(other is not model for other in models):
            models.append(model)
        if len(models) == 1:
            return ""
        titles = [type(other).__name__ for other in models]
        at = next(number for number, other in enumerate(models) if other is model)
        return f"{titles[at]}_{at}." if Counter(titles)[titles[at]] > 1 else f"{titles[at]}."


class PassHooks:
    """The functions of one probe in one forward pass: none runs after the pass, or after `remove`.

    Modules and their hook tables stay as they are.
    """

    def __init__(self, guard: Guard, part: str, alive: Callable[[], bool]) -> None:
        self._guarded = cache(partial(guard, part))  # one function is observed at many modules
        self.is_on = alive  # refers to the frame of the pass: not kept beyond it
        self._watched: list[Callable[[], None]] = []

    def before(self, module: Module, body: Before) -> None:
        """Run `body(module, args, kwargs)` before each call of a module."""
        self._watched.append(MODULE_CALLS.observe(module, _Hook(self, before=self._guarded(body))))

    def after(self, module: Module, body: After) -> None:
        """Run `body(module, args, output)` after each call of a module."""
        self._watched.append(MODULE_CALLS.observe(module, _Hook(self, after=self._guarded(body))))

    def remove(self) -> None:
        self.is_on = _over
        while self._watched:
            self._watched[-1]()  # first, because Ctrl-C may come in between
            del self._watched[-1:]


def _nothing(*_: object) -> None: ...


class _Hook:
    def __init__(self, hooks: PassHooks, before: Before = _nothing, after: After = _nothing) -> None:
        self._hooks, self._before, self._after = hooks, before, after

    def call_began(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._hooks.is_on():
            self._before(module, args, kwargs)

    def call_ended(self, module: Module, args: tuple[Any, ...], output: Any) -> None:
        if self._hooks.is_on():
            self._after(module, args, output)

    def call_failed(self, module: Module) -> None:
        """The probe that opened the pass closes it."""


def _over() -> bool:
    return False


class SampledForwardProbe:
    """Probe that observes modules in the tenth step of a model and in every `every`-th one."""

    part: str

    def __init__(self, guard: Guard, every: int, models: Callable[[], Sequence[Module]]) -> None:
        self.every = every
        self._guard = guard
        self._modules = WatchedModules(models)
        self._hooks: PassHooks | None = None

    def due(self, own_step: int) -> bool:
        return own_step == FIRST_STEP or own_step % self.every == 0

    def next_due(self, own_step: int) -> int:
        return next_sampled_step(own_step, FIRST_STEP, self.every)

    def observe(self, alive: Callable[[], bool]) -> PassHooks:
        self._hooks = PassHooks(self._guard, self.part, alive)
        return self._hooks

    def stop(self) -> None:
        """Remove the hooks and forget the pass."""
        if self._hooks is not None:
            self._hooks.remove()
            self._hooks = None
