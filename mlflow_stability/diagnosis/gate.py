"""Holds runs against a baseline: is one of them worse, beyond what chance explains?

In: the cards of all runs, and which one is the baseline. Out: a verdict on each other run, with the reasons as
sentences. Promised: speed is never a reason to fail, for machines differ; what cannot be held against the baseline is
said instead of passed in silence.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from mlflow_stability.diagnosis.nouns import listed
from mlflow_stability.diagnosis.seed_groups import same_but_the_seed
from mlflow_stability.diagnosis.spike_rate import chance_of_more, spike_rate_of
from mlflow_stability.vocabulary.comparison import Gate, GateVerdict
from mlflow_stability.vocabulary.event import Severity
from mlflow_stability.vocabulary.run_card import Course, RunCard

UNLIKELY = 0.01
"""A rate of spikes is higher beyond noise if chance makes it so less often than this."""
DEVIATIONS = 4.0
"""A final loss is higher beyond noise by so many standard deviations of the noise of both."""
LEAST = 0.02
"""A final loss less than this share above the baseline's is not worse: two seeds of one training differ by as much."""
LAST = 5
"""Levels at the end of a course that its final level is taken from."""


def gate_of(cards: Sequence[RunCard], baseline: RunCard) -> Gate:
    """All others against the baseline; runs that could not be read fail."""
    others = [card for card in cards if card.source != baseline.source]
    siblings = [card for card in cards if same_but_the_seed(card, baseline)]
    verdicts = tuple(_verdict(card, baseline, siblings) for card in others)
    return Gate(baseline.source, baseline.name, verdicts, tuple(_unclear(others, baseline)))


def _verdict(card: RunCard, baseline: RunCard, siblings: Sequence[RunCard]) -> GateVerdict:
    if card.error:
        return GateVerdict(card.source, card.name, False, (f"It could not be read: {card.error}",))
    reasons = (*_worse_outcome(card, baseline), *_more_spikes(card, baseline), *_higher_loss(card, baseline, siblings))
    if reasons:
        return GateVerdict(card.source, card.name, False, reasons)
    return GateVerdict(card.source, card.name, True, ("Not worse in outcome, findings, loss spikes and final loss.",))


def _worse_outcome(card: RunCard, baseline: RunCard) -> Iterator[str]:
    if card.lost and not baseline.lost:
        yield f"It {_was_lost(card)}, and the baseline was not lost."
    elif card.lost and baseline.lost and (card.divergence or 0) < 0.5 * (baseline.divergence or 0):
        yield f"It was lost at step {card.divergence:,}, the baseline at step {baseline.divergence:,}."
    elif card.unstable is None and baseline.unstable is False:
        yield f"It cannot be told to be healthy, as the baseline is: {card.verdict}"
    else:
        new = [each for each in card.troubles if each.severity > _worst(baseline, each.kind)]
        kinds = [each.kind for each in new if each.kind != "loss_spike" or each.severity is Severity.CRITICAL]
        if kinds:
            first = min(each.start for each in new if each.kind in kinds)
            yield f"It had {listed(kinds)}, first at step {first:,}; the baseline had nothing of the kind as bad."


def _worst(card: RunCard, kind: str) -> Severity:
    return max((each.severity for each in card.marks if each.kind == kind), default=Severity.INFO)


def _was_lost(card: RunCard) -> str:
    at = "" if card.divergence is None else f" at step {card.divergence:,}"
    return f"became non-finite for good{at}" if card.outcome == "broken" else f"diverged{at}"


def _more_spikes(card: RunCard, baseline: RunCard) -> Iterator[str]:
    rate, usual = spike_rate_of(card), spike_rate_of(baseline)
    if rate is None or usual is None:
        return
    p = chance_of_more(rate, usual)
    if p < UNLIKELY:
        yield (
            f"Its loss spiked {rate.count} times in {rate.steps:,} steps, the baseline's {usual.count} times in "
            f"{usual.steps:,}: chance alone does that with a probability of {p:.2g}."
        )


def _higher_loss(card: RunCard, baseline: RunCard, siblings: Sequence[RunCard]) -> Iterator[str]:
    """At the last step that both have, so that a shorter run is not called worse for being shorter."""
    if card.lost or card.course is None or baseline.course is None or card.loss != baseline.loss:
        return
    if card.course.logarithmic != baseline.course.logarithmic or card.last_step is None or baseline.last_step is None:
        return
    step = min(card.last_step, baseline.last_step)
    mine, theirs = _level(card.course, step), _level(baseline.course, step)
    if mine is None or theirs is None:
        return
    spread = _spread(siblings, step)
    noise = math.hypot(_error(card.course), _error(baseline.course))
    noise = math.hypot(noise, spread * math.sqrt(2)) if spread is not None else noise
    logarithmic = card.course.logarithmic
    gap = math.log(mine / theirs) if logarithmic else mine - theirs
    least = LEAST if logarithmic else LEAST * abs(theirs)
    if gap > max(DEVIATIONS * noise, least):
        beside = f"the spread of {len(siblings)} seeds" if spread is not None else "the noise of both curves"
        much = f", {math.expm1(gap):.1%} higher" if logarithmic else ""
        yield (
            f"Its {card.loss} is {mine:.4g} at step {step:,}, the baseline's {theirs:.4g}{much}; {beside} explains up "
            f"to {math.expm1(DEVIATIONS * noise):.1%}."
            if logarithmic
            else f"Its {card.loss} is {mine:.4g} at step {step:,}, the baseline's {theirs:.4g}; {beside} explains a "
            f"difference of up to {DEVIATIONS * noise:.2g}."
        )


def _level(course: Course, step: int) -> float | None:
    """The level of the last blocks that begin no later than this step."""
    until = int(np.searchsorted(course.steps, step, side="right"))
    known = course.levels[max(0, until - LAST) : until]
    return float(np.median(known)) if known else None


def _error(course: Course) -> float:
    return course.noise * math.sqrt(math.pi / 2 / max(1, min(LAST, len(course.levels))))


def _spread(siblings: Sequence[RunCard], step: int) -> float | None:
    """How much the final level varies over seeds of the baseline; None under three."""
    courses = [card.course for card in siblings if card.course is not None and not card.lost]
    levels = [level for course in courses if (level := _level(course, step)) is not None]
    if len(levels) < 3:
        return None
    logarithmic = all(course.logarithmic for course in courses)
    return float(np.std(np.log(levels) if logarithmic else levels, ddof=1))


def _unclear(others: Sequence[RunCard], baseline: RunCard) -> Iterator[str]:
    if baseline.lost:
        yield "The baseline itself was lost: hardly anything is worse than it."
    elif baseline.unstable is None:
        yield f"The baseline cannot be judged: {baseline.verdict}"
    different = [card.name or card.source for card in others if card.readable and card.loss != baseline.loss]
    if different:
        shown = ", ".join(different[:3]) + (", …" if len(different) > 3 else "")
        yield f"The loss of {shown} is not the baseline's metric ({baseline.loss or 'none'}), so it was not compared."
