"""Merge findings of detectors and rules about the same trouble, by the functions in `MERGES` in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from mlflow_stability.diagnosis.causes.non_finite import NAN_ORIGIN, origin_of
from mlflow_stability.diagnosis.findings.episodes import NON_FINITE, REMARKS
from mlflow_stability.diagnosis.findings.notes import NanAfterInf, RepeatedNote, also_known, with_note
from mlflow_stability.kinds.gradients.gradient_explosion import GradientRiseFacts
from mlflow_stability.kinds.loss.loss_spike_curve import CurveSpikeFacts
from mlflow_stability.kinds.loss.nonfinite import InfDetected, NanDetected, NonFiniteFacts
from mlflow_stability.kinds.optimizer.loss_scaling import StepSkipped
from mlflow_stability.kinds.optimizer.update_size_curve import LargeUpdatesFacts
from mlflow_stability.kinds.progress.no_progress import StandstillFacts
from mlflow_stability.kinds.progress.oscillation import PeriodicLoss, PeriodicLossFacts
from mlflow_stability.kinds.progress.overfitting import LastBelowBestFacts
from mlflow_stability.kinds.progress.plateau import LastLevelFacts
from mlflow_stability.kinds.reported.rollback import Rollback, is_revert
from mlflow_stability.vocabulary.facts import LossEndFacts, LossRiseFacts, PeakFacts
from mlflow_stability.vocabulary.result import Finding, Remedy, Severity, Span, Statement, Text

NEAR_SHARE = 0.02  # findings that begin within this share of the run from each other are about the same trouble
REPEATED_STEPS = StepSkipped().of_steps  # what comes again within these steps is the same trouble, as for its detector
HELD_STEPS = 2  # what was done about a trouble, or found of it, is reported at most this number of steps away
OF_SWING = ("loss_spike", "divergence", "oscillation", "plateau")  # what the swing of a periodic loss may look like
SWING_ROOM = 1.25  # how far, as a factor, a value that belongs to the swing may lie above its 90th percentile
KNOWS_END = LossEndFacts | LastLevelFacts | StandstillFacts | LastBelowBestFacts | GradientRiseFacts
"""Facts that say how the curve ended."""

Merge = Callable[[list[Finding], float], list[Finding]]


def merged(findings: Iterable[Finding], steps: int) -> tuple[Finding, ...]:
    """Return the findings of a run of this number of steps, each trouble once, in order of time."""
    reach = max(2.0, NEAR_SHARE * steps)
    kept = list(findings)
    for merge in MERGES:
        kept = merge(kept, reach)
    return tuple(sorted(kept, key=lambda finding: (*_time(finding), -finding.severity)))


def end_at_rollbacks(findings: list[Finding], reach: float) -> list[Finding]:
    """End a divergence at its rollback if the loss diverged again much later, which the end of the curve hides."""
    rollbacks = [finding for finding in findings if finding.kind == Rollback.kind]

    def end_of(finding: Finding) -> int | None:
        again = [
            other.start
            for other in findings
            if other.kind == "divergence" == finding.kind and other.attempt == finding.attempt
        ]
        ends = [
            back.end
            for back in rollbacks
            if back.attempt >= finding.attempt
            and finding.start <= back.end
            and any(back.end + reach < start for start in again)
        ]
        return min(ends) if ends and min(ends) < finding.end else None

    ended = []
    for finding in findings:
        end = end_of(finding)
        if end is not None:
            peak = finding.peak if finding.peak <= end else finding.start
            finding = finding.with_span(end=end, peak=peak, recovered=True)
        ended.append(finding)
    return ended


def join_neighbours(findings: list[Finding], reach: float) -> list[Finding]:
    """Join findings of one kind and place that touch."""
    joined: list[Finding] = []
    for finding in sorted(findings, key=_time):
        twin = next((at for at, other in enumerate(joined) if _are_neighbours(other, finding, reach)), None)
        if twin is None:
            joined.append(finding)
        else:
            joined[twin] = _join(joined[twin], finding)
    return joined


def join_repeated(findings: list[Finding], _reach: float) -> list[Finding]:
    """Join NaN, infinities and skipped steps that come again soon."""
    groups: list[list[Finding]] = []
    others: list[Finding] = []
    for finding in sorted(findings, key=_time):
        if finding.kind not in (*NON_FINITE, StepSkipped.kind) or finding.severity is Severity.INFO:
            others.append(finding)
            continue
        group = next((group for group in groups if _comes_again(group, finding)), None)
        if group is None:
            groups.append([finding])
        else:
            group.append(finding)
    return [*others, *map(_repeated, groups)]


def join_overflows(findings: list[Finding], reach: float) -> list[Finding]:
    """Join an infinity and the NaN that it turned into."""
    for nan in [finding for finding in findings if finding.kind == NanDetected.kind]:
        for inf in [other for other in findings if other.kind == InfDetected.kind and other.attempt == nan.attempt]:
            if inf.start <= nan.start <= inf.end + reach:
                both = replace(
                    nan.with_span(start=inf.start),
                    statements=(*inf.stated, *_without_last_finite(nan, inf)),
                    facts=inf.facts,
                    also=also_known(inf, nan),
                )
                findings = [both if finding is nan else finding for finding in findings if finding is not inf]
                break
    return findings


def add_skipped_steps(findings: list[Finding], _reach: float) -> list[Finding]:
    """Add steps that were skipped for NaN or infinities to these."""
    kept = list(findings)
    for skip in [other for other in kept if other.kind == StepSkipped.kind and other.severity > Severity.INFO]:
        at = next((at for at, f in enumerate(kept) if f.kind in NON_FINITE and _holds(f, skip.start)), None)
        if at is None or kept[at].attempt != skip.attempt or kept[at].severity is Severity.INFO:
            continue
        trouble = kept[at]
        kept[at] = replace(
            trouble.with_span(end=max(trouble.end, skip.end)),
            also=also_known(trouble, skip),
            statements=(*trouble.stated, *skip.stated),
            remedies=_remedies(trouble, skip),
        )
        kept.remove(skip)
    return kept


def add_origins(findings: list[Finding], _reach: float) -> list[Finding]:
    """Add the operation that a NaN comes from to it; an origin without a finding is a warning."""
    kept, noted = list(findings), set[int]()
    for place, origin in enumerate(kept):
        if origin.kind != NAN_ORIGIN:
            continue
        held = [
            at
            for at, finding in enumerate(kept)
            if finding.kind in (*NON_FINITE, StepSkipped.kind)
            and finding.attempt == origin.attempt
            and _holds(finding, origin.start)
        ]
        if not held:
            kept[place] = replace(origin, severity=max(origin.severity, Severity.WARNING))
            continue
        at = max(held, key=lambda at: kept[at].severity)
        if at not in noted:
            noted.add(at)
            trouble = with_note(kept[at], Text(origin_of(origin).statement))
            repeats = (*trouble.repeats, (NAN_ORIGIN, origin.start))
            kept[at] = replace(trouble, remedies=_remedies(origin, trouble), repeats=repeats)
    return kept


def add_to_divergence(findings: list[Finding], reach: float) -> list[Finding]:
    """Add spikes at the onset of a divergence to it, and a plateau if the loss rose for good."""
    lasting = [finding for finding in findings if finding.kind == "divergence"]
    return [
        _with_spikes(finding, findings, reach) if finding.kind == "divergence" else finding
        for finding in findings
        if not any(_belongs(finding, divergence, reach) for divergence in lasting)
    ]


def add_to_periodic_loss(findings: list[Finding], _reach: float) -> list[Finding]:
    """Drop spikes and rises that stay within the swing of a periodic loss."""
    periodic = [finding for finding in findings if finding.kind == PeriodicLoss.kind]
    return [finding for finding in findings if not any(_is_part_of_swing(finding, loss) for loss in periodic)]


MERGES: Sequence[Merge] = (
    end_at_rollbacks,
    join_neighbours,
    join_repeated,
    join_overflows,
    add_skipped_steps,
    add_origins,
    add_to_periodic_loss,
    add_to_divergence,
)


def _time(finding: Finding) -> tuple[int, int]:
    return finding.attempt, finding.start


def _are_neighbours(first: Finding, second: Finding, reach: float) -> bool:
    alike = first.kind == second.kind and first.attempt == second.attempt
    if not alike or (first.metric != second.metric and first.place != second.place):
        return False
    if (
        first.kind in ("plateau", "overfitting")
        or first.facts_as(LargeUpdatesFacts)
        or second.facts_as(LargeUpdatesFacts)
    ):
        return True
    if is_revert(first) or is_revert(second):
        return False  # it is no further rollback
    if first.kind in REMARKS and first.facts != second.facts:
        return False
    return (
        second.start <= first.end + (reach if first.kind == "divergence" else 0) and first.start <= second.end + reach
    )


def _join(first: Finding, second: Finding) -> Finding:
    """Join two findings from the earlier start to the later end, in the words of the better informed one."""
    telling = max(first, second, key=_authority)
    recovered = [finding.recovered for finding in (first, second) if finding.recovered is not None]
    highest = max(first, second, key=_highest)
    return replace(
        telling,
        span=Span(
            min(first.start, second.start),
            highest.peak,
            max(first.end, second.end),
            all(recovered) if recovered else None,
        ),
        count=max(first.count, second.count),
        statements=telling.stated,
        also=also_known(telling, first, second),
        score=max(first.score, second.score),
    )


def _authority(finding: Finding) -> tuple[Severity, bool, bool]:
    return finding.severity, finding.recovered is not None, isinstance(finding.facts, KNOWS_END)


def _highest(finding: Finding) -> float:
    """Return the highest value of a rise; 0 if it is not known."""
    rise = finding.facts_as(PeakFacts) or finding.facts_as(LossEndFacts) or finding.facts_as(GradientRiseFacts)
    if rise is not None:
        return rise.highest
    spike = finding.facts_as(CurveSpikeFacts)
    return 0.0 if spike is None else spike.value


def _comes_again(group: Sequence[Finding], finding: Finding) -> bool:
    first, last = group[0], max(member.end for member in group)
    alike = (first.kind, first.attempt) == (finding.kind, finding.attempt)
    alike = alike and (finding.recovered is False) == (first.recovered is False)  # what never passes is another matter
    same_place = first.place == finding.place or first.metric == finding.metric
    return alike and same_place and finding.start - last <= REPEATED_STEPS


def _repeated(group: Sequence[Finding]) -> Finding:
    first, last = group[0], group[-1]
    if len(group) == 1:
        return first
    worst = max(group, key=lambda finding: finding.severity)
    statements = first.stated if worst is first else (*first.stated, *worst.stated)
    noted = with_note(replace(first, statements=statements), RepeatedNote(len(group)), step=last.start)
    return replace(
        noted.with_span(peak=worst.peak, end=max(finding.end for finding in group), recovered=last.recovered),
        severity=worst.severity,
        count=sum(finding.count for finding in group),
        also=also_known(first, *group),
        remedies=_remedies(worst, first),
    )


def _without_last_finite(nan: Finding, inf: Finding) -> tuple[Statement, ...]:
    """Return the sentence of a NaN that follows an infinity, without a last finite value that both name."""
    infinity = inf.facts
    if not isinstance(infinity, NonFiniteFacts) or infinity.last_finite is None:
        return nan.stated
    first, *others = nan.stated
    return (replace(first, facts=NanAfterInf(first.facts, infinity)), *others)


def _with_spikes(divergence: Finding, findings: Sequence[Finding], reach: float) -> Finding:
    """Add the steps of its spikes: they were reported, and they count as spikes."""
    within = [other for other in findings if other.kind == "loss_spike" and _belongs(other, divergence, reach)]
    return replace(divergence, spikes=tuple(spike.start for spike in within if spike.severity > Severity.INFO))


def _belongs(finding: Finding, divergence: Finding, reach: float) -> bool:
    if finding is divergence or finding.attempt != divergence.attempt or finding.place != divergence.place:
        return False
    if finding.kind == "loss_spike":
        return divergence.start - reach <= finding.start <= divergence.end
    return finding.kind == "plateau" and not divergence.recovered


def _is_part_of_swing(finding: Finding, periodic: Finding) -> bool:
    swing = periodic.facts_as(PeriodicLossFacts)
    if finding.kind not in OF_SWING or swing is None or finding.attempt != periodic.attempt:
        return False
    at_the_same = finding.place == periodic.place or finding.metric == periodic.metric
    rise = finding.facts_as(LossRiseFacts)
    highest = max(_highest(finding), 0.0 if rise is None else rise.value)
    at_its_time = periodic.start - swing.period <= finding.start <= periodic.end + swing.period
    within = at_its_time and highest <= SWING_ROOM * swing.high
    is_alike = finding.kind == "oscillation" or (finding.kind == "plateau" and periodic.severity > Severity.INFO)
    return at_the_same and (is_alike or (within and highest > 0))


def _holds(trouble: Finding, step: int) -> bool:
    return trouble.start - HELD_STEPS <= step <= trouble.end + HELD_STEPS


def _remedies(*findings: Finding) -> tuple[Remedy, ...]:
    return tuple(dict.fromkeys(remedy for finding in findings for remedy in finding.remedies))
