"""Says of a loss that rose and fell again that it did, now that the run is over.

In: the episodes of a replay and of whole curves, and the curves. Out: the same episodes: small rises that passed are
only mentioned, many of them in one sentence, and a loss that has been falling since its rise is not lost.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from mlflow_stability.curves.curves import Curve, RunCurves
from mlflow_stability.curves.levels import read_levels
from mlflow_stability.diagnosis.findings.notes import FallingNote, Outcome, OutcomeNote, RipplesNote, with_note
from mlflow_stability.kinds.loss.divergence import SlowRiseFacts
from mlflow_stability.kinds.loss.divergence_rules import ResumeFacts
from mlflow_stability.vocabulary.facts import LossEndFacts, LossRiseFacts
from mlflow_stability.vocabulary.result import Finding, Severity, Statement

SMALL = 0.10
"""A rise by less than this share that passed is no more than a ripple."""
SMALL_BELOW = 0.25
"""And so is one by less than this, if the loss ended below where it had risen from."""
OFTEN = 3
"""So many ripples are one remark."""
ALIKE = 1.5
"""A rise at the end that is at most so many times as large as the ripples before it is one of them."""
MOSTLY_BACK = 0.5
"""A loss that lost this share of its rise again, in nats, is on its way down."""
STEEP = 10
"""Within so many levels of the rise, of about a hundred, the loss was highest: then it jumped, and has fallen since."""


def passed(episodes: Sequence[Finding], curves: RunCurves, asked: Collection[str] = ()) -> tuple[Finding, ...]:
    """The episodes of one run, as what came after them shows them; those of kinds asked for by a rule stay as found."""
    if "divergence" in asked:
        return tuple(episodes)
    every = (*curves.losses, *curves.validations)
    judged = []
    for each in episodes:
        curve = next((one for one in every if (one.name, one.attempt) == (each.metric, each.attempt)), None)
        if each.kind == "divergence" and curve is not None:
            each = _rippled(each, curve) if each.recovered else _falling(each, curve)
        judged.append(each)
    return tuple(_together(judged))


def _rippled(episode: Finding, curve: Curve) -> Finding:
    """A small slow rise that passed."""
    rise, risen = _rise(episode, math.inf), episode.known(LossRiseFacts)
    level = -math.inf if risen is None else risen.baseline
    values = curve.values[curve.finite]
    ended = float(np.median(values[-max(3, len(values) // 20) :]))
    if rise < SMALL or (rise < SMALL_BELOW and ended < level):
        return replace(with_note(episode, OutcomeNote(Outcome.RECOVERED)), severity=Severity.INFO)
    return episode


def _falling(episode: Finding, curve: Curve) -> Finding:
    """A loss that jumped and has been falling ever since, as it does in a new stage of a training."""
    levels = read_levels(curve)
    if levels is None or not levels.logarithmic or len(levels) < 3 * STEEP or episode.known(ResumeFacts):
        return episode
    start = max(1, int(np.searchsorted(levels.steps, episode.start, side="right")) - 1)
    before, since = float(np.median(levels.x[max(0, start - 5) : start])), levels.x[start:]
    top = int(np.argmax(since))
    fell = since[top:]
    if top > STEEP or len(fell) < STEEP:
        return episode
    high, half, last = float(fell[0]), float(np.median(fell[len(fell) // 3 : 2 * len(fell) // 3])), _end(fell)
    back = high - last >= MOSTLY_BACK * (high - before)
    still = last <= half + levels.noise and float(np.median(fell[: len(fell) // 3])) > half + levels.noise
    if not back or not still:
        return episode
    noted = with_note(episode, FallingNote(math.exp(min(high, 700.0))))
    return replace(noted.with_span(recovered=None), severity=min(episode.severity, Severity.WARNING))


def _end(x: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    return float(np.median(x[-max(3, len(x) // 20) :]))


def _rise(episode: Finding, unknown: float = 0.0) -> float:
    """How far a loss rose slowly, as a share of its level."""
    slow = episode.known(SlowRiseFacts)
    return unknown if slow is None else slow.rise


def _one_more(episode: Finding, key: tuple[str, int], ripples: list[Finding]) -> bool:
    """Whether a rise that the end of the run cut off is no larger than those that passed before it."""
    usual = max(map(_rise, ripples))
    alike = episode.kind == "divergence" and (episode.metric, episode.attempt) == key and not episode.recovered
    slow = episode.severity is Severity.WARNING and episode.known(LossEndFacts) is None
    return alike and slow and _rise(episode, math.inf) <= ALIKE * usual


def _together(episodes: list[Finding]) -> list[Finding]:
    """Ripples that come back again and again as one remark, at the first of them."""
    ripples: dict[tuple[str, int], list[Finding]] = {}
    for each in episodes:
        if each.kind == "divergence" and each.recovered and each.severity is Severity.INFO:
            ripples.setdefault((each.metric, each.attempt), []).append(each)
    kept = episodes
    for key, many in ((key, each) for key, each in ripples.items() if len(each) >= OFTEN):
        many = [*many, *(each for each in episodes if _one_more(each, key, many))]
        rises = [_rise(each) for each in many]
        first, last = many[0], max(each.end for each in many)
        ripples_note = RipplesNote(first.metric, len(many), last, min(rises), max(rises))
        count, said = sum(each.count for each in many), (Statement(ripples_note, first.start),)
        one = replace(first.with_span(end=last), count=count, statements=said)
        kept = [one if each is first else each for each in kept if each is first or each not in many]
    return kept
