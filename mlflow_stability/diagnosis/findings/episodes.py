"""Join events, which are steps, and messages in a log into findings with a beginning, a worst point and an end.

Neighbouring events of one kind are one finding. The curve that they were detected in shows where they ended, and
whether it was as before afterwards.

A skipped step after which training continued is INFO, as is an end of one attempt before others. CRITICAL is a run
whose last steps were skipped, whose log reports a stop for a non-finite number, or has no values after reporting
one. A collapse of sparse codes that a log reports is as severe as one that is measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from mlflow_stability.curves.curves import Curve, RunCurves
from mlflow_stability.detectors.detector import Detector
from mlflow_stability.diagnosis.findings.attempts import UndoneSteps, kept_points, restored_level, undone_steps
from mlflow_stability.diagnosis.findings.notes import CountRose, SaidAgainNote, SkippedToTheEnd, also_known, with_note
from mlflow_stability.kinds.inside.sparse_codes import SdrCollapse
from mlflow_stability.kinds.loss.nonfinite import InfDetected, NanDetected
from mlflow_stability.kinds.optimizer.loss_scaling import SkippedEndRule, StepSkipped
from mlflow_stability.kinds.reported.endings import WAYS_TO_END, EndFacts, LogLineFacts, LogSays
from mlflow_stability.kinds.reported.rollback import Rollback, is_revert
from mlflow_stability.kinds.reported.setup import ConfigurationFacts, MissingZeroGrad
from mlflow_stability.vocabulary.facts import Facts, PeakFacts
from mlflow_stability.vocabulary.result import Finding, Severity, Source, Span, Statement, Where
from mlflow_stability.vocabulary.run import RunHistory

NEIGHBOURS = 16  # events of one kind that are at most this number of logged points apart are one finding
BASELINE_POINTS = 32  # values before an event that show what was normal
LEFT_PLATEAU = 0.05  # a loss that ended this share below a plateau has left it
RETURN_POINTS = 3  # consecutive points below the limit after which a curve is back
NON_FINITE = ("nan_detected", "inf_detected")
REMARKS = frozenset({"model_lint", "not_measured", "configuration_changed", "give_up"})
"""Kinds whose facts differ in subject, so that several at one step stay several."""
RISING = frozenset({"divergence", "gradient_explosion", "loss_spike"})  # these end when the curve is back where it was


def episodes_of(
    events: Iterable[Finding],
    history: RunHistory,
    curves: RunCurves,
    starts: dict[int, int],
    detectors: Sequence[Detector],
) -> list[Finding]:
    """Return the findings in order of time; above a threshold of the user's, each excursion is one of its own."""
    alone = {detector.kind for detector in detectors if getattr(detector, "threshold_alone", False)}
    quantities = {detector.kind: detector.quantities for detector in detectors}
    experimental = {detector.kind for detector in detectors if getattr(detector, "experimental", False)}
    groups: dict[tuple[str, str, int, Facts | None], list[Finding]] = {}
    for event in events:
        # A revert is no further rollback.
        remark = event.facts if event.kind in REMARKS or is_revert(event) else None
        start = starts.get(event.attempt, event.attempt)
        groups.setdefault((event.kind, event.place, start, remark), []).append(event)
    findings, undone = [], undone_steps(history.events, starts)
    for (kind, _, start, _), group in groups.items():
        name = _metric_of(history, quantities.get(kind, ()), group[0])
        every = (*curves.losses, *curves.validations, *curves.norms)
        curve = next((curve for curve in every if curve.name == name and curve.attempt == start), None)
        gap = (1 if kind in alone else NEIGHBOURS) * (curve.distance if curve is not None else 1.0)
        for neighbours in _neighbours(group, gap):
            finding = _join(neighbours, name, start, experimental=kind in experimental)
            if kind == MissingZeroGrad.kind:
                cleared = cleared_from(finding.start, history.events or ())
                end = finding.end if cleared is None else cleared
                findings.append(finding.with_span(recovered=cleared is not None, end=end))
            else:
                findings.append(finding if curve is None else _with_end(finding, curve, undone))
    return sorted(findings, key=lambda finding: (finding.attempt, finding.start))


def _neighbours(events: list[Finding], gap: float) -> list[list[Finding]]:
    groups: list[list[Finding]] = []
    for event in sorted(events, key=lambda event: event.step):
        since = event.step if event.facts.found_first is None else event.facts.found_first
        if groups and since - groups[-1][-1].step <= gap:
            groups[-1].append(event)
        else:
            groups.append([event])
    return groups


