"""Make episodes of what a log says in words, and of how a process ended.

A skipped step after which training went on is INFO, as is an end that was none: words about one attempt are no verdict
on others. A run ends CRITICAL whose last steps were skipped, whose log says that it stopped for a number that was not
finite, or has no values after saying that there is such a number. A collapse of sparse codes that a log speaks of is as
severe as one that is measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from mlflow_stability.curves.curves import RunCurves
from mlflow_stability.diagnosis.findings.episodes import NEIGHBOURS
from mlflow_stability.diagnosis.findings.notes import CountRose, SaidAgainNote, SkippedToTheEnd, with_note
from mlflow_stability.kinds.inside.sparse_codes import SdrCollapse
from mlflow_stability.kinds.loss.nonfinite import InfDetected, NanDetected
from mlflow_stability.kinds.optimizer.loss_scaling import SkippedEndRule, StepSkipped
from mlflow_stability.kinds.reported.endings import WAYS_TO_END, EndFacts, LogLineFacts, LogSays
from mlflow_stability.kinds.reported.rollback import Rollback
from mlflow_stability.vocabulary.result import Finding, Severity, Source, Span, Statement, Where
from mlflow_stability.vocabulary.run import RunHistory

SHARE = 0.5
"""So many of the last steps must have been skipped, up to the end of the run."""
SEARCH = 20
"""Before this step a loss scale is still being searched: skipping steps is how it is found."""
MOST_ROLLBACKS = 1000
"""Of more rises of a count only the last ones are told."""
DECIDING = {each.kind: each.severities[-1] for each in (SdrCollapse,)}
"""What only words tell where it is not measured is as severe as a finding of ours; all else is INFO."""
REMEDIES = {each.kind: each.remedies for each in (NanDetected, InfDetected, StepSkipped, SdrCollapse, *WAYS_TO_END)}


def findings_in_log(history: RunHistory, curves: RunCurves, starts: Mapping[int, int]) -> list[Finding]:
    """The episodes; ``starts``: for each attempt the one in which its training was started."""
    found = []
    for event in history.reported:
        facts = event.facts
        if isinstance(facts, LogLineFacts) and facts.is_end:
            found.append(_episode(event, event, Severity.CRITICAL, starts))
        elif not _is_of_a_step(event):
            found.append(_episode(event, event, Severity.INFO, starts))
    at_the_end = _skipped_to_the_end(history, curves, starts)
    return [*found, *_said(history, curves, starts, at_the_end), *at_the_end, *_counted(history, starts)]


def _said(
    history: RunHistory, curves: RunCurves, starts: Mapping[int, int], told: Sequence[Finding]
) -> Iterator[Finding]:
    """What the log says of single steps, neighbours as one, unless it is ``told`` as an end of the run."""
    near = NEIGHBOURS * max((curve.distance for curve in curves.losses), default=1.0)
    groups: dict[tuple[str, int], list[Finding]] = {}
    for event in history.reported:
        if _is_of_a_step(event):
            groups.setdefault((event.kind, starts.get(event.attempt, event.attempt)), []).append(event)
    for (kind, start), events in groups.items():
        events.sort(key=lambda event: event.step)
        cuts = [at for at, (one, other) in enumerate(pairwise(events), 1) if other.step - one.step > near]
        for low, high in pairwise([0, *cuts, len(events)]):
            first, last = events[low], events[high - 1]
            if kind == StepSkipped.kind and any(each.attempt == start and each.end >= last.step for each in told):
                continue
            severity = Severity.CRITICAL if _ends_broken(last) else DECIDING.get(kind, Severity.INFO)
            episode = _episode(first, last, severity, starts, count=high - low)
            yield episode if high - low == 1 else with_note(episode, SaidAgainNote(high - low), step=last.step)


def _counted(history: RunHistory, starts: Mapping[int, int]) -> Iterator[Finding]:
    """Each rise of the number of rollbacks that somebody logged."""
    for metric in history.of("rollback_count") if history.events is None else ():
        values, attempts = metric.series.values, metric.series.attempts
        rises = np.flatnonzero((values[1:] > values[:-1]) & (attempts[1:] == attempts[:-1])) + 1
        if len(values) and values[0] > 0:  # it is logged from the first rollback on
            rises = np.append(0, rises)
        for at in rises[-MOST_ROLLBACKS:].tolist():
            step, before, now = int(metric.series.steps[at]), float(values[at - 1]) if at else 0.0, float(values[at])
            yield Finding(
                Rollback.kind,
                Severity.INFO,
                Span(step, step, step, recovered=True),
                Where(metric=metric.name, attempt=starts.get(int(attempts[at]), int(attempts[at]))),
                CountRose(metric.name, before, now),
                source=Source.LOG,
                count=int(now - before),
            )


def _is_of_a_step(event: Finding) -> bool:
    """Whether a line names a finding or a skipped step, and no end of the training."""
    return isinstance(event.facts, LogLineFacts) and event.facts.says in (LogSays.FINDING, LogSays.SKIPPED)


def _ends_broken(event: Finding) -> bool:
    """Whether the last that a log says of a training is that a number is not finite."""
    facts = event.facts
    is_broken = event.kind in (NanDetected.kind, InfDetected.kind)
    return is_broken and isinstance(facts, LogLineFacts) and facts.says is LogSays.FINDING and not facts.went_on


def _skipped_to_the_end(history: RunHistory, curves: RunCurves, starts: Mapping[int, int]) -> list[Finding]:
    skips = [event for event in history.reported if event.kind == StepSkipped.kind]
    if not skips:
        return []
    attempt = max(curve.attempt for curve in curves.losses) if curves.losses else skips[-1].attempt
    skips = [each for each in skips if starts.get(each.attempt, each.attempt) == attempt]
    ends = [int(curve.steps[-1]) for curve in curves.losses if curve.attempt == attempt]
    end = max([*ends, *(each.step for each in skips)], default=0)
    firsts = [at for at, each in enumerate(skips) if len(skips) - at >= SHARE * (end - each.step + 1)]
    last = skips[firsts[0] :] if firsts else []
    facts = [each.facts for each in last if isinstance(each.facts, LogLineFacts)]
    scaled = len(facts) == len(last) and all(each.loss_scale is not None for each in facts)
    if len(last) < SkippedEndRule().fewest or (end <= SEARCH and scaled):
        return []
    broken = any(each.names_nan or each.names_not_finite for each in facts)
    nan = any(each.names_nan for each in facts)
    kind = StepSkipped.kind if not broken else NanDetected.kind if nan else InfDetected.kind
    severity = Severity.CRITICAL if broken else Severity.WARNING
    episode = _episode(last[0], last[-1], severity, starts, kind=kind, count=len(last))
    skipped = Statement(SkippedToTheEnd(len(last), end), last[0].step)
    return [replace(episode, statements=(skipped, *episode.stated))]


def _episode(
    first: Finding,
    last: Finding,
    severity: Severity,
    starts: Mapping[int, int],
    *,
    kind: str = "",
    count: int = 1,
) -> Finding:
    kind = kind or first.kind
    return Finding(
        kind,
        severity,
        Span(first.step, first.step, last.step, recovered=severity is Severity.INFO),
        Where(first.place, attempt=starts.get(first.attempt, first.attempt)),
        first.facts,
        REMEDIES.get(kind, ()) if severity > Severity.INFO else (),
        Source.LOG,
        count=count,
    )


BAD = ("crashed", "killed", "out_of_memory")


def endings_of(history: RunHistory, last_step: int, attempt: int) -> list[Finding]:
    """The episode of a bad end."""
    kind = history.outcome
    if kind not in BAD or any(event.kind in BAD for event in history.events or ()):
        return []
    facts = EndFacts(kind, history.outcome_detail)
    span = Span(last_step, last_step, last_step, recovered=False)
    where = Where(attempt=attempt)
    return [Finding(kind, Severity.CRITICAL, span, where, facts, REMEDIES[kind], Source.LOG)]
