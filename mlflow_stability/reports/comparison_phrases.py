"""Phrases of the reports of a comparison, the same in every format."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from mlflow_stability.diagnosis.causes.catalog import cause_phrase
from mlflow_stability.diagnosis.parameters import number_of
from mlflow_stability.vocabulary.measured.layer_comparison import LayerComparison
from mlflow_stability.vocabulary.result import (
    Association,
    Cohort,
    Compared,
    Comparison,
    Difference,
    Interval,
    Rate,
    RunCard,
    SeedGroup,
    Sensitivity,
    SurvivalCurve,
)
from mlflow_stability.vocabulary.text.phrases import counted, number_text

CONFOUNDING = "Correlation only: vary it alone to confirm."
MAX_VALUES = 6  # values of a parameter that are listed one by one
NOTHING = "-"
NOT_SET = "not set"
RUNS_TITLE = "Runs, most stable first"
RUNS_HEAD = (
    "run",
    "outcome",
    "first issue",
    "spikes per 10k steps",
    "recovered",
    "final",
    "best",
    "lost steps",
    "verdict",
)
"""Columns of the first table; a page has the findings in place of the verdict."""
NUMBERS_TITLE = "Spikes, losses and speed"


def outcome(card: RunCard) -> str:
    return card.outcome.replace("_", " ")


def name(card: RunCard) -> str:
    return card.name or card.source


def two_names(comparison: Comparison) -> tuple[str, str]:
    """The names of two runs; their sources where the names are equal."""
    first, second = comparison.cards
    return (name(first), name(second)) if name(first) != name(second) else (first.source, second.source)


def number(value: float | None) -> str:
    return NOTHING if value is None else number_text(value)


def steps(value: int | None) -> str:
    return NOTHING if value is None else f"{value:,}"


def rate(value: Rate | None, to: str = " to ") -> str:
    """``17 (0.4 to 93)``: per 10,000 steps with the 95 % interval."""
    return NOTHING if value is None else f"{_short(value.per_10k)} ({_short(value.low)}{to}{_short(value.high)})"


def lost_steps(card: RunCard) -> str:
    """``120 rolled back, 3 skipped``; a dash for none."""
    counts = ((card.rolled_back, "rolled back"), (card.skipped, "skipped"))
    return ", ".join(f"{count:,} {word}" for count, word in counts if count) or NOTHING


def recovery(card: RunCard) -> str:
    """``2 of 3, within 14 steps``; a dash for none."""
    times = card.recovery_steps
    return f"{len(times)} of {len(card.troubles)}, within {max(times):,} steps" if times else NOTHING


def trouble(card: RunCard) -> str:
    """The findings by kind: ``loss_spike 3, divergence``."""
    counts = Counter(mark.kind for mark in card.troubles)
    return ", ".join(f"{kind} {count}" if count > 1 else kind for kind, count in counts.items()) or NOTHING


def cause(card: RunCard) -> str:
    return cause_phrase(card.cause)


def share(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.1%}"


def values(difference: Difference) -> str:
    """The values of a few runs one by one, those of many with their counts."""
    if len(difference.values) <= MAX_VALUES:
        return " | ".join(NOTHING if value is None else value for value in difference.values)
    counts = Counter(NOT_SET if value is None else value for value in difference.values)
    if len(counts) <= MAX_VALUES:
        return ", ".join(f"{value} ({count})" for value, count in counts.items())
    unset = f", {NOT_SET} ({counts.pop(NOT_SET)})" if None in difference.values else ""
    numbers = [parsed for value in counts if (parsed := number_of(value)) is not None]
    if len(numbers) == len(counts):
        return f"{len(counts)} values from {number_text(min(numbers))} to {number_text(max(numbers))}{unset}"
    return f"{len(counts)} values{unset}"


def differences(comparison: Comparison) -> list[Difference]:
    """What is associated with instability first, tags last."""
    associations = comparison.cohort.associations if comparison.cohort is not None else ()
    associated = {param for association in associations for param in association.params}
    return sorted(comparison.differences, key=lambda difference: difference.is_tag or difference.name not in associated)


def interval(value: Interval | None) -> str:
    """``1.52 (1.49 to 1.55)``; ``Inf`` where all runs were lost."""
    if value is None:
        return NOTHING
    if value.low is None or value.high is None or value.low == value.high == math.inf:
        return number_text(value.value)
    return f"{number_text(value.value)} ({number_text(value.low)} to {number_text(value.high)})"


def p_value(value: float | None) -> str:
    """``p = 0.012``; empty for None."""
    if value is None:
        return ""
    return "p < 0.0001" if value < 1e-4 else f"p = {value:.2g}"


def repeated(cohort: Cohort) -> list[SeedGroup]:
    return [group for group in cohort.groups if len(group.sources) > 1]


def not_repeated(cohort: Cohort) -> str:
    """The number of runs without a repetition, as a sentence; empty for none."""
    alone = len(cohort.groups) - len(repeated(cohort))
    return f"Left out: {counted(alone, 'run')} without a repetition." if alone else ""


def group_size(group: SeedGroup) -> str:
    """``4, 1 lost``: the number of runs in a group."""
    lost = f", {group.lost} lost" if group.lost else ""
    unstable = group.unstable - group.lost
    return f"{len(group.sources)}{lost}" + (f", {unstable} unstable" if unstable > 0 else "")


def survival(curve: SurvivalCurve) -> str:
    """``3 of 12 lost, half of them by 1,400 steps``; ``1 of 5 lost; 80% survive 150 steps``."""
    phrase = f"{curve.lost} of {curve.runs} lost"
    if curve.shares:
        half = next((step for step, left in zip(curve.steps, curve.shares, strict=True) if left <= 0.5), None)
        phrase += (
            f", half of them by {counted(half, 'step')}"
            if half is not None
            else f"; {curve.shares[-1]:.0%} survive {counted(curve.last_step, 'step')}"
        )
    return f"{phrase}; {p_value(curve.p_value)} (log-rank against the others)" if curve.p_value is not None else phrase


def sensitivity(result: Sensitivity) -> list[str]:
    low, high, best = (number_text(rate) for rate in (result.rates[0], result.rates[-1], result.best_rate))
    runs = counted(sum(result.runs), "run")
    if result.highest_stable is None:
        stable = "A run was unstable even at the lowest rate."
    elif result.highest_stable < result.rates[-1]:
        stable = f"All runs up to {number_text(result.highest_stable)} were stable."
    else:
        stable = "No run was unstable at any rate."
    return [
        f"Best at {best} of {len(result.rates)} rates from {low} to {high} ({result.param}, {runs}).",
        f"Sensitivity: the mean final loss over these rates is {number_text(result.sensitivity)} above the best one.",
        stable,
    ]


def association(result: Association) -> str:
    parts = [p_value(result.p_value)]
    if result.correlation is not None:
        parts.append(f"rank correlation {result.correlation:+.2f}")
    if result.given:
        parts.append(f"among runs with the same {', '.join(result.given)}")
    return f"{result.statement} ({'; '.join(parts)})"


def no_association(cohort: Cohort) -> str:
    """A sentence that no parameter is associated with instability; empty where one is, or where that is undecided."""
    if cohort.associations or cohort.undecided or not cohort.tested:
        return ""
    end = ", …" if len(cohort.tested) > 8 else "."
    tested = ", ".join(cohort.tested[:8])
    return f"None of {len(cohort.tested)} parameters is associated with instability: {tested}{end}"


def unfinished(comparison: Comparison) -> str:
    """A sentence that the comparison was interrupted; empty if it was not."""
    if not comparison.interrupted:
        return ""
    return f"Interrupted: {len(comparison.runs) + len(comparison.unread)} of {comparison.asked} runs were read."


def chosen(
    runs: Sequence[Compared], stablest: int, unstable: int
) -> tuple[Sequence[Compared], Sequence[Compared], int]:
    """The most stable runs, the least stable ones, and the number of those between."""
    if len(runs) <= stablest + unstable + 1:
        return runs, (), 0
    return runs[:stablest], runs[len(runs) - unstable :], len(runs) - stablest - unstable


def left_out(runs: int) -> str:
    """``85 more runs; --output-format csv lists all.``"""
    return f"{counted(runs, 'more run')}; --output-format csv lists all."


@dataclass(frozen=True, slots=True)
class Column:
    """One number of each run, in the second table."""

    title: str
    text: Callable[[RunCard], str]
    meaning: str  # what the title leaves open


def _length(card: RunCard) -> str:
    ended = {"running": " so far", "stopped": " stopped"}.get(card.ended, "")
    return f"{card.steps:,}{ended}" if card.steps else NOTHING


def _recovered(card: RunCard) -> str:
    times = card.recovery_steps
    return f"{len(times)}/{len(card.troubles)} in {max(times):,}" if times else NOTHING


_LENGTH = Column("steps", _length, "length of the run")
_NUMBERS = (
    Column("1st spike", lambda card: steps(min(card.spike_steps, default=None)), "the step of the first loss spike"),
    Column(
        "spike score",
        lambda card: share(card.spike_score),
        "the share of losses 7 sigma or more from the mean of the last 1,000",
    ),
    Column("lost at", lambda card: steps(card.divergence), "the step from which the loss never recovered"),
    Column("recovered", _recovered, "of how many episodes, within how many steps at most"),
    Column("rolled back", lambda card: steps(card.rolled_back or None), "steps rolled back"),
    Column("skipped", lambda card: steps(card.skipped or None), "steps without an update"),
    Column(
        "speed",
        lambda card: NOTHING if card.steps_per_second is None else f"{number_text(card.steps_per_second)}/s",
        "steps per second",
    ),
    Column("overhead", lambda card: share(card.overhead), "share of the time that recording took"),
)


def number_columns(cards: Sequence[RunCard]) -> list[Column]:
    """The columns that have a number for any of these runs; their lengths only where these differ."""
    lengths = [_LENGTH] if len(set(map(_length, cards))) > 1 else []
    return [*lengths, *(column for column in _NUMBERS if any(column.text(card) != NOTHING for card in cards))]


def meanings(columns: Sequence[Column]) -> str:
    """``lost at: the step from which the loss never recovered; ...``."""
    return "; ".join(f"{column.title}: {column.meaning}" for column in columns) + "."


def layer_difference(beside: LayerComparison, names: tuple[str, str]) -> str:
    """Where the layers of two runs are farthest apart, and where one was not finite."""
    return " ".join([_farthest(beside, names), *_broken(beside, names)])


def _farthest(beside: LayerComparison, names: tuple[str, str]) -> str:
    farthest = beside.farthest
    if farthest is None:
        if beside.absent[0] | beside.absent[1] == set(beside.layers):
            return f"The runs have no {beside.row} in common."
        return f"No {beside.row} has values of both runs at the same step."
    if farthest.first == farthest.second:
        return f"Identical in every {beside.row} where both were measured."
    low, high = sorted((farthest.first, farthest.second))
    times = f" ({number_text(high / low)} times)" if low > 0 and not beside.smallest else ""
    where = f"{beside.row} {farthest.layer} {_at(beside, farthest.offset, beside.spans)}"
    first, second = f"{number_text(farthest.first)} in {names[0]}", f"{number_text(farthest.second)} in {names[1]}"
    return f"Largest difference in {where}: {first}, {second}{times}."


def _broken(beside: LayerComparison, names: tuple[str, str]) -> Iterator[str]:
    for broken, run, span in zip(beside.broken, names, beside.spans, strict=True):
        if broken is not None:
            where = f"{broken.layers} {beside.row}s of {run}, first in" if broken.layers > 1 else f"{run}, in"
            yield f"Not finite in {where} {broken.layer} {_at(beside, broken.offset, [span])}."


def _at(beside: LayerComparison, offset: int, spans: Sequence[tuple[int, int]]) -> str:
    """``at step 120``, ``40 to 49 steps after the onset``: the part of a column within these spans."""
    first, last = beside.steps_within(offset, spans)
    if not beside.aligned:
        return f"at step {first:,}" if last == first else f"within steps {first:,} to {last:,}"
    if first <= 0 <= last:
        return "at the onset" if last == 0 else f"in the first {last + 1:,} steps from the onset"
    near, far = sorted((abs(first), abs(last)))
    distance = counted(near, "step") if near == far else f"{near:,} to {far:,} steps"
    return f"{distance} {'after' if first > 0 else 'before'} the onset"


def _short(value: float) -> str:
    return "0" if value == 0 else f"{value:.1f}" if value < 10 else f"{value:.0f}"
