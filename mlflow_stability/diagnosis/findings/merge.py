"""Makes one list of episodes out of what detectors and rules saw of the same trouble.

In: the episodes of both. Out: each trouble once: episodes of one kind that touch are one, the spikes at the onset of a
divergence belong to it, a plateau is none where the loss rose for good. NaN that comes again and again, the steps that
were skipped for it, and the operation in which it was born, are one.
"""

from __future__ import annotations

from dataclasses import replace

from mlflow_stability.diagnosis.findings.episodes import REMARKS
from mlflow_stability.diagnosis.findings.notes import NanAfterInf, also_known
from mlflow_stability.diagnosis.findings.same_trouble import joined_by_trouble, with_births, with_what_was_skipped
from mlflow_stability.kinds.gradients.gradient_explosion import GradientRiseFacts
from mlflow_stability.kinds.loss.loss_spike_curve import CurveSpikeFacts
from mlflow_stability.kinds.loss.nonfinite import NonFiniteFacts
from mlflow_stability.kinds.optimizer.update_ratio import LargeUpdatesFacts
from mlflow_stability.kinds.progress.overfitting import LastBelowBestFacts
from mlflow_stability.kinds.progress.plateau import LastLevelFacts
from mlflow_stability.kinds.reported.rollback import Rollback
from mlflow_stability.vocabulary.facts import LossEndFacts, PeakFacts
from mlflow_stability.vocabulary.result import Finding, Severity, Span, Statement

KNOWS_END = LossEndFacts | LastLevelFacts | LastBelowBestFacts | GradientRiseFacts
"""Facts that say how the curve ended."""
NEAR = 0.02
"""Episodes that begin within this share of the run from each other are about the same trouble."""


def reconciled(episodes: list[Finding], span: int) -> tuple[Finding, ...]:
    """The episodes of one run, each once, in order of time."""
    reach = max(2.0, NEAR * span)
    merged: list[Finding] = []
    for each in sorted(_ended_by_rollbacks(episodes, reach), key=lambda each: (each.attempt, each.start)):
        twin = next((at for at, one in enumerate(merged) if _same(one, each, reach)), None)
        if twin is None:
            merged.append(each)
        else:
            merged[twin] = _joined(merged[twin], each)
    merged = with_births(with_what_was_skipped(_overflowed(joined_by_trouble(merged), reach)))
    lasting = [each for each in merged if each.kind == "divergence"]
    kept = [
        _with_spikes(each, merged, reach) for each in merged if not any(_belongs(each, one, reach) for one in lasting)
    ]
    return tuple(sorted(kept, key=lambda each: (each.attempt, each.start, -each.severity)))


def _ended_by_rollbacks(episodes: list[Finding], reach: float) -> list[Finding]:
    """The episodes; a divergence that was rolled back ends there where the loss diverged anew a good while later.

    For that it must have come down. By where the curve ended alone, the first divergence lasted until then.
    """
    rollbacks = [each for each in episodes if each.kind == Rollback.kind]
    found = []
    for each in episodes:
        anew = [one.start for one in episodes if one.kind == "divergence" == each.kind and one.attempt == each.attempt]
        ends = [
            back.end
            for back in rollbacks
            if back.attempt >= each.attempt and each.start <= back.end and any(back.end + reach < one for one in anew)
        ]
        if ends and min(ends) < each.end:
            end = min(ends)
            peak = each.peak if each.peak <= end else each.start
            found.append(each.with_span(end=end, peak=peak, recovered=True))
        else:
            found.append(each)
    return found


def _with_spikes(each: Finding, others: list[Finding], reach: float) -> Finding:
    """A divergence with the spikes that belong to it: somebody was warned of each, and they count as spikes."""
    if each.kind != "divergence":
        return each
    within = [one for one in others if one.kind == "loss_spike" and _belongs(one, each, reach)]
    return replace(each, spikes=tuple(one.start for one in within if one.severity > Severity.INFO))


def _overflowed(episodes: list[Finding], reach: float) -> list[Finding]:
    """An infinity that turned into NaN is one trouble, and NaN its result."""
    for nan in [each for each in episodes if each.kind == "nan_detected"]:
        for inf in [each for each in episodes if each.kind == "inf_detected" and each.attempt == nan.attempt]:
            if inf.start <= nan.start <= inf.end + reach:
                both = replace(
                    nan.with_span(start=inf.start),
                    statements=(*inf.stated, *_without_last_finite(nan, inf)),
                    facts=inf.facts,
                    also=also_known(inf, nan),
                )
                episodes = [both if each is nan else each for each in episodes if each is not inf]
                break
    return episodes


def _without_last_finite(nan: Finding, inf: Finding) -> tuple[Statement, ...]:
    """What a NaN that follows an infinity says, without a last finite value that the infinity names, too."""
    infinity = inf.facts
    if not isinstance(infinity, NonFiniteFacts) or infinity.last_finite is None:
        return nan.stated
    first, *others = nan.stated
    return (replace(first, facts=NanAfterInf(first.facts, infinity)), *others)


def _same(one: Finding, other: Finding, reach: float) -> bool:
    alike = one.kind == other.kind and one.attempt == other.attempt
    if not alike or (one.metric != other.metric and one.place != other.place):
        return False
    if one.kind in ("plateau", "overfitting") or one.known(LargeUpdatesFacts) or other.known(LargeUpdatesFacts):
        return True
    if one.kind in REMARKS and one.facts != other.facts:
        return False
    return other.start <= one.end + (reach if one.kind == "divergence" else 0) and one.start <= other.end + reach


def _joined(one: Finding, other: Finding) -> Finding:
    """Both as one: from the earlier start to the later end, told by the one that knows how it went on."""
    telling = max(one, other, key=_authority)
    told = [each.recovered for each in (one, other) if each.recovered is not None]
    worst = max(one, other, key=_highest)
    return replace(
        telling,
        span=Span(
            min(one.start, other.start), worst.peak, max(one.end, other.end), recovered=all(told) if told else None
        ),
        count=max(one.count, other.count),
        statements=telling.stated,
        also=also_known(telling, one, other),
        score=max(one.score, other.score),
    )


def _authority(finding: Finding) -> tuple[Severity, bool, bool]:
    """Of two findings of one trouble, the one with more tells of both."""
    return finding.severity, finding.recovered is not None, isinstance(finding.facts, KNOWS_END)


def _highest(finding: Finding) -> float:
    """The highest value of a rise; 0 where that is not known."""
    rise = finding.known(PeakFacts) or finding.known(LossEndFacts) or finding.known(GradientRiseFacts)
    if rise is not None:
        return rise.highest
    spike = finding.known(CurveSpikeFacts)
    return 0.0 if spike is None else spike.value


def _belongs(each: Finding, divergence: Finding, reach: float) -> bool:
    """Whether it is a part of a divergence."""
    if each is divergence or each.attempt != divergence.attempt or each.place != divergence.place:
        return False
    if each.kind == "loss_spike":
        return divergence.start - reach <= each.start <= divergence.end
    return each.kind == "plateau" and not divergence.recovered
