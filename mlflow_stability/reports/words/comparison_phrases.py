"""The phrases that every report of a comparison words alike."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mlflow_stability.diagnosis.causes import cause_phrase
from mlflow_stability.reports.terminal_kit import number_text
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
    Tree,
)
from mlflow_stability.vocabulary.text import counted

OUTCOMES = {"cannot_tell": "cannot tell", "out_of_memory": "out of memory"}
CONFOUNDING = "Correlation only: vary it alone to confirm."
FEW_VALUES = 6
NOTHING = "-"
NOT_SET = "not set"


def outcome(card: RunCard) -> str:
    """``healthy``, ``out of memory``."""
    return OUTCOMES.get(card.outcome, card.outcome)


def name(card: RunCard) -> str:
    """What to call a run; where two are called alike their ids tell them apart."""
    return card.name or card.source


def two_names(comparison: Comparison) -> tuple[str, str]:
    """What to call each of two runs; their ids where they are called alike."""
    one, other = (card.name or card.source for card in comparison.cards)
    return (one, other) if one != other else (comparison.cards[0].source, comparison.cards[1].source)


def number(value: float | None) -> str:
    """A number, or a dash where there is none."""
    return NOTHING if value is None else number_text(value)


def steps(value: int | None) -> str:
    """A step, or a dash."""
    return NOTHING if value is None else f"{value:,}"


def rate(value: Rate | None) -> str:
    """``17 (0.4 to 93)``: per 10,000 steps with the 95 % interval."""
    if value is None:
        return NOTHING
    return f"{_short(value.per_10k)} ({_short(value.low)} to {_short(value.high)})"


def short_rate(value: Rate | None) -> str:
    """``17 (0.4-93)``: the same where there is little room."""
    return NOTHING if value is None else f"{_short(value.per_10k)} ({_short(value.low)}-{_short(value.high)})"


def lost_steps(card: RunCard) -> str:
    """``120 rolled back, 3 skipped``; a dash for none."""
    parts = [
        f"{count:,} {word}" for count, word in ((card.rolled_back, "rolled back"), (card.skipped, "skipped")) if count
    ]
    return ", ".join(parts) or NOTHING


def recovery(card: RunCard) -> str:
    """``2 times, 14 steps at most``; a dash for none."""
    times = card.recovery_steps
    return f"{len(times)} of {len(card.troubles)}, within {max(times):,} steps" if times else NOTHING


def trouble(card: RunCard) -> str:
    """What it had, by kind: ``loss_spike 3, divergence``."""
    counts: dict[str, int] = {}
    for mark in card.troubles:
        counts[mark.kind] = counts.get(mark.kind, 0) + 1
    return ", ".join(f"{kind} {count}" if count > 1 else kind for kind, count in counts.items()) or NOTHING


def cause(card: RunCard) -> str:
    """``learning rate too high``."""
    return cause_phrase(card.cause)


def speed(card: RunCard) -> str:
    """Steps a second."""
    return NOTHING if card.steps_per_second is None else f"{number_text(card.steps_per_second)}/s"


def share(value: float | None) -> str:
    """``2.1 %``."""
    return NOTHING if value is None else f"{value:.1%}"


def values(difference: Difference) -> str:
    """The values of a few runs one by one, those of many with how often each is there."""
    if len(difference.values) <= FEW_VALUES:
        return " | ".join(NOTHING if each is None else each for each in difference.values)
    told = [NOT_SET if each is None else each for each in difference.values]
    counts: dict[str, int] = {}
    for each in told:
        counts[each] = counts.get(each, 0) + 1
    if len(counts) <= FEW_VALUES:
        return ", ".join(f"{each} ({count})" for each, count in counts.items())
    unset = f", {NOT_SET} ({counts.pop(NOT_SET)})" if None in difference.values else ""
    numbers = [parsed for each in counts if (parsed := _number(each)) is not None]
    if len(numbers) == len(counts):
        return f"{len(counts)} values from {number_text(min(numbers))} to {number_text(max(numbers))}{unset}"
    return f"{len(counts)} values{unset}"


def differences(comparison: Comparison) -> list[Difference]:
    """What is associated with instability first, then the others as they are."""
    associations = comparison.cohort.associations if comparison.cohort is not None else ()
    named = {param for each in associations for param in each.params}
    return sorted(comparison.differences, key=lambda each: each.is_tag or each.name not in named)


def differs_title(comparison: Comparison) -> str:
    """What the list of differences is called; values of a few runs come in the order of the table."""
    return "Differences, in the order of the runs" if len(comparison.runs) <= FEW_VALUES else "Differences"


def interval(value: Interval | None) -> str:
    """``1.52 (1.49 to 1.55)``; ``Inf`` where all were lost."""
    if value is None:
        return NOTHING
    if value.low is None or value.high is None or value.low == value.high == math.inf:
        return number_text(value.value)
    return f"{number_text(value.value)} ({number_text(value.low)} to {number_text(value.high)})"


def p_value(value: float | None) -> str:
    """``p = 0.012``; empty where there is none."""
    if value is None:
        return ""
    return "p < 0.0001" if value < 1e-4 else f"p = {value:.2g}"


def repeated(cohort: Cohort) -> list[SeedGroup]:
    """The groups that have more than one seed."""
    return [each for each in cohort.groups if len(each.sources) > 1]


def not_repeated(cohort: Cohort) -> str:
    """How many runs stand alone; empty for none."""
    alone = len(cohort.groups) - len(repeated(cohort))
    return f"Left out: {counted(alone, 'run')} without a repetition." if alone else ""


def group(each: SeedGroup) -> str:
    """``4, 1 lost``: how many runs a group has."""
    lost = f", {each.lost} lost" if each.lost else ""
    shaky = each.unstable - each.lost
    return f"{len(each.sources)}{lost}" + (f", {shaky} unstable" if shaky > 0 else "")


def survival(curve: SurvivalCurve) -> str:
    """``3 of 12 lost, half of them by 1,400 steps``; ``1 of 5 lost; 80% survive 150 steps``."""
    said = f"{curve.lost} of {curve.runs} lost"
    if curve.shares:
        half = next((step for step, left in zip(curve.steps, curve.shares, strict=True) if left <= 0.5), None)
        said += (
            f", half of them by {counted(half, 'step')}"
            if half is not None
            else f"; {curve.shares[-1]:.0%} survive {counted(curve.last_step, 'step')}"
        )
    return f"{said}; {p_value(curve.p_value)} (log-rank against the others)" if curve.p_value is not None else said


def sensitivity(found: Sensitivity) -> list[str]:
    """How the final loss depends on the learning rate, in sentences."""
    low, high, best = (number_text(each) for each in (found.rates[0], found.rates[-1], found.best_rate))
    runs = counted(sum(found.runs), "run")
    said = [
        f"Best at {best} of {len(found.rates)} rates from {low} to {high} ({found.param}, {runs}).",
        f"Sensitivity: the mean final loss over these rates is {number_text(found.sensitivity)} above the best one.",
    ]
    if found.highest_stable is None:
        said.append("A run was unstable even at the lowest rate.")
    elif found.highest_stable < found.rates[-1]:
        said.append(f"All runs up to {number_text(found.highest_stable)} were stable (of {runs}).")
    else:
        said.append("No run was unstable at any rate.")
    return said


def association(each: Association) -> str:
    """The statement with its numbers behind it."""
    parts = [p_value(each.p_value)]
    if each.correlation is not None:
        parts.append(f"rank correlation {each.correlation:+.2f}")
    if each.given:
        parts.append(f"among runs with the same {', '.join(each.given)}")
    return f"{each.statement} ({'; '.join(parts)})"


def tree(found: Tree) -> str:
    """How accurate the tree is."""
    said = f"Decision tree: {found.accuracy:.0%} of held-out runs right (majority class {found.baseline:.0%})"
    return f"{said}." if found.better else f"{said}: no better than the majority class."


def no_association(cohort: Cohort) -> str:
    """That no parameter is associated with instability; empty where one is, or where that is undecided."""
    if cohort.associations or cohort.undecided or not cohort.tested:
        return ""
    return f"None of {len(cohort.tested)} parameters is associated with instability: {', '.join(cohort.tested[:8])}" + (
        ", …" if len(cohort.tested) > 8 else "."
    )


def unfinished(comparison: Comparison) -> str:
    """That it was interrupted; empty if it was not."""
    if not comparison.interrupted:
        return ""
    return f"Interrupted: {len(comparison.runs) + len(comparison.unread)} of {comparison.asked} runs were read."


def chosen(runs: Sequence[Compared], stablest: int, sickest: int) -> tuple[Sequence[Compared], Sequence[Compared], int]:
    """The stablest, the sickest, and how many are between."""
    if len(runs) <= stablest + sickest + 1:
        return runs, (), 0
    return runs[:stablest], runs[len(runs) - sickest :], len(runs) - stablest - sickest


def left_out(runs: int) -> str:
    """``85 more runs; --output-format csv lists all.``"""
    return f"{counted(runs, 'more run')}; --output-format csv lists all."


def _short(value: float) -> str:
    return "0" if value == 0 else f"{value:.1f}" if value < 10 else f"{value:.0f}"


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
