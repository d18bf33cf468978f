"""Holds runs against a baseline: is one of them worse, beyond what chance explains?

In: the cards of all runs, and which one is the baseline. Out: a verdict on each other run, with the reasons as
sentences. Guarantees: speed is never a reason to fail, for machines differ; many runs do not fail for being many; what
cannot be held against the baseline is said instead of passed in silence.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from scipy import stats

from mlflow_stability.diagnosis.baseline_gate.final_gap import Gap, gap_between, level_of, spread_of
from mlflow_stability.diagnosis.cohort import chance_of_more, same_but_the_seed, spike_rate_of
from mlflow_stability.diagnosis.verdict import listed
from mlflow_stability.vocabulary.result import BaselineGate, GateVerdict, RunCard, Severity

UNLIKELY = 0.01
"""Something is worse beyond noise if chance makes it so for any of the runs less often than this."""
DEVIATIONS = 4.0
"""A final loss is higher beyond noise by so many standard deviations of the noise of both."""
LEAST = 0.02
"""A final loss less than this share above the baseline's is not worse: two seeds of one training differ by as much."""
SHORT = 0.9
"""A run that made less than this share of the baseline's steps has not shown the rest."""
FEWEST_SEEDS = 3
"""Repetitions of the baseline, itself included, whose spread tells what a seed does."""


def gate_of(cards: Sequence[RunCard], baseline: RunCard) -> BaselineGate:
    """All others against the baseline; runs that could not be read fail."""
    others = [card for card in cards if card.source != baseline.source]
    siblings = [card for card in cards if same_but_the_seed(card, baseline)]
    unlikely = UNLIKELY / max(1, sum(card.readable for card in others))
    verdicts = tuple(
        _verdict(card, baseline, [each for each in siblings if each.source != card.source], unlikely) for card in others
    )
    return BaselineGate(baseline.source, baseline.name, verdicts, tuple(_unclear(others, baseline)))


def _verdict(card: RunCard, baseline: RunCard, siblings: Sequence[RunCard], unlikely: float) -> GateVerdict:
    if card.error:
        return GateVerdict(card.source, card.name, False, (f"Not readable: {card.error}",))
    reasons = (
        *_worse_outcome(card, baseline),
        *_more_spikes(card, baseline, unlikely),
        *_higher_loss(card, baseline, siblings, unlikely),
    )
    if reasons:
        return GateVerdict(card.source, card.name, False, reasons)
    looked_at = ["how it ended", "findings"]
    if spike_rate_of(card) is not None and spike_rate_of(baseline) is not None:
        looked_at.append("loss spikes")
    if _gap(card, baseline) is not None:
        looked_at.append("final loss")
    return GateVerdict(
        card.source, card.name, True, (f"Not worse in {', '.join(looked_at[:-1])} and {looked_at[-1]}.",)
    )


def _worse_outcome(card: RunCard, baseline: RunCard) -> Iterator[str]:
    if card.lost and not baseline.lost:
        yield f"The run {_was_lost(card)}; the baseline did not."
    elif _lost_much_sooner(card, baseline):
        yield f"The run diverged at step {card.divergence:,}, the baseline at step {baseline.divergence:,}."
    elif card.unstable is None and baseline.unstable is False:
        yield f"The baseline is healthy; this run could not be judged: {card.verdict}"
    else:
        new = [each for each in card.troubles if each.severity > _worst(baseline, each.kind)]
        kinds = [each.kind for each in new if each.kind != "loss_spike" or each.severity is Severity.CRITICAL]
        if kinds:
            first = min(each.start for each in new if each.kind in kinds)
            yield f"The run had {listed(kinds)}, first at step {first:,}; the baseline had no finding this severe."


def _worst(card: RunCard, kind: str) -> Severity:
    return max((each.severity for each in card.marks if each.kind == kind), default=Severity.INFO)


