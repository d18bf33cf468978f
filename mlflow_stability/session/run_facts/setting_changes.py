"""Detect settings that change during a training, and mistakes in its set-up.

A change is reported once it was the same at two looks in a row, so not the small batch at the end of an epoch; at most
`MAX_REPORTS` times. The learning rate is a series of its own.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from torch.optim import Optimizer

from mlflow_stability.kinds.reported.setup import ConfigurationChanged, ConfigurationFacts, Setting, SettingName
from mlflow_stability.probes.forward import unseen_parts
from mlflow_stability.probes.model_check import evaluation_mode, few_rows, model_lint
from mlflow_stability.probes.run_facts import MOST_GROUPS, MOST_OPTIMIZERS, group_settings
from mlflow_stability.probes.tensors import parameters_of
from mlflow_stability.session.run_facts.training_facts import TrainingView
from mlflow_stability.vocabulary.result import Finding, Severity

LOOK_EVERY = 10
MAX_REPORTS = 3
# Learning rates are series; what schedulers write into groups for themselves follows them.
_PASSED_OVER = frozenset({"learning_rate", "max_lr", "min_lr"})
_OF_CYCLES = frozenset({"betas", "momentum", "base_momentum", "max_momentum"})
"""Also changed by cyclic schedules."""
_BATCHES = SettingName(Setting.BATCH_SHAPE)
_FIXED = frozenset({bool, int, float, str, type(None)})
"""Types of immutable values."""


@dataclass(slots=True)
class _Setting:
    """History of one setting."""

    value: str
    """As last reported."""
    other: str = ""
    """Value at the last look, if different."""
    since: int = 0
    reports: int = 0
    varies: bool = False
    """It was different again at the look after a change, as sequence lengths are."""


class SettingChanges:
    def __init__(self) -> None:
        self._settings: dict[SettingName, _Setting] = {}
        self._values: list[object] | None = None
        """What all settings were made from at the last look, if nothing was about to be reported."""
        self._linted = False
        self._evaluating: Finding | None = None
        """The finding of the last look, where the model was in evaluation mode."""
        self._mode_reported = False

    def due(self, step: int) -> bool:
        return step % LOOK_EVERY == 0

    def look(self, step: int, view: TrainingView) -> list[Finding]:
        events = [] if self._linted else _once(view, step)
        self._linted = True
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
        before, self._evaluating = self._evaluating, evaluation_mode(view.models, view.optimizers, step)
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


def _once(view: TrainingView, step: int) -> list[Finding]:
    """Check the set-up once."""
    over_few = few_rows(view.models, view.rows, step)
    return [
        *model_lint(view.models, view.optimizers, step, trained=view.trained),
        *([over_few] if over_few is not None else []),
        *unseen_parts(view.models, view.optimizers, step),
    ]


def _values(view: TrainingView) -> list[object] | None:
    """Return what `_settings` is made from, for comparison; None where a value is mutable."""
    values: list[object] = [view.batch, view.micro_batches, dict(view.limits), *map(id, view.schedulers)]
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
    settings: dict[SettingName, str] = {}
    if view.batch:
        settings[_BATCHES] = view.batch
    if view.micro_batches:
        settings[SettingName(Setting.MICRO_BATCHES)] = str(view.micro_batches)
    if "max_norm" in view.limits:
        settings[SettingName(Setting.CLIPPING_NORM)] = view.limits["max_norm"]
    if "clip_value" in view.limits:
        settings[SettingName(Setting.CLIPPING_VALUE)] = view.limits["clip_value"]
    captures = any(vars(scheduler).get("cycle_momentum") for scheduler in view.schedulers)
    passed_over = _PASSED_OVER | _OF_CYCLES if captures else _PASSED_OVER
    for number, optimizer in enumerate(view.optimizers[:MOST_OPTIMIZERS]):
        title = type(optimizer).__name__ + (f" (optimizer_{number})" if number else "")
        settings |= _of_optimizer(optimizer, passed_over, title)
    trained = [parameter.requires_grad for optimizer in view.optimizers for parameter in parameters_of(optimizer)]
    settings[SettingName(Setting.TRAINED_PARAMETERS)] = f"{sum(trained)} of {len(trained)}"
    return settings


def _of_optimizer(optimizer: Optimizer, passed_over: Set[str], title: str) -> dict[SettingName, str]:
    settings = {SettingName(Setting.PARAMETER_GROUPS, owner=title): str(len(optimizer.param_groups))}
    for number, group in enumerate(optimizer.param_groups[:MOST_GROUPS]):
        where = f"group {number} of {title}" if len(optimizer.param_groups) > 1 else title
        for name, value in group_settings(group).items():
            if name not in passed_over:
                settings[SettingName(Setting.GROUP_OPTION, name, where)] = value
    return settings
