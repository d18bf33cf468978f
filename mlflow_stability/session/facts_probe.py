"""Describe a training before its steps, for its recording.

Guarantees: all that costs more than a microsecond happens at the first step of each optimizer, and every ten steps;
nothing of the training is kept alive, and of a batch only words.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.nn import Module
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.weak import WeakIdKeyDictionary

from mlflow_stability.kinds.reported.setup import (
    ConfigurationChanged,
    ConfigurationFacts,
    MissingZeroGrad,
    NotMeasured,
    NotMeasuredFacts,
    Setting,
    SettingName,
    UnclearedFacts,
    Unmeasured,
)
from mlflow_stability.probes.forward.forward_passes import ForwardObserver
from mlflow_stability.probes.gradient_norm import is_split, parameters_of, world_size
from mlflow_stability.probes.model_check.settings import evaluation_mode, few_rows, model_lint
from mlflow_stability.probes.model_discovery import Kind, covering, outermost, parameters_in, places_of, remembered
from mlflow_stability.probes.performance.flop_count import FlopTotals, batch_shape, batch_words
from mlflow_stability.probes.performance.throughput import plain_batch
from mlflow_stability.probes.probe import Probe, StepView, next_multiple
from mlflow_stability.probes.training_facts import MOST_GROUPS, MOST_OPTIMIZERS, autocast_now, group_settings
from mlflow_stability.session.recording.recording import Recording
from mlflow_stability.session.training_facts import TrainingFacts, TrainingView
from mlflow_stability.vocabulary.result import Action, Finding, Remedy, Severity

FIRST_STEPS = 32  # number of first steps that are all checked for a new optimizer; later one in ten is
OTHERS_EVERY = 100  # interval of additional checks at odd steps, because optimizers may take turns
MOST_SEARCHES = 8  # maximum number of searches, for scripts that make an optimizer for each sample


def parts_of(optimizers: Sequence[Optimizer]) -> tuple[list[Module], list[LRScheduler], list[GradScaler]]:
    """Find models, schedulers and used scalers of these optimizers in one walk over Python's objects."""
    modules, schedulers, scalers = remembered(Kind.MODULE, Kind.SCHEDULE, Kind.SCALER)
    # A scaler has its scale on a device from its first use on.
    used = [scaler for scaler in scalers if vars(scaler).get("_scale") is not None]
    return covering(outermost(modules), places_of(optimizers)), schedulers, used


