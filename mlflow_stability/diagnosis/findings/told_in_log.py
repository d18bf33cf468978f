"""Makes episodes of what a log says in words.

In: the events that a log reports, and the curves. Out: an episode where the last steps of the run were skipped, or
where the log says that it stopped for a number that was not finite; and, as INFO, each end that was none. Promised: a
skipped step after which training went on is no finding; words about one attempt are no verdict on others.
"""

from __future__ import annotations

from collections.abc import Mapping

from mlflow_stability.detectors.loss.nonfinite import InfDetected, NanDetected
from mlflow_stability.detectors.optimizer.step_skipped import StepSkipped
from mlflow_stability.detectors.reported.endings import WAYS_TO_END
from mlflow_stability.diagnosis.curves.curves import RunCurves
from mlflow_stability.diagnosis.rules.skipped_end import SkippedEndRule
from mlflow_stability.vocabulary.result.episode import Episode
from mlflow_stability.vocabulary.result.event import Event, Severity
from mlflow_stability.vocabulary.run.run_history import RunHistory
from mlflow_stability.vocabulary.text.phrases import counted

SHARE = 0.5
"""So many of the last steps must have been skipped, up to the end of the run."""
SEARCH = 20
"""Before this step a loss scale is still being searched: skipping steps is how it is found."""
REMEDIES = {each.kind: each.remedies for each in (NanDetected, InfDetected, StepSkipped, *WAYS_TO_END)}


def told_findings(history: RunHistory, curves: RunCurves, starts: Mapping[int, int]) -> list[Episode]:
    """The episodes; ``starts``: for each attempt the one in which its training was started."""
    found = []
    for event in history.reported:
        if "stopped" in event.evidence:
            found.append(_episode(event, event, Severity.CRITICAL, event.message, starts))
        elif event.kind != StepSkipped.kind:
            found.append(_episode(event, event, Severity.INFO, event.message, starts))
    return [*found, *_skipped_to_the_end(history, curves, starts)]


def _skipped_to_the_end(history: RunHistory, curves: RunCurves, starts: Mapping[int, int]) -> list[Episode]:
    skips = [event for event in history.reported if event.kind == StepSkipped.kind]
    if not skips:
        return []
    attempt = max(curve.attempt for curve in curves.losses) if curves.losses else skips[-1].attempt
    skips = [each for each in skips if starts.get(each.attempt, each.attempt) == attempt]
    ends = [int(curve.steps[-1]) for curve in curves.losses if curve.attempt == attempt]
    end = max([*ends, *(each.step for each in skips)], default=0)
    firsts = [at for at, each in enumerate(skips) if len(skips) - at >= SHARE * (end - each.step + 1)]
    last = skips[firsts[0] :] if firsts else []
    if len(last) < SkippedEndRule().fewest or (end <= SEARCH and all("loss_scale" in each.evidence for each in last)):
        return []
    broken = next((each for each in last if {"nan", "not_finite"} & each.evidence.keys()), None)
    nan = any("nan" in each.evidence for each in last)
    kind = StepSkipped.kind if broken is None else NanDetected.kind if nan else InfDetected.kind
    said = (
        f"{counted(len(last), 'step')} skipped from step {last[0].step} to the end of the run at step {end} (reported "
        "by the "
    )
    said += f"log). {last[0].message}"
    severity = Severity.WARNING if broken is None else Severity.CRITICAL
    return [_episode(last[0], last[-1], severity, said, starts, kind=kind, count=len(last))]


def _episode(
    first: Event,
    last: Event,
    severity: Severity,
    message: str,
    starts: Mapping[int, int],
    *,
    kind: str = "",
    count: int = 1,
) -> Episode:
    kind = kind or first.kind
    return Episode(
        kind,
        severity,
        first.step,
        first.step,
        last.step,
        message,
        events=count,
        recovered=severity is Severity.INFO,
        place=first.place,
        attempt=starts.get(first.attempt, first.attempt),
        evidence={**first.evidence, "count": float(count)},
        remedies=REMEDIES.get(kind, ()) if severity > Severity.INFO else (),
    )
