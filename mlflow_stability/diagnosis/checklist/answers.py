"""Ways to answer a question from a run: by its findings, by how a metric changed, by a setting, by what it reported.

Guarantees: where the run holds nothing about it, the answer is "No data" and unknown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import inf, isfinite

import numpy as np

from mlflow_stability.curves.curves import Curve
from mlflow_stability.detectors.layer_values import BAND, gradient_flow
from mlflow_stability.diagnosis.causes.context import shown
from mlflow_stability.diagnosis.checklist.question import Answer, AnswerFunction, Case
from mlflow_stability.diagnosis.parameters.recorded_settings import settings_of
from mlflow_stability.kinds.catalog import DETECTORS
from mlflow_stability.kinds.nouns import bare_noun_of
from mlflow_stability.vocabulary.measured import of_the_whole
from mlflow_stability.vocabulary.result import Episode, Severity
from mlflow_stability.vocabulary.text import capitalised, counted

MOST_POINTS = 50
"""So many points before the trouble tell what is usual."""
EVERY_RUN_HAS = frozenset({"loss", "learning_rate"})
"""Quantities that say nothing about whether a detector could have looked."""
HEALTHY_FLOW = 0.9
"""Share of layers in the band below which gradients do not flow."""


def found(*kinds: str) -> AnswerFunction:
    """Whether the run has a finding of these types; those before the trouble come first."""
    needed = {name for each in DETECTORS if each.kind in kinds for name in each.quantities} - EVERY_RUN_HAS

    def answer(case: Case) -> Answer:
        mine = sorted(of_kinds(case, *kinds), key=lambda each: (each.start > case.around.episode.end, -each.severity))
        if mine:
            others = f" {counted(len(mine) - 1, 'more finding')} of this sort." if len(mine) > 1 else ""
            said = capitalised(mine[0].message)
            return Answer(f"{said}{others}", "bad" if mine[0].severity >= Severity.WARNING else "unknown")
        measured = any(metric.meaning.quantity in needed for metric in case.around.history.metrics)
        if needed and not measured:
            return Answer(f"No data: {_listed(needed)} not logged.", "unknown")
        return Answer(f"No {' or '.join(dict.fromkeys(map(bare_noun_of, kinds)))} found.", "ok")

    return answer


def change(quantity: str, noun: str, *, rise: float = inf, fall: float = 0.0) -> AnswerFunction:
    """How a metric changed when the trouble began; bad where it rose or fell by these factors."""

    def answer(case: Case) -> Answer:
        courses = [each for curve in case.around.of(quantity) if (each := _course(case, curve)) is not None]
        if not courses:
            return Answer(f"No data: {noun} not logged.", "unknown")
        worst = max(courses, key=lambda each: each.severity(rise, fall))
        bad = [each for each in courses if each.is_bad(rise, fall)]
        others = f" {len(bad) - 1} more changed as much." if len(bad) > 1 else ""
        return Answer(f"{worst.said(noun)}{others}", "bad" if bad else "ok")

    return answer


@dataclass(frozen=True, slots=True)
class _Course:
    """One metric before the trouble and at it."""

    place: str
    before: float
    at: float
    step: int

    def is_bad(self, rise: float, fall: float) -> bool:
        return not isfinite(self.at) or self.at > self.before * rise or self.at < self.before * fall

    def severity(self, rise: float, fall: float) -> float:
        """How far it went in the direction that is asked for."""
        if not isfinite(self.at):
            return inf
        small = 1e-30
        ratio = (abs(self.at) + small) / (abs(self.before) + small)
        return ratio if rise < inf else 1 / ratio if fall > 0 else 0.0 if of_the_whole(self.place) else -1.0

    def said(self, noun: str) -> str:
        of = "" if of_the_whole(self.place) else f" of {self.place}"
        return f"{capitalised(noun)}{of}: {shown(self.before)} before, {shown(self.at)} at step {self.step}."


def _course(case: Case, curve: Curve) -> _Course | None:
    episode = case.around.episode
    if not len(curve.values):
        return None
    if not episode.kind:  # of a run without trouble: from its first tenth to its end
        early = curve.values[: max(1, len(curve.values) // 10)]
        early = early[np.isfinite(early)]
        first = float(np.median(early)) if len(early) else float(curve.values[0])
        return _Course(curve.place, first, float(curve.values[-1]), int(curve.steps[-1]))
    begins = int(np.searchsorted(curve.steps, episode.start, side="left"))
    ends = int(np.searchsorted(curve.steps, max(episode.peak, episode.start), side="right"))
    usual = curve.values[max(0, begins - MOST_POINTS) : begins]
    usual = usual[np.isfinite(usual)]
    there = curve.values[begins : max(ends, begins + 1)]
    at = begins if len(there) else len(curve.values) - 1
    if len(there) and len(usual):
        with np.errstate(all="ignore"):
            away = np.abs(np.nan_to_num(there, nan=inf, posinf=inf, neginf=inf) - np.median(usual))
        at = begins + int(np.argmax(away))
    before = float(np.median(usual)) if len(usual) else float(curve.values[0])
    return _Course(curve.place, before, float(curve.values[at]), int(curve.steps[at]))


def setting(names: str, noun: str) -> AnswerFunction:
    """What was set, without a judgement of it; ``names``: a pattern for the last part of the parameter's key."""
    pattern = re.compile(names, re.IGNORECASE)

    def answer(case: Case) -> Answer:
        params = case.around.history.params
        said = [(key, value) for key, value in params.items() if pattern.fullmatch(re.split(r"[./]", key)[-1])]
        if not said:
            return Answer(f"No data: {noun} not recorded.", "unknown")
        told = ", ".join(f"{re.split(r'[./]', key)[-1]} = {value}" for key, value in said[:4])
        return Answer(f"{told}.", "unknown")

    return answer


