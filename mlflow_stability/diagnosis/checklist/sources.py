"""Questions of a checklist, and where their answers come from: findings, events, metrics, settings, cause checks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import Literal

import numpy as np

from mlflow_stability.curves.curves import Curve
from mlflow_stability.diagnosis.causes.catalog import CheckResult
from mlflow_stability.diagnosis.causes.context import LOOKBACK, EpisodeContext
from mlflow_stability.kinds.catalog import DETECTORS, bare_noun_of
from mlflow_stability.vocabulary.measured.signal import is_whole_model
from mlflow_stability.vocabulary.result import Diagnosis, Finding, Severity
from mlflow_stability.vocabulary.text.phrases import capitalised, counted, sentence

ALWAYS_LOGGED = frozenset({"loss", "learning_rate"})  # quantities that do not show whether a detector had its data
MAX_SETTINGS = 4  # maximum number of settings that an answer names
State = Literal["ok", "bad", "unknown"]


@dataclass(frozen=True, slots=True)
class Answer:
    text: str
    state: State
    has_data: bool = True  # whether the run has data on it; if not, the next source is asked


def no_data(missing: str) -> Answer:
    return Answer(f"No data: {missing}.", "unknown", has_data=False)


@dataclass(frozen=True, slots=True)
class Case:
    """What the questions are about: an episode, or a run without a finding."""

    context: EpisodeContext
    diagnosis: Diagnosis

    @property
    def has_finding(self) -> bool:
        return bool(self.context.episode.kind)

    def findings(self, *kinds: str, least: Severity = Severity.INFO) -> list[Finding]:
        """Return the findings of these kinds and at least this severity, in order of time."""
        return [finding for finding in self.diagnosis.findings if finding.kind in kinds and finding.severity >= least]


Source = Callable[[Case], Answer | None]  # looks for the answer in one place; None if it does not apply


@dataclass(frozen=True, slots=True)
class Question:
    text: str
    sources: tuple[Source, ...]  # asked in this order; empty if a run does not show it
    check_by_hand: str = ""

    def by_hand(self, check: str) -> Question:
        return replace(self, check_by_hand=check)

    def answer(self, case: Case) -> Answer:
        answers = [answer for source in self.sources if (answer := source(case)) is not None]
        missing = answers[0] if answers else no_data("a run does not show this")
        return next((answer for answer in answers if answer.has_data), missing)


def ask(text: str, *sources: Source) -> Question:
    return Question(text, sources)


def findings(*kinds: str, least: Severity = Severity.INFO) -> Source:
    """Answer with the worst finding of these kinds, those before the trouble first; not if there is none."""

    def answer(case: Case) -> Answer | None:
        matching = case.findings(*kinds, least=least)
        if not matching:
            return None
        first = min(matching, key=lambda finding: (finding.start > case.context.episode.end, -finding.severity))
        others = f" {counted(len(matching) - 1, 'more finding')} of this sort." if len(matching) > 1 else ""
        return Answer(f"{capitalised(first.message)}{others}", "bad" if first.severity > Severity.INFO else "unknown")

    return answer


def finding_or_none(*kinds: str) -> Source:
    """Answer with the worst finding of these kinds, or that there is none, if their detectors had data."""
    quantities = {name for detector in DETECTORS if detector.kind in kinds for name in detector.quantities}
    needed = sorted(quantities - ALWAYS_LOGGED)
    bad_finding = findings(*kinds)

    def answer(case: Case) -> Answer | None:
        if (bad := bad_finding(case)) is not None:
            return bad
        logged = {metric.meaning.quantity for metric in case.context.history.metrics}
        if needed and logged.isdisjoint(needed):
            *first, last = [name.replace("_", " ") for name in needed]
            return no_data(f"{', '.join(first)} and {last} not logged" if first else f"{last} not logged")
        return Answer(f"No {' or '.join(dict.fromkeys(map(bare_noun_of, kinds)))} found.", "ok")

    return answer


def events(noun: str, *kinds: str, none: State = "ok") -> Source:
    """Answer with the recorded event of these kinds nearest to the trouble; ``noun``: what such events are."""

    def answer(case: Case) -> Answer:
        if case.context.history.events is None:
            return no_data("only `autolog()` records this")
        recorded = case.context.events_of(*kinds)
        if not recorded:
            return Answer(f"No {noun} recorded.", none)
        nearest = min(recorded, key=lambda event: abs(event.step - case.context.episode.start))
        others = f" {len(recorded) - 1} more." if len(recorded) > 1 else ""
        return Answer(f"{capitalised(nearest.message)}{others}", "bad")

    return answer


def setting(noun: str, names: str) -> Source:
    """Answer with the values of settings; ``names``: last parts of parameters' keys in lower case, by spaces."""
    keys = frozenset(names.split())

    def answer(case: Case) -> Answer:
        params = [(key.replace("/", ".").split(".")[-1], value) for key, value in case.context.history.params.items()]
        recorded = [f"{name} = {value}" for name, value in params if name.lower() in keys]
        if not recorded:
            return no_data(f"{noun} not recorded")
        return Answer(f"{', '.join(recorded[:MAX_SETTINGS])}.", "unknown")

    return answer


