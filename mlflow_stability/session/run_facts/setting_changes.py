"""Notices what is changed about a training while it runs, and what is odd about it when it begins.

In: a training as it is seen every few steps. Out: events. Guarantees: a setting is told of once it was the same
at two looks in a row, so that the small batch at the end of an epoch and a schedule that turns a number at every step
are not; what changes again and again is told `MOST_TOLD` times; the learning rate is left to its own series.
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
MOST_TOLD = 3
# Learning rates are series; what schedulers write into groups for themselves follows them.
_PASSED_OVER = frozenset({"learning_rate", "max_lr", "min_lr"})
_OF_CYCLES = frozenset({"betas", "momentum", "base_momentum", "max_momentum"})
"""What a schedule turns as well that goes in cycles."""
_BATCHES = SettingName(Setting.BATCH_SHAPE)
_FIXED = frozenset({bool, int, float, str, type(None)})
"""Types of values that cannot change within themselves."""


@dataclass(slots=True)
class _Setting:
    """What is known of one setting."""

    value: str
    """As it was last told."""
    other: str = ""
    """What it was at the last look, where that is something else."""
    since: int = 0
    told: int = 0
    varies: bool = False
    """Whether it was something else again at the look after a change, as the length of sequences is."""


class SettingChanges:
    """Detects changed settings of one recording's training."""

    def __init__(self) -> None:
        self._settings: dict[SettingName, _Setting] = {}
        self._values: list[object] | None = None
        """What all settings were made from at the last look, where nothing was about to be told."""
        self._linted = False
        self._evaluating: Finding | None = None
        """The last look, where the model was in evaluation mode."""
        self._mode_told = False

    def due(self, step: int) -> bool:
        """Whether this step is one to look at."""
        return step % LOOK_EVERY == 0

    def look(self, step: int, view: TrainingView) -> list[Finding]:
        """Look at the training as it is at this step."""
        events = [] if self._linted else _once(view, step)
        self._linted = True
        events += self._mode(step, view)
        values = _values(view)
        if values is not None and values == self._values:
            return events
        for name, value in _settings(view).items():
            told = self._changed(name, value, step)
            if told is not None:
                events.append(told)
        self._values = None if any(each.other for each in self._settings.values()) else values
        return events

    def _mode(self, step: int, view: TrainingView) -> list[Finding]:
        """Tell once that the model was in evaluation mode at this look and at the one before."""
        if self._mode_told:
            return []
        before, self._evaluating = self._evaluating, evaluation_mode(view.models, view.optimizers, step)
        if before is None or self._evaluating is None:
            return []
        self._mode_told = True
        return [before]

    def _changed(self, name: SettingName, value: str, step: int) -> Finding | None:
        known = self._settings.get(name)
        if known is None:
            self._settings[name] = _Setting(value)
            return None
        if value == known.value:
            known.other = ""
            return None
        if value != known.other:
            known.varies = known.varies or known.other != ""
            known.other, known.since = value, step
            return None
        if known.varies and name == _BATCHES:
            return None
        before, known.value, known.other = known.value, value, ""
        known.told += 1
        if known.told > MOST_TOLD:
            return None
        facts = ConfigurationFacts(name, before, value, last_report=known.told == MOST_TOLD)
        return Finding.at(facts, known.since, Severity.INFO, remedies=ConfigurationChanged.remedies)


def _once(view: TrainingView, step: int) -> list[Finding]:
    """What is said of a training when it begins."""
    over_few = few_rows(view.models, view.rows, step)
    return [
        *model_lint(view.models, view.optimizers, step, trained=view.trained),
        *([over_few] if over_few is not None else []),
        *unseen_parts(view.models, view.optimizers, step),
    ]


def _values(view: TrainingView) -> list[object] | None:
    """What `_settings` is made from: where it is the same, so are they; None where it may change within itself."""
    found: list[object] = [view.batch, view.micro_batches, dict(view.limits), *map(id, view.schedulers)]
    for optimizer in view.optimizers:
        found += (type(optimizer), len(optimizer.param_groups))
        for group in optimizer.param_groups:
            for name, value in group.items():
                if name == "params":
                    found += [each.requires_grad for each in value]
                elif name != "lr":
                    parts = value if type(value) is tuple else (value,)
                    if not _FIXED.issuperset(map(type, parts)):
                        return None
                    found.append(value)
    return found


def _settings(view: TrainingView) -> dict[SettingName, str]:
    """What is compared: names and values."""
    found: dict[SettingName, str] = {}
    if view.batch:
        found[_BATCHES] = view.batch
    if view.micro_batches:
        found[SettingName(Setting.MICRO_BATCHES)] = str(view.micro_batches)
    if "max_norm" in view.limits:
        found[SettingName(Setting.CLIPPING_NORM)] = view.limits["max_norm"]
    if "clip_value" in view.limits:
        found[SettingName(Setting.CLIPPING_VALUE)] = view.limits["clip_value"]
    captures = any(vars(each).get("cycle_momentum") for each in view.schedulers)
    passed_over = _PASSED_OVER | _OF_CYCLES if captures else _PASSED_OVER
    for number, optimizer in enumerate(view.optimizers[:MOST_OPTIMIZERS]):
        title = type(optimizer).__name__ + (f" (optimizer_{number})" if number else "")
        found |= _of_optimizer(optimizer, passed_over, title)
    trained = [each.requires_grad for one in view.optimizers for each in parameters_of(one)]
    found[SettingName(Setting.TRAINED_PARAMETERS)] = f"{sum(trained)} of {len(trained)}"
    return found


def _of_optimizer(optimizer: Optimizer, passed_over: Set[str], title: str) -> dict[SettingName, str]:
    found = {SettingName(Setting.PARAMETER_GROUPS, owner=title): str(len(optimizer.param_groups))}
    for number, group in enumerate(optimizer.param_groups[:MOST_GROUPS]):
        where = f"group {number} of {title}" if len(optimizer.param_groups) > 1 else title
        for name, value in group_settings(group).items():
            if name not in passed_over:
                found[SettingName(Setting.GROUP_OPTION, name, where)] = value
    return found
