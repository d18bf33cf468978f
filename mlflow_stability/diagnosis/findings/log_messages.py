"""Make findings of messages in a log, and of the end of a process.

A skipped step after which training continued is INFO, as is an end of one attempt before others. CRITICAL is a run
whose last steps were skipped, whose log reports a stop for a non-finite number, or has no values after reporting
one. A collapse of sparse codes that a log reports is as severe as one that is measured.
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

MIN_SKIPPED_SHARE = 0.5
"""Share of the last steps, up to the end of the run, that must have been skipped."""
SCALE_SEARCH_STEPS = 20
"""Before this step a loss scale is still being searched: skipping steps is how it is found."""
MAX_ROLLBACKS = 1000
"""Of more rises of a count only the last ones are reported."""
BAD_ENDS = ("crashed", "killed", "out_of_memory")
REMEDIES = {kind.kind: kind.remedies for kind in (NanDetected, InfDetected, StepSkipped, SdrCollapse, *WAYS_TO_END)}


def findings_in_log(history: RunHistory, curves: RunCurves, starts: Mapping[int, int]) -> list[Finding]:
    """Return the findings; ``starts`` has for each attempt the first attempt of its training."""
    findings = []
    for event in history.reported:
        facts = event.facts
        if isinstance(facts, LogLineFacts) and facts.is_end:
            findings.append(_finding(event, event, Severity.CRITICAL, starts))
        elif not _is_of_a_step(event):
            findings.append(_finding(event, event, Severity.INFO, starts))
    at_the_end = _skipped_to_the_end(history, curves, starts)
    return [
        *findings,
        *_of_steps(history, curves, starts, at_the_end),
        *at_the_end,
        *_logged_rollbacks(history, starts),
    ]


def _of_steps(
    history: RunHistory, curves: RunCurves, starts: Mapping[int, int], at_the_end: Sequence[Finding]
) -> Iterator[Finding]:
    """Yield what the log says of single steps, neighbours as one, unless it is part of the end of the run."""
    reach = NEIGHBOURS * max((curve.distance for curve in curves.losses), default=1.0)
    groups: dict[tuple[str, int], list[Finding]] = {}
    for event in history.reported:
        if _is_of_a_step(event):
            groups.setdefault((event.kind, starts.get(event.attempt, event.attempt)), []).append(event)
    for (kind, start), events in groups.items():
        events.sort(key=lambda event: event.step)
        cuts = [place for place, (event, later) in enumerate(pairwise(events), 1) if later.step - event.step > reach]
        for low, high in pairwise([0, *cuts, len(events)]):
            first, last = events[low], events[high - 1]
            is_in_end = any(end.attempt == start and end.end >= last.step for end in at_the_end)
            if kind == StepSkipped.kind and is_in_end:
                continue
            if _ends_broken(last):
                severity = Severity.CRITICAL
            else:
                severity = SdrCollapse.severities[-1] if kind == SdrCollapse.kind else Severity.INFO
            finding = _finding(first, last, severity, starts, count=high - low)
            yield finding if high - low == 1 else with_note(finding, SaidAgainNote(high - low), step=last.step)


def _logged_rollbacks(history: RunHistory, starts: Mapping[int, int]) -> Iterator[Finding]:
    """Yield each rise of a number of rollbacks that a script logs."""
    for metric in history.of("rollback_count") if history.events is None else ():
        values, attempts = metric.series.values, metric.series.attempts
        rises = np.flatnonzero((values[1:] > values[:-1]) & (attempts[1:] == attempts[:-1])) + 1
        if len(values) and values[0] > 0:  # it is logged from the first rollback on
            rises = np.append(0, rises)
        for place in rises[-MAX_ROLLBACKS:].tolist():
            step, attempt = int(metric.series.steps[place]), int(attempts[place])
            before, after = float(values[place - 1]) if place else 0.0, float(values[place])
            yield Finding(
                Rollback.kind,
                Severity.INFO,
                Span(step, step, step, recovered=True),
                Where(metric=metric.name, attempt=starts.get(attempt, attempt)),
                CountRose(metric.name, before, after),
                source=Source.LOG,
                count=int(after - before),
            )


def _is_of_a_step(event: Finding) -> bool:
    """Whether a line names a finding or a skipped step, and no end of the training."""
    return isinstance(event.facts, LogLineFacts) and event.facts.says in (LogSays.FINDING, LogSays.SKIPPED)


def _ends_broken(event: Finding) -> bool:
    """Whether the last line of a training reports a non-finite number."""
    facts = event.facts
    is_broken = event.kind in (NanDetected.kind, InfDetected.kind)
    return is_broken and isinstance(facts, LogLineFacts) and facts.says is LogSays.FINDING and not facts.went_on


def _skipped_to_the_end(history: RunHistory, curves: RunCurves, starts: Mapping[int, int]) -> list[Finding]:
    skips = [event for event in history.reported if event.kind == StepSkipped.kind]
    if not skips:
        return []
    attempt = max(curve.attempt for curve in curves.losses) if curves.losses else skips[-1].attempt
    skips = [skip for skip in skips if starts.get(skip.attempt, skip.attempt) == attempt]
    ends = [int(curve.steps[-1]) for curve in curves.losses if curve.attempt == attempt]
    end = max([*ends, *(skip.step for skip in skips)], default=0)
    firsts = [
        place for place, skip in enumerate(skips) if len(skips) - place >= MIN_SKIPPED_SHARE * (end - skip.step + 1)
    ]
    last = skips[firsts[0] :] if firsts else []
    facts = [skip.facts for skip in last if isinstance(skip.facts, LogLineFacts)]
    have_scales = len(facts) == len(last) and all(line.loss_scale is not None for line in facts)
    if len(last) < SkippedEndRule().fewest or (end <= SCALE_SEARCH_STEPS and have_scales):
        return []
    broken = any(line.names_nan or line.names_not_finite for line in facts)
    nan = any(line.names_nan for line in facts)
    kind = StepSkipped.kind if not broken else NanDetected.kind if nan else InfDetected.kind
    severity = Severity.CRITICAL if broken else Severity.WARNING
    finding = _finding(last[0], last[-1], severity, starts, kind=kind, count=len(last))
    skipped = Statement(SkippedToTheEnd(len(last), end), last[0].step)
    return [replace(finding, statements=(skipped, *finding.stated))]


def _finding(
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


def endings_of(history: RunHistory, last_step: int, attempt: int) -> list[Finding]:
    """Return the finding of a bad end, unless it was recorded."""
    kind = history.outcome
    if kind not in BAD_ENDS or any(event.kind in BAD_ENDS for event in history.events or ()):
        return []
    span = Span(last_step, last_step, last_step, recovered=False)
    facts = EndFacts(kind, history.outcome_detail)
    return [Finding(kind, Severity.CRITICAL, span, Where(attempt=attempt), facts, REMEDIES[kind], Source.LOG)]