def check(*functions: Callable[[EpisodeContext], CheckResult]) -> Source:
    """Answer with the first cause that these checks find, else with the result of the last one."""

    def answer(case: Case) -> Answer:
        results = [function(case.context) for function in functions]
        cause = next((result.cause for result in results if result.cause is not None), None)
        if cause is not None:
            return Answer(cause.statement, "bad")
        if results[-1].ruled_out:
            return Answer(sentence(results[-1].ruled_out), "ok")
        return Answer(sentence(results[-1].not_checked), "unknown", has_data=False)

    return answer


def change(quantity: str, noun: str, *, rise: float = inf, fall: float = 0.0) -> Source:
    """Answer with the change of a metric when the trouble began; bad if it rose or fell by these factors."""

    def answer(case: Case) -> Answer:
        curves = case.context.curves(quantity)
        changes = [change for curve in curves if (change := change_of(case, curve)) is not None]
        if not changes:
            return no_data(f"{noun} not logged")
        worst = max(changes, key=lambda change: change.extent(rise))
        bad = sum(change.is_bad(rise, fall) for change in changes)
        others = f" {bad - 1} more changed as much." if bad > 1 else ""
        place = "" if is_whole_model(worst.place) else f" of {worst.place}"
        values = f"{worst.before:.3g} before, {worst.at:.3g} at step {worst.step}"
        return Answer(f"{capitalised(noun)}{place}: {values}.{others}", "bad" if bad else "ok")

    return answer


@dataclass(frozen=True, slots=True)
class Change:
    place: str
    before: float
    at: float
    step: int

    def is_bad(self, rise: float, fall: float) -> bool:
        """Return whether it rose or fell by these factors, or is not finite."""
        return not isfinite(self.at) or self.at > self.before * rise or self.at < self.before * fall

    def extent(self, rise: float) -> float:
        """Return the factor of its rise, or of its fall if `rise` is infinite."""
        if not isfinite(self.at):
            return inf
        tiny = 1e-30
        ratio = (abs(self.at) + tiny) / (abs(self.before) + tiny)
        return ratio if rise < inf else 1 / ratio


def change_of(case: Case, curve: Curve) -> Change | None:
    """Return the change from the baseline to the farthest point of the trouble; without a finding, to the end."""
    episode, steps, values = case.context.episode, curve.steps, curve.values
    if not len(values):
        return None
    begin = end = len(values)
    usual, at = values[: max(1, len(values) // 10)], len(values) - 1
    if case.has_finding:
        begin = int(np.searchsorted(steps, episode.start, side="left"))
        end = max(int(np.searchsorted(steps, max(episode.peak, episode.start), side="right")), begin + 1)
        usual, at = values[max(0, begin - LOOKBACK.just_before) : begin], min(begin, len(values) - 1)
    usual = usual[np.isfinite(usual)]
    before = float(np.median(usual)) if len(usual) else float(values[0])
    trouble = values[begin:end]
    if len(trouble) and len(usual):
        with np.errstate(all="ignore"):
            at = begin + int(np.argmax(np.abs(np.nan_to_num(trouble, nan=inf, posinf=inf, neginf=inf) - before)))
    return Change(curve.place, before, float(values[at]), int(steps[at]))
