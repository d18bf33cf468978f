"""Turns events, which are steps, into episodes, which have a beginning, a worst point and an end.

In: the events of a run and its curves. Out: episodes; neighbouring events of one kind are one. Where the curve they
were seen in is known, it tells where they ended and whether things were as before afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from mlflow_stability.curves.curves import Curve, RunCurves
from mlflow_stability.detectors.detector import Detector
from mlflow_stability.diagnosis.findings.notes import also_known
from mlflow_stability.kinds.reported.setup import ConfigurationFacts, MissingZeroGrad
from mlflow_stability.vocabulary.facts import Facts, PeakFacts
from mlflow_stability.vocabulary.result import Finding, Severity, Span, Where
from mlflow_stability.vocabulary.run import RunHistory

NEIGHBOURS = 16
"""Events of one kind at most so many logged points apart are one episode."""
BEFORE = 32
"""So many values before an event say what was normal."""
LEFT = 0.05
"""A loss that ended this share lower than where it stood still has left that plateau."""
NON_FINITE = ("nan_detected", "inf_detected")
REMARKS = frozenset({"model_lint", "not_measured", "configuration_changed", "give_up"})
"""Kinds whose facts are about something else each, so that several at one step stay several."""
RISING = frozenset({"divergence", "gradient_explosion", "loss_spike"})
"""Kinds that end when the curve is back where it was."""


def episodes_of(
    events: Iterable[Finding],
    history: RunHistory,
    curves: RunCurves,
    starts: dict[int, int],
    detectors: Sequence[Detector],
) -> list[Finding]:
    """The episodes, in order of time; by a threshold that somebody gave, each excursion above it is one of its own."""
    alone = {each.kind for each in detectors if getattr(each, "threshold_alone", False)}
    quantities = {detector.kind: detector.quantities for detector in detectors}
    experimental = {each.kind for each in detectors if getattr(each, "experimental", False)}
    groups: dict[tuple[str, str, int, Facts | None], list[Finding]] = {}
    for event in events:
        remark = event.facts if event.kind in REMARKS else None
        start = starts.get(event.attempt, event.attempt)
        groups.setdefault((event.kind, event.place, start, remark), []).append(event)
    found = []
    for (kind, _, start, _), group in groups.items():
        name = _metric(history, quantities.get(kind, ()), group[0])
        curve = _curve(curves, name, start)
        gap = (1 if kind in alone else NEIGHBOURS) * (curve.distance if curve is not None else 1.0)
        group.sort(key=lambda event: event.step)
        runs: list[list[Finding]] = []
        for event in group:
            since = event.step if event.facts.found_first is None else event.facts.found_first
            if runs and since - runs[-1][-1].step <= gap:
                runs[-1].append(event)
            else:
                runs.append([event])
        for run in runs:
            episode = _episode(run, name, start, experimental=kind in experimental)
            if kind == MissingZeroGrad.kind:
                found.append(_cleared(episode, history))
            else:
                found.append(episode if curve is None else _ended(episode, curve))
    return sorted(found, key=lambda each: (each.attempt, each.start))


def _episode(events: list[Finding], metric: str, start: int, *, experimental: bool) -> Finding:
    first, worst = events[0], max(events, key=lambda event: event.severity)
    telling = worst if first.severity is Severity.INFO else first  # it says what came of the first one
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


def _cleared(episode: Finding, history: RunHistory) -> Finding:
    """Gradients that were not cleared, with whether they were in the end, and since when."""
    again = cleared_from(episode.start, history.events or ())
    return episode.with_span(recovered=again is not None, end=episode.end if again is None else again)


def _ended(episode: Finding, curve: Curve) -> Finding:
    """With what the curve shows of how it went on."""
    if episode.kind in RISING:
        return _placed(episode, curve)
    last = np.flatnonzero(curve.finite)
    if episode.kind in NON_FINITE and len(last):
        recovered = bool(curve.steps[last[-1]] > episode.end)
        return episode.with_span(recovered=recovered, end=episode.end if recovered else int(curve.steps[-1]))
    if episode.kind == "plateau" and len(last):
        values = curve.values[last]
        there = int(np.searchsorted(curve.steps[last], episode.start))
        then = float(np.median(values[max(0, there - BEFORE) : there + 1]))
        now = float(np.median(values[-max(3, len(values) // 20) :]))
        return episode.with_span(recovered=now < then - LEFT * abs(then))
    return episode


def _placed(episode: Finding, curve: Curve) -> Finding:
    """With its worst point, its end, and whether the curve was as before afterwards, as the curve shows them."""
    finite = curve.finite
    steps, values = curve.steps[finite], curve.values[finite]
    first = int(np.searchsorted(steps, episode.start))
    final = int(np.searchsorted(steps, episode.end, side="right"))
    if first < 3 or final > len(steps) or final <= first:
        return episode
    before = values[max(0, first - BEFORE) : first]
    usual, high = float(np.median(before)), float(values[first:final].max())
    limit = usual + max(0.25 * (high - usual), 3 * float(np.median(np.abs(before - usual))))
    back = (values[final:] <= limit).astype(np.int64)
    thrice = np.convolve(back, np.ones(3, np.int64), "valid") == 3 if len(back) >= 3 else np.zeros(0, bool)
    calm = np.flatnonzero(thrice)
    end = final + int(calm[0]) - 1 if len(calm) else len(values) - 1
    peak = first + int(np.argmax(values[first : end + 1]))
    recovered = bool(len(calm)) if len(values) - final >= 3 else None
    if episode.kind == "divergence":
        recovered = float(np.median(values[-max(3, len(values) // 20) :])) <= limit
        recovered = recovered and (bool(len(calm)) or float(np.median(values[-min(5, len(values)) :])) <= limit)
        end = end if recovered else len(values) - 1
    placed = episode.with_span(peak=int(steps[peak]), end=max(int(steps[end]), episode.end), recovered=recovered)
    return replace(placed, also=(*episode.also, PeakFacts(float(values[peak]))))


def _metric(history: RunHistory, quantities: tuple[str, ...], event: Finding) -> str:
    """The metric that an event was seen in: of the quantities that its detector looks at the one that it speaks of."""
    named = [quantity for quantity in quantities if quantity in event.metrics]
    rest = sorted(quantities, key=lambda each: each != ("grad_norm" if "gradient" in event.kind else "loss"))
    for quantity in (*named, *rest):
        for metric in history.of(quantity):
            if metric.meaning.place == event.place and not metric.meaning.duplicate_of:
                return metric.name
    return ""


def _curve(curves: RunCurves, name: str, start: int) -> Curve | None:
    every = (*curves.losses, *curves.validations, *curves.norms)
    return next((each for each in every if each.name == name and each.attempt == start), None)


def cleared_from(first: int, events: Iterable[Finding]) -> int | None:
    """From which step on gradients that were not cleared since step ``first`` were; None: to the end they were not."""
    changes = ((each.step, each.facts) for each in events)
    again = (
        step for step, facts in changes if isinstance(facts, ConfigurationFacts) and facts.not_cleared_since == first
    )
    return min(again, default=None)


def persists(episode: Finding) -> bool:
    """Whether it says that gradients are not cleared, to the end."""
    return episode.kind == MissingZeroGrad.kind and episode.recovered is False
