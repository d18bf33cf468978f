"""Where answers come from: findings, events, how a metric changed, settings, and the checks of causes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, isfinite

import numpy as np

from mlflow_stability.curves.curves import Curve
from mlflow_stability.diagnosis.causes.check import CheckResult
from mlflow_stability.diagnosis.causes.context import LOOKBACK, EpisodeContext, shown
from mlflow_stability.diagnosis.checklist.question import Answer, Case, Source, no_data
from mlflow_stability.kinds.catalog import DETECTORS
from mlflow_stability.kinds.nouns import bare_noun_of
from mlflow_stability.vocabulary.measured import of_the_whole
from mlflow_stability.vocabulary.result import Severity
from mlflow_stability.vocabulary.text import capitalised, counted, sentence

EVERY_RUN_HAS = frozenset({"loss", "learning_rate"})
"""Quantities that say nothing about whether a detector could have looked."""
MOST_SETTINGS = 4
"""Maximum number of settings that an answer names."""


def seen(*kinds: str, least: Severity = Severity.INFO) -> Source:
    """The findings of these kinds, those before the trouble first; nothing where there are none."""

    def answer(case: Case) -> Answer | None:
        findings = case.findings(*kinds, least=least)
        if not findings:
            return None
        first = min(findings, key=lambda finding: (finding.start > case.around.episode.end, -finding.severity))
        others = f" {counted(len(findings) - 1, 'more finding')} of this sort." if len(findings) > 1 else ""
        return Answer(f"{capitalised(first.message)}{others}", "bad" if first.severity > Severity.INFO else "unknown")

    return answer


def found(*kinds: str) -> Source:
    """Whether the run has a finding of these kinds."""
    needed = {name for each in DETECTORS if each.kind in kinds for name in each.quantities} - EVERY_RUN_HAS
    finding = seen(*kinds)

    def answer(case: Case) -> Answer | None:
        if (bad := finding(case)) is not None:
            return bad
        if needed.isdisjoint(metric.meaning.quantity for metric in case.around.history.metrics) and needed:
            words = [name.replace("_", " ") for name in sorted(needed)]
            return no_data(f"{' and '.join(filter(None, (', '.join(words[:-1]), words[-1])))} not logged")
        return Answer(f"No {' or '.join(dict.fromkeys(map(bare_noun_of, kinds)))} found.", "ok")

    return answer


def reported(noun: str, *kinds: str) -> Source:
    """What the recording reported beside findings, the nearest to the trouble; ``noun``: what such reports are."""

    def answer(case: Case) -> Answer:
        if case.around.history.events is None:
            return no_data("only `autolog()` records this")
        events = case.around.said(*kinds)
        if not events:
            return Answer(f"No {noun} recorded.", "ok")
        nearest = min(events, key=lambda event: abs(event.step - case.around.episode.start))
        others = f" {len(events) - 1} more." if len(events) > 1 else ""
        return Answer(f"{capitalised(nearest.message)}{others}", "bad")

    return answer


def setting(noun: str, names: str) -> Source:
    """What was set, without a judgement of it; ``names``: last parts of parameters' keys, in small letters."""
    known = frozenset(names.split())

    def answer(case: Case) -> Answer:
        named = [(key.replace("/", ".").split(".")[-1], value) for key, value in case.around.history.params.items()]
        recorded = [f"{name} = {value}" for name, value in named if name.lower() in known]
        if not recorded:
            return no_data(f"{noun} not recorded")
        return Answer(f"{', '.join(recorded[:MOST_SETTINGS])}.", "unknown")

    return answer


def checked(*looks: Callable[[EpisodeContext], CheckResult]) -> Source:
    """The first cause that these checks find; else what the last of them says."""

    def answer(case: Case) -> Answer:
        results = [look(case.around) for look in looks]
        cause = next((result.cause for result in results if result.cause is not None), None)
        if cause is not None:
            return Answer(cause.statement, "bad")
        ruled_out = results[-1].ruled_out
        return Answer(sentence(ruled_out or results[-1].unseen), "ok" if ruled_out else "unknown", bool(ruled_out))

    return answer


def change(quantity: str, noun: str, *, rise: float = inf, fall: float = 0.0) -> Source:
    """How a metric changed when the trouble began; bad where it rose or fell by these factors."""

    def answer(case: Case) -> Answer:
        changes = [change for curve in case.around.of(quantity) if (change := change_of(case, curve)) is not None]
        if not changes:
            return no_data(f"{noun} not logged")
        worst = max(changes, key=lambda change: change.extent(rise))
        bad = sum(change.is_bad(rise, fall) for change in changes)
        others = f" {bad - 1} more changed as much." if bad > 1 else ""
        place = "" if of_the_whole(worst.place) else f" of {worst.place}"
        values = f"{shown(worst.before)} before, {shown(worst.at)} at step {worst.step}"
        return Answer(f"{capitalised(noun)}{place}: {values}.{others}", "bad" if bad else "ok")

    return answer


@dataclass(frozen=True, slots=True)
class Change:
    """One metric before the trouble and at it."""

    place: str
    before: float
    at: float
    step: int

    def is_bad(self, rise: float, fall: float) -> bool:
        """Whether it rose or fell by these factors, or is not finite."""
        return not isfinite(self.at) or self.at > self.before * rise or self.at < self.before * fall

    def extent(self, rise: float) -> float:
        """How far it went in the direction that is asked for."""
        if not isfinite(self.at):
            return inf
        tiny = 1e-30
        ratio = (abs(self.at) + tiny) / (abs(self.before) + tiny)
        return ratio if rise < inf else 1 / ratio


def change_of(case: Case, curve: Curve) -> Change | None:
    """From what was usual to the point of the trouble farthest from it; without a finding, from start to end."""
    episode, steps, values = case.around.episode, curve.steps, curve.values
    if not len(values):
        return None
    if case.has_finding:
        begins = int(np.searchsorted(steps, episode.start, side="left"))
        ends = max(int(np.searchsorted(steps, max(episode.peak, episode.start), side="right")), begins + 1)
        usual, at = values[max(0, begins - LOOKBACK.just_before) : begins], min(begins, len(values) - 1)
    else:
        begins, ends, at = len(values), len(values), len(values) - 1
        usual = values[: max(1, len(values) // 10)]
    usual = usual[np.isfinite(usual)]
    before = float(np.median(usual)) if len(usual) else float(values[0])
    trouble = values[begins:ends]
    if len(trouble) and len(usual):
        with np.errstate(all="ignore"):
            at = begins + int(np.argmax(np.abs(np.nan_to_num(trouble, nan=inf, posinf=inf, neginf=inf) - before)))
    return Change(curve.place, before, float(values[at]), int(steps[at]))
