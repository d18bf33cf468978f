"""Compare several runs: their order of stability, where they differ, what they have in common."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy import stats

from mlflow_stability.diagnosis.cohort.cohort import cohort_of
from mlflow_stability.diagnosis.cohort.seed_groups import same_but_the_seed
from mlflow_stability.diagnosis.parameters import differences_of
from mlflow_stability.diagnosis.verdict import listed
from mlflow_stability.kinds.catalog import OF_SETUP, TYPES, noun_of
from mlflow_stability.vocabulary.measured.layer_comparison import LayerComparison
from mlflow_stability.vocabulary.result import (
    BaselineGate,
    Compared,
    Comparison,
    FirstDifference,
    GateVerdict,
    LossLevels,
    Rate,
    RunCard,
    Severity,
)
from mlflow_stability.vocabulary.text.phrases import capitalised, counted, some_of

MIN_RUNS = 2  # minimum number of runs with trouble, and of stable runs, for naming mistakes in the set-up
MIN_SHARE = 0.5  # share of the runs with trouble that a named mistake was found in
MAX_MISTAKES = 3  # maximum number of mistakes in the set-up that a comparison names


def comparison_of(
    cards: Sequence[RunCard],
    *,
    baseline: RunCard | None = None,
    first_difference: FirstDifference | None = None,
    layers: Sequence[LayerComparison] = (),
    asked: int | None = None,
    interrupted: bool = False,
    notes: Sequence[str] = (),
) -> Comparison:
    """Compare these runs; ``asked`` is the number there would have been without an interruption."""
    readable = in_order_of_stability(card for card in cards if card.readable)
    unread = tuple(card for card in cards if not card.readable)
    return Comparison(
        runs=tuple(Compared(card, spike_rate_of(card)) for card in readable),
        unread=unread,
        summary=_summary(readable, len(unread), interrupted),
        differences=differences_of(readable) if len(readable) > 1 else (),
        first_difference=first_difference,
        layers=tuple(layers),
        gate=None if baseline is None else gate_of(cards, baseline),
        cohort=cohort_of(readable),
        notes=(*separating_checks(readable), *notes),
        asked=len(cards) if asked is None else asked,
        interrupted=interrupted,
    )


def _summary(cards: Sequence[RunCard], unread: int, interrupted: bool) -> str:
    if not cards and interrupted:
        return "Interrupted before a run was read."
    if not cards:
        return "No run could be read." if unread else "No run to compare."
    counts = Counter(card.state for card in cards)
    stuck_and_unstable = sum(card.state == "stuck" and card.unstable is True for card in cards)
    also = f" ({stuck_and_unstable} of them unstable as well)" if stuck_and_unstable else ""
    words = {
        "lost": "lost",
        "unstable": "unstable",
        "stuck": f"stuck{also if stuck_and_unstable < counts['stuck'] else ' and unstable'}",
        "stable": "stable",
        "unclear": "not judged",
    }
    states = ", ".join(f"{counts[state]} {word}" for state, word in words.items() if counts[state])
    more = f"; {unread} could not be read" if unread else ""
    return f"{len(cards)} run{'s' if len(cards) != 1 else ''}: {states}{more}."


def in_order_of_stability(cards: Iterable[RunCard]) -> list[RunCard]:
    """Sort runs, the most stable first; equals keep their order.

    Runs that never learned come after all that did, and runs that cannot be judged after those; only lost ones are
    later.
    """
    return sorted(cards, key=_instability)


def _instability(card: RunCard) -> tuple[float, ...]:
    steps = max(1, card.steps)
    return (
        card.lost,
        -float(card.divergence or 0) if card.lost else 0.0,
        card.unstable is None,
        card.state == "stuck",
        max((mark.severity for mark in card.troubles), default=Severity.INFO),
        len(card.spike_steps) / steps,
        len(card.troubles) / steps,
        card.wasted / steps,
        math.inf if card.final_loss is None or not math.isfinite(card.final_loss) else card.final_loss,
    )


def separating_checks(cards: Sequence[RunCard]) -> tuple[str, ...]:
    """Name mistakes in the set-up that runs with trouble have and stable ones do not, the most frequent first."""
    stable = [card for card in cards if card.state == "stable"]
    troubled = [card for card in cards if card.state in ("lost", "stuck", "unstable")]
    if min(len(stable), len(troubled)) < MIN_RUNS:
        return ()
    counts = Counter(kind for card in troubled for kind in _mistakes(card))
    separating = counts.keys() - {kind for card in stable for kind in _mistakes(card)}
    kinds = [kind for kind in dict.fromkeys(finding_type.kind for finding_type in TYPES) if kind in separating]
    frequent = [kind for kind in kinds if counts[kind] >= max(MIN_RUNS, MIN_SHARE * len(troubled))]
    return tuple(
        f"{capitalised(noun_of(kind))} ({kind}): in {counts[kind]} of "
        f"{counted(len(troubled), 'run')} with trouble, in none of {len(stable)} stable ones."
        for kind in sorted(frequent, key=lambda kind: -counts[kind])[:MAX_MISTAKES]
    )


def _mistakes(card: RunCard) -> set[str]:
    return {mark.kind for mark in card.troubles if mark.kind in OF_SETUP}


MAX_P = 0.01  # a difference is beyond noise if chance makes it in any of the runs less often than this
LOSS_DEVIATIONS = 4.0  # a final loss is higher beyond noise by this number of standard deviations of the noise of both
MIN_LOSS_SHARE = 0.02  # a final loss is worse from this share above the baseline's on: seeds differ by as much
MIN_LENGTH = 0.9  # of a run with less than this share of the baseline's steps, later steps are reported as not compared
MIN_SEEDS = 3  # with this number of repetitions of the baseline, itself included, their spread is the noise
LAST_LEVELS = 5  # levels at the end of the coarser course that its final level is taken from
READ_PLACES = 100  # a stretch of a course is read at this number of places
EARLIER_STRETCHES = 8  # stretches before the last one that show how far the difference of two courses drifts
RATE_STEPS = 10_000  # spikes are counted per this number of steps
RATE_CONFIDENCE = 0.95  # confidence of the interval of a rate of spikes


def gate_of(cards: Sequence[RunCard], baseline: RunCard) -> BaselineGate:
    """Check whether any other run is significantly worse than the baseline.

    Runs that could not be read fail. Speed is never a reason to fail, because machines differ. Thresholds are corrected
    for the number of runs. What cannot be compared is reported.
    """
    others = [card for card in cards if card.source != baseline.source]
    siblings = [card for card in cards if same_but_the_seed(card, baseline)]
    max_p = MAX_P / max(1, sum(card.readable for card in others))
    verdicts = tuple(
        _verdict(card, baseline, [sibling for sibling in siblings if sibling.source != card.source], max_p)
        for card in others
    )
    return BaselineGate(baseline.source, baseline.name, verdicts, tuple(_not_compared(others, baseline)))


def _verdict(card: RunCard, baseline: RunCard, siblings: Sequence[RunCard], max_p: float) -> GateVerdict:
    if card.error:
        return GateVerdict(card.source, card.name, False, (f"Not readable: {card.error}",))
    reasons = (
        *_worse_outcome(card, baseline),
        *_more_spikes(card, baseline, max_p),
        *_higher_loss(card, baseline, siblings, max_p),
    )
    if reasons:
        return GateVerdict(card.source, card.name, False, reasons)
    compared = ["how it ended", "findings"]
    if spike_rate_of(card) is not None and spike_rate_of(baseline) is not None:
        compared.append("loss spikes")
    if _gap(card, baseline) is not None:
        compared.append("final loss")
    reason = f"Not worse in {', '.join(compared[:-1])} and {compared[-1]}."
    return GateVerdict(card.source, card.name, True, (reason,))


def _worse_outcome(card: RunCard, baseline: RunCard) -> Iterator[str]:
    if card.lost and not baseline.lost:
        at = "" if card.divergence is None else f" at step {card.divergence:,}"
        lost = f"became permanently non-finite{at}" if card.outcome == "broken" else f"diverged{at}"
        yield f"The run {lost}; the baseline did not."
    elif _lost_much_sooner(card, baseline):
        yield f"The run diverged at step {card.divergence:,}, the baseline at step {baseline.divergence:,}."
    elif card.unstable is None and baseline.unstable is False:
        yield f"The baseline is healthy; this run could not be judged: {card.verdict}"
    else:
        worst = {mark.kind: mark.severity for mark in sorted(baseline.marks, key=lambda mark: mark.severity)}
        new = [mark for mark in card.troubles if mark.severity > worst.get(mark.kind, Severity.INFO)]
        kinds = [mark.kind for mark in new if mark.kind != "loss_spike" or mark.severity is Severity.CRITICAL]
        if kinds:
            first = min(mark.start for mark in new if mark.kind in kinds)
            yield f"The run had {listed(kinds)}, first at step {first:,}; the baseline had no finding this severe."


def _lost_much_sooner(card: RunCard, baseline: RunCard) -> bool:
    if not (card.lost and baseline.lost) or card.divergence is None or baseline.divergence is None:
        return False
    return card.divergence < 0.5 * baseline.divergence


def _more_spikes(card: RunCard, baseline: RunCard, max_p: float) -> Iterator[str]:
    rate, usual = spike_rate_of(card), spike_rate_of(baseline)
    if rate is None or usual is None:
        return
    p = p_of_higher_rate(rate, usual)
    if p < max_p:
        yield (
            f"Loss spikes: {rate.count} in {rate.steps:,} steps; baseline {usual.count} in {usual.steps:,} (p = "
            f"{p:.2g})."
        )


def spike_rate_of(card: RunCard) -> Rate | None:
    """Return loss spikes per 10,000 steps with a finite loss; None without a loss."""
    steps = round(card.steps * card.finite_share)
    return rate_of(len(card.spike_steps), steps) if card.loss and steps > 1 else None


def rate_of(count: int, steps: int) -> Rate:
    """Return the rate with the interval of Garwood (1936), which is exact for a Poisson count."""
    tail = (1 - RATE_CONFIDENCE) / 2
    low = float(stats.chi2.ppf(tail, 2 * count)) / 2 if count else 0.0
    high = float(stats.chi2.ppf(1 - tail, 2 * count + 2)) / 2
    return Rate(count, steps, count / steps * RATE_STEPS, low / steps * RATE_STEPS, high / steps * RATE_STEPS)


def p_of_higher_rate(rate: Rate, baseline: Rate) -> float:
    """Return the p-value of the first rate being higher, were both the same."""
    count = rate.count + baseline.count
    if not count:
        return 1.0
    share = rate.steps / (rate.steps + baseline.steps)
    return float(stats.binomtest(rate.count, count, share, alternative="greater").pvalue)


def _higher_loss(card: RunCard, baseline: RunCard, siblings: Sequence[RunCard], max_p: float) -> Iterator[str]:
    """Compare at the last step that both have, so that a shorter run is not called worse for being shorter."""
    gap = None if card.lost else _gap(card, baseline)
    if gap is None:
        return
    explained, source = _explained_difference(gap, siblings, max_p)
    if gap.difference <= max(explained, MIN_LOSS_SHARE if gap.logarithmic else MIN_LOSS_SHARE * abs(gap.baseline)):
        return
    losses = f"{card.loss} {gap.level:.4g} at step {gap.step:,}, baseline {gap.baseline:.4g}"
    if gap.logarithmic:
        yield f"{losses}: {math.expm1(gap.difference):.1%} higher; {source} explains up to {math.expm1(explained):.1%}."
    else:
        yield f"{losses}; {source} explains a difference of up to {explained:.2g}."


def _explained_difference(gap: Gap, siblings: Sequence[RunCard], max_p: float) -> tuple[float, str]:
    courses = [card.course for card in siblings if card.course is not None and not card.lost]
    read = [_level(course, gap.since, gap.step) for course in courses if course.logarithmic == gap.logarithmic]
    levels = [level for level in read if level is not None]
    if len(levels) < MIN_SEEDS:
        return LOSS_DEVIATIONS * gap.noise, "the noise of both curves"
    # The quantile of Student's t, because a few seeds do not show their own spread well.
    deviations = float(stats.t.ppf(1 - max_p, len(levels) - 1)) * math.sqrt(2)
    spread = float(np.std(np.log(levels) if gap.logarithmic else levels, ddof=1))
    return max(deviations * spread, LOSS_DEVIATIONS * gap.noise), f"the spread of {len(levels)} seeds"


def _not_compared(others: Sequence[RunCard], baseline: RunCard) -> Iterator[str]:
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
    short = [card for card in readable if not card.lost and card.steps < MIN_LENGTH * baseline.steps]
    if short:
        yield (
            f"Not compared: later steps of {_names(short)}, which made "
            f"{'fewer than' if len(short) > 1 else f'{short[0].steps:,} of'} the baseline's {baseline.steps:,} steps."
        )


def _names(cards: Sequence[RunCard]) -> str:
    return some_of([card.name or card.source for card in cards])


@dataclass(frozen=True, slots=True)
class Gap:
    """Two courses at their last common steps, read over the same stretch even where one was logged less often."""

    since: int  # the last stretch begins after this step
    step: int  # where it ends
    level: float
    baseline: float
    difference: float  # in nats where `logarithmic`, else in units of the loss
    noise: float  # standard deviation of the difference by chance: the noise of both curves, and how far they drift
    logarithmic: bool


def _gap(card: RunCard, baseline: RunCard) -> Gap | None:
    """Return the gap at the last step that both have; None where they cannot be compared."""
    first, second = card.course, baseline.course
    if card.loss != baseline.loss or first is None or second is None or first.logarithmic != second.logarithmic:
        return None
    if card.last_step is None or baseline.last_step is None:
        return None
    step = min(card.last_step, baseline.last_step)
    width = LAST_LEVELS * max(_block_steps(first), _block_steps(second))
    level, usual = _level(first, step - width, step), _level(second, step - width, step)
    if level is None or usual is None:
        return None
    difference = math.log(level / usual) if first.logarithmic else level - usual
    noise = max(math.hypot(_error(first, width), _error(second, width)), _drift(first, second, step, width))
    return Gap(round(step - width), step, level, usual, difference, noise, first.logarithmic)


def _level(course: LossLevels, since: float, until: float) -> float | None:
    """Return the level of this stretch; None where the course has no block that begins there.

    Every course is read at the same places: blocks of unequal length that begin in the same stretch do not have their
    middles in the same place, and a falling loss would look higher where they lie earlier.
    """
    low, high = np.searchsorted(course.steps, (since, until), side="right")
    if low == high:
        return None
    middles = np.asarray(course.steps) + (_block_steps(course) - 1) / 2
    return float(np.median(np.interp(np.linspace(since, until, READ_PLACES + 1)[1:], middles, course.levels)))


def _block_steps(course: LossLevels) -> float:
    return float(np.median(np.diff(course.steps))) if len(course.steps) > 1 else 1.0


def _error(course: LossLevels, width: float) -> float:
    """Return the standard error of the median of the levels in a stretch."""
    return course.noise * math.sqrt(math.pi / 2 / max(1.0, width / _block_steps(course)))


def _drift(first: LossLevels, second: LossLevels, step: int, width: float) -> float:
    """Return how much the difference of the courses varies from stretch to stretch, around a line."""
    edges = step - width * np.arange(EARLIER_STRETCHES + 1, -1, -1)
    pairs = [(_level(first, low, high), _level(second, low, high)) for low, high in pairwise(edges)]
    differences = [
        (math.log(a / b) if first.logarithmic else a - b) for a, b in pairs if a is not None and b is not None
    ]
    if len(differences) < EARLIER_STRETCHES // 2:
        return 0.0
    places = np.arange(len(differences))
    residuals = np.array(differences) - np.polyval(np.polyfit(places, differences, 1), places)
    return float(np.sqrt((residuals**2).sum() / (len(differences) - 2)))