class FactsProbe(ForwardObserver, Probe):
    part = "facts about the run"

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._facts = TrainingFacts(recording.opening.world_size)
        self._watch = SettingChanges()
        self._optimizers: list[weakref.ref[Optimizer]] = []
        self._stepping: list[weakref.ref[Optimizer]] = []  # took a step since the last look
        self._models: list[weakref.ref[Module]] = []
        self._schedulers: list[weakref.ref[LRScheduler]] = []
        self._scalers: list[weakref.ref[GradScaler]] = []
        self._searches = 0
        self._modifier = 0
        self._looked_at = 0
        self.observes = True  # whether to describe the batches of the next step; the last one is trained on
        self._made: MutableMapping[Tensor, int] = WeakIdKeyDictionary()  # optimizers, by their first parameter
        self._trained: set[int] | None = set()  # until the first look, ids of the parameters that steps have changed
        self.flops: FlopTotals | None = None
        self._batch = self._autocast = ""
        self._rows = 0
        self._kept: dict[int, int] = {}
        """Step since which gradients of an optimizer are not cleared, by its id, where reported."""
        self._plain: tuple[Any, ...] | None = None  # identifies the described batch, if it is made of tensors alone
        self._limits: dict[str, str] = {}
        self._noted: tuple[Callable[[], Optimizer | None], Mapping[str, float]] = (lambda: None), {}
        """The optimizer whose limits were noted last, and what they were."""
        self._read: weakref.ref[Module] | None = None
        """The model whose batches are described: those of a GAN's halves differ at every step."""

    def due(self, step: int) -> bool:
        self._modifier += 1
        first = self._modifier <= FIRST_STEPS
        return first or self.observes or self._watch.due(step) or step % OTHERS_EVERY == 1

    def next_due(self, step: int) -> int:
        following = self._modifier <= FIRST_STEPS or self.observes or step % OTHERS_EVERY == 0
        return step + 1 if following else next_multiple(step, LOOK_EVERY)

    def before_step(self, view: StepView) -> None:
        """Note a new optimizer; every ten steps, look at the whole training."""
        look = self._watch.due(view.step) and view.step != self._looked_at
        optimizer, kept_for = id(view.optimizer), view.kept_for
        if not kept_for:
            first = self._kept.pop(optimizer, None)
            if first is not None:
                cleared = ConfigurationFacts(SettingName(Setting.GRADIENTS_CLEARED), not_cleared_since=first)
                remedies = ConfigurationChanged.remedies
                self._recording.emit(Finding.at(cleared, view.step - 1, Severity.INFO, remedies=remedies))
        elif optimizer not in self._kept:
            first = self._kept[optimizer] = max(1, view.step - kept_for)
            facts = UnclearedFacts(kept_for, self._name_of(view.optimizer))
            self._recording.emit(Finding.at(facts, first, Severity.WARNING, remedies=MissingZeroGrad.remedies))
        if not any(reference() is view.optimizer for reference in self._stepping):
            self._stepping.append(weakref.ref(view.optimizer))
        is_new = self._is_new(view.optimizer)
        self._note_limits(view)
        if self._batch or self._modifier > FIRST_STEPS:
            self.observes = False
        if self._trained is not None:
            self._trained.update(
                id(parameter) for parameter in parameters_of(view.optimizer) if parameter.requires_grad
            )
        if is_new:
            self._searches += 1
            models, schedulers, scalers = parts_of(_living(self._optimizers))
            self._models = [weakref.ref(model) for model in models]
            self._schedulers = [weakref.ref(scheduler) for scheduler in schedulers]
            self._scalers = [weakref.ref(scaler) for scaler in scalers]
        elif not look:
            return
        training = TrainingView(
            _living(self._optimizers),
            _living(self._models),
            _living(self._schedulers),
            next(iter(_living(self._scalers)), None),
            self._batch,
            self._rows,
            self._autocast,
            self._recording.micro_batches,
            frozenset(self._trained or ()),
            _living(self._stepping),
            max(self._made.values(), default=1),
            dict(self._limits),
            "" if self.flops is None else self.flops.reason,
            () if self.flops is None else self.flops.unknown,
        )
        self._recording.know(self._facts.collect(training))
        if look:
            self._looked_at = view.step
            self._stepping = []
            self._trained = None
            for event in self._watch.look(view.step, training):
                self._recording.emit(event)
                if event.kind == NotMeasured.kind:
                    self._recording.say(f"{event.message} {event.remedies[0]}")
            self.observes = True

    def forward_began(self, root: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Describe the batches of the step after each periodic scan, and their autocast type, for one model.

        A model that acts, as in reinforcement learning, has passes of other shapes before the one that is trained on.
        """
        if not torch.is_grad_enabled():
            return
        if self._read is None or self._read() is None:
            self._read = weakref.ref(root)
        if self._read() is root:
            self._autocast, plain = autocast_now(), plain_batch(args, kwargs)
            if plain is None or plain != self._plain:
                shape, self._plain = batch_shape(args, kwargs), plain
                self._batch, self._rows = batch_words(args, kwargs), 0 if shape is None else shape.samples

    def _name_of(self, optimizer: Optimizer) -> str:
        """Return the number and the class of one of several optimizers; empty for the only one."""
        living = _living(self._optimizers)
        number = next((at for at, other in enumerate(living) if other is optimizer), None)
        return "" if number is None or len(living) < 2 else f"optimizer_{number} ({type(optimizer).__name__})"

    def _is_new(self, optimizer: Optimizer) -> bool:
        if any(reference() is optimizer for reference in self._optimizers) or self._searches >= MOST_SEARCHES:
            return False
        self._optimizers = [reference for reference in self._optimizers if reference() is not None]
        self._optimizers.append(weakref.ref(optimizer))
        for parameter in parameters_of(optimizer)[:1]:
            self._made[parameter] = self._made.get(parameter, 0) + 1
        return True

    def _note_limits(self, view: StepView) -> None:
        """Note the limits of the first optimizer; of others only where they differ."""
        if self._noted[0]() is view.optimizer and self._noted[1] == view.limits:
            return
        self._noted = weakref.ref(view.optimizer), view.limits
        living = _living(self._optimizers) if view.limits else []
        number = next((at for at, optimizer in enumerate(living) if optimizer is view.optimizer), None)
        if number is None:
            return
        for name, value in view.limits.items():
            limit = str(value)
            if number == 0:
                self._limits[name] = limit
            elif self._limits.get(name) != limit:
                self._limits[f"optimizer_{number}.{name}"] = limit


def _living(references: Sequence[weakref.ref[Any]]) -> list[Any]:
    return [target for reference in references if (target := reference()) is not None]


LOOK_EVERY = 10
MAX_REPORTS = 3
# Learning rates are series; what schedulers write into groups for themselves follows them.
_PASSED_OVER = frozenset({"learning_rate", "max_lr", "min_lr"})
_OF_CYCLES = frozenset({"betas", "momentum", "base_momentum", "max_momentum"})  # also changed by cyclic schedules
_BATCHES = SettingName(Setting.BATCH_SHAPE)
_FIXED = frozenset({bool, int, float, str, type(None)})  # types of immutable values


@dataclass(slots=True)
class _Setting:
    value: str  # as last reported
    other: str = ""  # value at the last look, if different
    since: int = 0
    reports: int = 0
    varies: bool = False  # it was different again at the look after a change, as sequence lengths are


class SettingChanges:
    """Detect settings that change during a training, and mistakes in its set-up.

    A change is reported once it was the same at two looks in a row, so not the small batch at the end of an epoch; at
    most `MAX_REPORTS` times. The learning rate is a series of its own.
    """

    def __init__(self) -> None:
        self._settings: dict[SettingName, _Setting] = {}
        self._values: list[object] | None = None
        """What all settings were made from at the last look, if nothing was about to be reported."""
        self._linted = False
        self._evaluating: Finding | None = None  # the finding of the last look, where the model was in evaluation mode
        self._mode_reported = False

    def due(self, step: int) -> bool:
        return step % LOOK_EVERY == 0

    def look(self, step: int, view: TrainingView) -> list[Finding]:
        events: list[Finding] = []
        if not self._linted:
            self._linted = True
            over_few = few_rows(view.models, view.rows, step)
            events += model_lint(view.models, view.optimizers, step, trained=view.trained)
            events += [over_few] if over_few is not None else []
            events += unseen_parts(view.models, view.optimizers, step)
        events += self._mode(step, view)
        values = _values(view)
        if values is not None and values == self._values:
            return events
        for name, value in _settings(view).items():
            finding = self._changed(name, value, step)
            if finding is not None:
                events.append(finding)
        self._values = None if any(setting.other for setting in self._settings.values()) else values
        return events

    def _mode(self, step: int, view: TrainingView) -> list[Finding]:
        """Report once that the model was in evaluation mode at two looks in a row."""
        if self._mode_reported:
            return []
        before, self._evaluating = self._evaluating, evaluation_mode(view.models, view.stepping, step)
        if before is None or self._evaluating is None:
            return []
        self._mode_reported = True
        return [before]

    def _changed(self, name: SettingName, value: str, step: int) -> Finding | None:
        setting = self._settings.get(name)
        if setting is None:
            self._settings[name] = _Setting(value)
            return None
        if value == setting.value:
            setting.other = ""
            return None
        if value != setting.other:
            setting.varies = setting.varies or setting.other != ""
            setting.other, setting.since = value, step
            return None
        if setting.varies and name == _BATCHES:
            return None
        before, setting.value, setting.other = setting.value, value, ""
        setting.reports += 1
        if setting.reports > MAX_REPORTS:
            return None
        facts = ConfigurationFacts(name, before, value, last_report=setting.reports == MAX_REPORTS)
        return Finding.at(facts, setting.since, Severity.INFO, remedies=ConfigurationChanged.remedies)


def _values(view: TrainingView) -> list[object] | None:
    """Return what `_settings` is made from, for comparison; None where a value is mutable."""
    values: list[object] = [view.batch, view.micro_batches, view.made, dict(view.limits), *map(id, view.schedulers)]
    for optimizer in view.optimizers:
        values += (type(optimizer), len(optimizer.param_groups))
        for group in optimizer.param_groups:
            for name, value in group.items():
                if name == "params":
                    values += [parameter.requires_grad for parameter in value]
                elif name != "lr":
                    parts = value if type(value) is tuple else (value,)
                    if not _FIXED.issuperset(map(type, parts)):
                        return None
                    values.append(value)
    return values


def _settings(view: TrainingView) -> dict[SettingName, str]:
    by_setting = {
        Setting.BATCH_SHAPE: view.batch,
        Setting.MICRO_BATCHES: str(view.micro_batches or ""),
        Setting.OPTIMIZERS_MADE: str(view.made),
        Setting.CLIPPING_NORM: view.limits.get("max_norm"),
        Setting.CLIPPING_VALUE: view.limits.get("clip_value"),
    }
    settings = {SettingName(setting): value for setting, value in by_setting.items() if value}
    captures = any(vars(scheduler).get("cycle_momentum") for scheduler in view.schedulers)
    passed_over = _PASSED_OVER | _OF_CYCLES if captures else _PASSED_OVER
    for number, optimizer in enumerate(view.optimizers[:MOST_OPTIMIZERS]):
        title = type(optimizer).__name__ + (f" (optimizer_{number})" if number else "")
        settings[SettingName(Setting.PARAMETER_GROUPS, owner=title)] = str(len(optimizer.param_groups))
        for place, group in enumerate(optimizer.param_groups[:MOST_GROUPS]):
            where = f"group {place} of {title}" if len(optimizer.param_groups) > 1 else title
            for name, value in group_settings(group).items():
                if name not in passed_over:
                    settings[SettingName(Setting.GROUP_OPTION, name, where)] = value
    trained = [parameter.requires_grad for optimizer in view.optimizers for parameter in parameters_of(optimizer)]
    if trained:  # else the optimizers are gone: later ones of many are not searched for
        settings[SettingName(Setting.TRAINED_PARAMETERS)] = f"{sum(trained)} of {len(trained)}"
    return settings


def unseen_parts(models: Sequence[Module], optimizers: Sequence[Optimizer], step: int) -> list[Finding]:
    """Return findings at INFO about parameters that cannot be measured, and what to do: at most one for each reason."""
    trained = [
        parameter for optimizer in optimizers for parameter in parameters_of(optimizer) if parameter.requires_grad
    ]
    seen: list[tuple[NotMeasuredFacts, Action]] = []
    owned = {id(parameter) for model in models for parameter in parameters_in(model)}
    hidden = sum(id(parameter) not in owned for parameter in trained)
    # Frozen objects are not among those that Python lists: https://docs.python.org/3/library/gc.html#gc.freeze
    if hidden and gc.get_freeze_count():  # counting walks over all of them: 0.1 s for a million
        facts = NotMeasuredFacts(Unmeasured.HIDDEN_MODEL, parameters=hidden, of_parameters=len(trained))
        seen.append((facts, Action.CALL_GC_FREEZE_LATER))
    split, alone = sum(map(is_split, trained)), world_size() == 1
    if split:
        facts = NotMeasuredFacts(
            Unmeasured.SPLIT_PARAMETERS, parameters=split, of_parameters=len(trained), one_process=alone
        )
        seen.append((facts, Action.NO_ACTION_FOR_SHARDS))
    return [Finding.at(facts, step, Severity.INFO, remedies=(Remedy(action),)) for facts, action in seen]
