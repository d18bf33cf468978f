"""Makes one episode of one trouble with numbers, however often it came: NaN, infinities, and steps skipped for them.

In: the episodes of one run. Out: the same, each trouble once. Guarantees: how often it came and until when, that steps
were skipped for it, and where its first number was born, stand in its message; a birth that belongs to no other finding
is one of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from mlflow_stability.diagnosis.causes.nan_origin import KIND as BIRTH
from mlflow_stability.diagnosis.causes.nan_origin import origin_of
from mlflow_stability.diagnosis.findings.notes import OriginNote, RepeatedNote, also_known, with_note
from mlflow_stability.kinds.optimizer.step_skipped import StepSkipped
from mlflow_stability.vocabulary.result import Finding, Severity

NON_FINITE = ("nan_detected", "inf_detected")
SKIPPED = StepSkipped.kind
APART = StepSkipped().of_steps
"""What comes again within so many steps is the same trouble, as the detector of skipped steps counts it."""
NEAR = 2
"""What was done about it, or found of it, is told at most so many steps away."""


def joined_by_trouble(episodes: Iterable[Finding]) -> list[Finding]:
    """Each trouble with numbers once; all else as it is."""
    groups: list[list[Finding]] = []
    others: list[Finding] = []
    for each in sorted(episodes, key=lambda each: (each.attempt, each.start)):
        if each.kind not in (*NON_FINITE, SKIPPED) or each.severity is Severity.INFO:
            others.append(each)
            continue
        group = next((group for group in groups if _comes_again(group, each)), None)
        if group is None:
            groups.append([each])
        else:
            group.append(each)
    return [*others, *map(_as_one, groups)]


def with_what_was_skipped(episodes: Iterable[Finding]) -> list[Finding]:
    """NaN and infinities with the steps that were skipped for them, which are no finding beside them."""
    kept = list(episodes)
    for skip in [each for each in kept if each.kind == SKIPPED and each.severity > Severity.INFO]:
        at = next((at for at, each in enumerate(kept) if each.kind in NON_FINITE and _holds(each, skip.start)), None)
        if at is None or kept[at].attempt != skip.attempt or kept[at].severity is Severity.INFO:
            continue
        trouble = kept[at]
        kept[at] = replace(
            trouble.with_span(end=max(trouble.end, skip.end)),
            also=also_known(trouble, skip),
            statements=(*trouble.stated, *skip.stated),
            remedies=tuple(dict.fromkeys((*trouble.remedies, *skip.remedies))),
        )
        kept.remove(skip)
    return kept


def with_births(episodes: Iterable[Finding]) -> list[Finding]:
    """Each trouble with the operation in which its first number was born."""
    kept, told = list(episodes), set[int]()
    for place, birth in enumerate(kept):
        if birth.kind != BIRTH:
            continue
        mine = [
            at
            for at, each in enumerate(kept)
            if each.kind in (*NON_FINITE, SKIPPED) and each.attempt == birth.attempt and _holds(each, birth.start)
        ]
        if not mine:
            kept[place] = replace(birth, severity=max(birth.severity, Severity.WARNING))
            continue
        at = max(mine, key=lambda at: kept[at].severity)
        if at not in told:
            told.add(at)
            remedies = tuple(dict.fromkeys((*birth.remedies, *kept[at].remedies)))
            repeats = (*kept[at].repeats, (BIRTH, birth.start))
            told_with = with_note(kept[at], OriginNote(origin_of(birth)))
            kept[at] = replace(told_with, remedies=remedies, repeats=repeats)
    return kept


def _comes_again(group: list[Finding], each: Finding) -> bool:
    first, last = group[0], max(one.end for one in group)
    alike = (first.kind, first.attempt) == (each.kind, each.attempt)
    alike = alike and (each.recovered is False) == (first.recovered is False)  # what never passes is another matter
    return alike and (first.place == each.place or first.metric == each.metric) and each.start - last <= APART


def _as_one(group: list[Finding]) -> Finding:
    first, last = group[0], group[-1]
    if len(group) == 1:
        return first
    worst = max(group, key=lambda each: each.severity)
    statements = first.stated if worst is first else (*first.stated, *worst.stated)
    joined = with_note(replace(first, statements=statements), RepeatedNote(len(group)), step=last.start)
    return replace(
        joined.with_span(peak=worst.peak, end=max(each.end for each in group), recovered=last.recovered),
        severity=worst.severity,
        count=sum(each.count for each in group),
        also=also_known(first, *group),
        remedies=tuple(dict.fromkeys((*worst.remedies, *first.remedies))),
    )


def _holds(episode: Finding, step: int) -> bool:
    return episode.start - NEAR <= step <= episode.end + NEAR