def _lost_much_sooner(card: RunCard, baseline: RunCard) -> bool:
    if not (card.lost and baseline.lost) or card.divergence is None or baseline.divergence is None:
        return False
    return card.divergence < 0.5 * baseline.divergence


def _was_lost(card: RunCard) -> str:
    at = "" if card.divergence is None else f" at step {card.divergence:,}"
    return f"became permanently non-finite{at}" if card.outcome == "broken" else f"diverged{at}"


def _more_spikes(card: RunCard, baseline: RunCard, unlikely: float) -> Iterator[str]:
    rate, usual = spike_rate_of(card), spike_rate_of(baseline)
    if rate is None or usual is None:
        return
    p = chance_of_more(rate, usual)
    if p < unlikely:
        yield (
            f"Loss spikes: {rate.count} in {rate.steps:,} steps; baseline {usual.count} in {usual.steps:,} (p = "
            f"{p:.2g})."
        )


def _higher_loss(card: RunCard, baseline: RunCard, siblings: Sequence[RunCard], unlikely: float) -> Iterator[str]:
    """At the last step that both have, so that a shorter run is not called worse for being shorter."""
    gap = None if card.lost else _gap(card, baseline)
    if gap is None:
        return
    explained, by = _explained(gap, siblings, unlikely)
    if gap.wide <= max(explained, LEAST if gap.logarithmic else LEAST * abs(gap.theirs)):
        return
    said = f"{card.loss} {gap.mine:.4g} at step {gap.step:,}, baseline {gap.theirs:.4g}"
    if gap.logarithmic:
        yield f"{said}: {math.expm1(gap.wide):.1%} higher; {by} explains up to {math.expm1(explained):.1%}."
    else:
        yield f"{said}; {by} explains a difference of up to {explained:.2g}."


def _explained(gap: Gap, siblings: Sequence[RunCard], unlikely: float) -> tuple[float, str]:
    """How wide a gap chance explains, and by what: of a few seeds the spread itself is not well known."""
    courses = [each.course for each in siblings if each.course is not None and not each.lost]
    found = [level_of(course, gap.since, gap.step) for course in courses if course.logarithmic == gap.logarithmic]
    levels = [each for each in found if each is not None]
    if len(levels) < FEWEST_SEEDS:
        return DEVIATIONS * gap.noise, "the noise of both curves"
    far = float(stats.t.ppf(1 - unlikely, len(levels) - 1)) * math.sqrt(2)
    spread = spread_of(levels, logarithmic=gap.logarithmic)
    return max(far * spread, DEVIATIONS * gap.noise), f"the spread of {len(levels)} seeds"


def _gap(card: RunCard, baseline: RunCard) -> Gap | None:
    return gap_between(card, baseline) if card.loss == baseline.loss else None


def _unclear(others: Sequence[RunCard], baseline: RunCard) -> Iterator[str]:
    if baseline.lost:
        yield "The baseline itself diverged or broke: choose a stable baseline."
    elif baseline.unstable is None:
        yield f"The baseline could not be judged: {baseline.verdict}"
    readable = [card for card in others if card.readable]
    different = [card for card in readable if card.loss != baseline.loss]
    if different:
        metric = baseline.loss or "none"
        yield f"Not compared: the final loss of {_names(different)}; its metric differs from the baseline's ({metric})."
    few = [c for c in readable if not c.lost and c.loss == baseline.loss != "" and _gap(c, baseline) is None]
    if few:
        yield f"Not compared: the final loss of {_names(few)}; one of the curves has too few points."
    short = [c for c in readable if not c.lost and c.steps < SHORT * baseline.steps]
    if short:
        yield (
            f"Not compared: later steps of {_names(short)}, which made "
            f"{'fewer than' if len(short) > 1 else f'{short[0].steps:,} of'} the baseline's {baseline.steps:,} steps."
        )


def _names(cards: Sequence[RunCard]) -> str:
    return ", ".join(card.name or card.source for card in cards[:3]) + (", …" if len(cards) > 3 else "")