def _join(events: list[Finding], metric: str, start: int, *, experimental: bool) -> Finding:
    first, worst = events[0], max(events, key=lambda event: event.severity)
    telling = worst if first.severity is Severity.INFO else first  # it also covers the outcome of the first one
    return replace(
        first,
        severity=worst.severity,
        span=Span(first.step, worst.step, events[-1].step),
        where=Where(first.place, metric, start),
        facts=telling.facts,
        score=max(event.score for event in events),
        count=len(events),
        statements=telling.stated,
        also=also_known(telling, first),
        experimental=experimental,
    )


def _metric_of(history: RunHistory, quantities: tuple[str, ...], event: Finding) -> str:
    """Return the metric that an event was detected in: a quantity that it names comes first."""
    named = [quantity for quantity in quantities if quantity in event.metrics]
    usual = "grad_norm" if "gradient" in event.kind else "loss"
    for quantity in (*named, *sorted(quantities, key=lambda quantity: quantity != usual)):
        for metric in history.of(quantity):
            if metric.meaning.place == event.place and not metric.meaning.duplicate_of:
                return metric.name
    return ""


def _with_end(finding: Finding, curve: Curve, undone: UndoneSteps) -> Finding:
    if finding.kind in RISING:
        return _with_return(finding, curve, undone)
    finite = np.flatnonzero(curve.finite)
    if finding.kind in NON_FINITE and len(finite):
        recovered = bool(curve.steps[finite[-1]] > finding.end)
        return finding.with_span(recovered=recovered, end=finding.end if recovered else int(curve.steps[-1]))
    if finding.kind == "plateau" and len(finite):
        values = curve.values[finite]
        place = int(np.searchsorted(curve.steps[finite], finding.start))
        level = float(np.median(values[max(0, place - BASELINE_POINTS) : place + 1]))
        return finding.with_span(recovered=end_level(values) < level - LEFT_PLATEAU * abs(level))
    return finding


def _with_return(finding: Finding, curve: Curve, undone: UndoneSteps) -> Finding:
    """Add the worst point, the end, and whether the curve was as before afterwards.

    Where a rollback answered it, as before means as in the restored state.
    """
    finite = curve.finite
    steps, values = curve.steps[finite], curve.values[finite]
    first = int(np.searchsorted(steps, finding.start))
    final = int(np.searchsorted(steps, finding.end, side="right"))
    if first < 3 or final > len(steps) or final <= first:
        return finding
    before = values[max(0, first - BASELINE_POINTS) : first]
    restored = restored_level(curve, undone, since=finding.start)
    usual, high = (
        max(float(np.median(before)), -np.inf if restored is None else restored),
        float(values[first:final].max()),
    )
    limit = usual + max(0.25 * (high - usual), 3 * float(np.median(np.abs(before - usual))))
    below = values[final:] <= limit
    in_row = np.convolve(below, np.ones(RETURN_POINTS), "valid") if len(below) >= RETURN_POINTS else np.zeros(0)
    calm = np.flatnonzero(in_row == RETURN_POINTS)
    end = final + int(calm[0]) - 1 if len(calm) else len(values) - 1
    peak = first + int(np.argmax(values[first : end + 1]))
    recovered = bool(len(calm)) if len(values) - final >= RETURN_POINTS else None
    if finding.kind == "divergence":
        kept = kept_points(curve, undone)
        left = kept.values[kept.finite]
        recovered = end_level(left) <= limit
        recovered = recovered and (bool(len(calm)) or float(np.median(left[-min(5, len(left)) :])) <= limit)
        end = end if recovered else len(values) - 1
    placed = finding.with_span(peak=int(steps[peak]), end=max(int(steps[end]), finding.end), recovered=recovered)
    return replace(placed, also=(*finding.also, PeakFacts(float(values[peak]))))


def end_level(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    return float(np.median(values[-max(3, len(values) // 20) :]))


def cleared_from(first: int, events: Iterable[Finding]) -> int | None:
    """Return the step from which gradients that were not cleared since step ``first`` were; None: never."""
    changes = ((event.step, event.facts) for event in events)
    cleared = (
        step for step, facts in changes if isinstance(facts, ConfigurationFacts) and facts.not_cleared_since == first
    )
    return min(cleared, default=None)


def persists(finding: Finding) -> bool:
    """Whether gradients are not cleared, to the end."""
    return finding.kind == MissingZeroGrad.kind and finding.recovered is False


MIN_SKIPPED_SHARE = 0.5  # share of the last steps, up to the end of the run, that must have been skipped
SCALE_SEARCH_STEPS = 20  # before this step a loss scale is still being searched: skipping steps is how it is found
MAX_ROLLBACKS = 1000  # of more rises of a count only the last ones are reported
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
            severity, facts = SdrCollapse.severities[-1] if kind == SdrCollapse.kind else Severity.INFO, last.facts
            is_finding = isinstance(facts, LogLineFacts) and facts.says is LogSays.FINDING and not facts.went_on
            if kind in NON_FINITE and is_finding:  # the last line of a training reports a non-finite number
                severity = Severity.CRITICAL
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