def reported(noun: str, *kinds: str) -> AnswerFunction:
    """What the recording reported of itself beside findings."""

    def answer(case: Case) -> Answer:
        if case.around.history.events is None:
            return Answer(f"No data: a log does not record {noun}.", "unknown")
        said = case.around.said(*kinds)
        near = min(said, key=lambda each: abs(each.step - case.around.episode.start), default=None)
        if near is None:
            return Answer(f"No {noun} recorded.", "ok")
        others = f" {len(said) - 1} more." if len(said) > 1 else ""
        return Answer(f"{capitalised(near.message)}{others}", "bad")

    return answer


def by_hand(_case: Case) -> Answer:
    """What only a look by hand shows."""
    return Answer("No data: a run does not show this.", "unknown")


def flow(case: Case) -> Answer:
    """The gradient flow at the trouble: the share of layers with a healthy gradient norm."""
    courses = [_course(case, each) for each in case.around.of("grad_norm") if not of_the_whole(each.place)]
    norms = {each.place: each.at for each in courses if each is not None}
    if len(norms) < 2:
        return Answer("No data: gradient norms of layers not logged.", "unknown")
    score = gradient_flow(norms.values())
    least = min(norms, key=norms.__getitem__)
    said = (
        f"Gradient flow {score:.0%}: {round(score * len(norms))} of {len(norms)} layers within a factor of {BAND:g} of "
        f"the median norm; smallest: {least} {shown(norms[least])}."
    )
    return Answer(said, "ok" if score >= HEALTHY_FLOW else "bad")


def clipping(case: Case) -> Answer:
    """Whether gradients are clipped, and at which norm."""
    limit = settings_of(case.around.history).max_norm
    if limit is not None:
        share = case.around.of("clip_fraction")
        clipped = f" {share[0].values[share[0].finite].mean():.0%} of the steps were clipped." if share else ""
        return Answer(f"Yes, at a norm of {shown(limit)}.{clipped}", "ok")
    if "no clipping" in case.around.history.tags.get("stability.grad_norm", ""):
        return Answer("Gradients were not clipped.", "bad")
    return Answer("No data: clipping not recorded.", "unknown")


def warm_up(case: Case) -> Answer:
    """How the learning rate began."""
    rates = [each for each in case.around.rates if each.finite.any()]
    if not rates:
        return Answer("No data: the learning rate was not logged.", "unknown")
    began = case.around.episode.start if case.around.episode.kind else int(rates[0].steps[-1]) + 1
    known = rates[0].finite & ((rates[0].steps < began) | (rates[0].steps == rates[0].steps[0]))
    values, steps = rates[0].values[known], rates[0].steps[known]
    if not len(values):
        return Answer("No data: the learning rate was not logged before it.", "unknown")
    highest = int(np.argmax(values >= 0.99 * values.max()))
    if highest:
        said = f"It rose from {shown(float(values[0]))} to {shown(float(values.max()))} by step {int(steps[highest])}."
        return Answer(said, "ok")
    said = f"No warm-up: the rate was at its highest, {shown(float(values.max()))}, from step {int(steps[0])} on."
    return Answer(said, "bad" if case.around.is_early and case.around.episode.kind else "ok")


def rate_left(case: Case) -> Answer:
    """How much of its highest value the learning rate had when it began."""
    rates = [each.values[each.finite] for each in case.around.rates if each.finite.any()]
    if not rates:
        return Answer("No data: the learning rate was not logged.", "unknown")
    highest = float(max(each.max() for each in rates))
    ours = [case.around.before(each) for each in case.around.rates]
    now = max((float(each[-1]) for each in ours if len(each)), default=float(rates[0][0]))
    share = now / highest if highest > 0 else 0.0
    said = f"It was {shown(now)}, {share:.2%} of its highest value {shown(highest)}."
    return Answer(said, "bad" if share < 0.01 else "ok")


def gap(case: Case) -> Answer:
    """How far the validation loss is above the training loss at the end."""
    read = {"val_loss": case.around.of("val_loss"), "loss": case.around.of("loss")}
    ends = {name: [each.values[each.finite] for each in curves if each.finite.any()] for name, curves in read.items()}
    if not ends["val_loss"] or not ends["loss"]:
        return Answer("No data: training and validation loss were not both logged.", "unknown")
    val, train = float(ends["val_loss"][0][-1]), float(np.median(ends["loss"][0][-MOST_POINTS:]))
    first = float(ends["val_loss"][0][0]) - float(np.median(ends["loss"][0][:MOST_POINTS]))
    said = f"Validation {shown(val)}, training {shown(train)} at the end: a gap of {shown(val - train)}"
    wide = val - train > max(0.0, first) and val > 2 * train > 0
    return Answer(f"{said}; at the start {shown(first)}.", "bad" if wide else "ok")


def spikes(case: Case) -> Answer:
    """How often the loss spiked, and whether at even distances."""
    steps = [each.start for each in of_kinds(case, "loss_spike")]
    if len(steps) < 2:
        return Answer("It happened once." if steps else "No loss spike.", "unknown" if steps else "ok")
    apart = np.diff(steps)
    even = len(apart) > 1 and float(apart.max() - apart.min()) <= 0.1 * float(apart.mean())
    pace = f", every {float(apart.mean()):.0f} steps" if even else ""
    return Answer(f"{len(steps)} loss spikes{pace}, first at step {steps[0]}.", "bad")


def of_kinds(case: Case, *kinds: str) -> list[Episode]:
    """The findings of these types, in order of time."""
    return [each for each in case.diagnosis.episodes if each.kind in kinds]


def _listed(names: object) -> str:
    words = sorted(str(each).replace("_", " ") for each in names)  # type: ignore[attr-defined]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
