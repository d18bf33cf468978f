"""Sections of a run's report, from summary to notes, and its curves prepared for drawing; every format draws these."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.reports import run_phrases as wording
from mlflow_stability.reports.report import Report
from mlflow_stability.reports.sections import Row, Section, Sign, sentences
from mlflow_stability.vocabulary.result import CurveReading, Diagnosis, Finding, Sketch
from mlflow_stability.vocabulary.text.phrases import number_text

FEW_REMEDIES, FEW_REASONS = 5, 4  # rows that a terminal shows without --verbose
HEADINGS = {"certain": "Cause", "likely": "Likely cause", "possible": "Possible cause"}
"""By the certainty of the cause."""
CURVES_HEAD = ("metric", "first", "last", "best", "shape", "figures")


@dataclass(frozen=True, slots=True)
class FindingRow:
    episode: Finding
    number: int  # its place in the list and beneath the curve
    where: str
    evidence: str
    cause: str  # empty where the section on the run's cause states it
    remedies: tuple[str, ...]  # those that no earlier finding of its kind has shown


@dataclass(frozen=True, slots=True)
class RunSections:
    diagnosis: Diagnosis
    title: str
    outcome: str
    verdict: str
    summary: Section
    findings: tuple[FindingRow, ...]
    cause: Section
    ruled_out: Section
    actions: Section
    curves: Section
    not_checked: Section
    notes: Section

    @property
    def lead(self) -> tuple[Section, ...]:
        """What comes right beneath the verdict: why, and what to do."""
        return self.cause, self.actions

    @property
    def after_findings(self) -> tuple[Section, ...]:
        """What comes beneath the findings, in order."""
        return self.ruled_out, self.curves, self.not_checked, self.notes


def run_sections(diagnosis: Diagnosis) -> RunSections:
    outcome, verdict = wording.headline(diagnosis)
    cause = diagnosis.cause
    not_checked = (*(cause.not_checked if cause else ()), *map(str, diagnosis.cannot_tell))
    return RunSections(
        diagnosis,
        diagnosis.name or diagnosis.source,
        outcome,
        verdict,
        Section("Summary", tuple(Row((fact,), label, Sign.LABEL) for label, fact in _facts(diagnosis))),
        tuple(_findings(diagnosis)),
        Section(HEADINGS[cause.certainty] if cause else "", tuple(_reasons(diagnosis))),
        sentences("Ruled out", cause.ruled_out if cause else ()),
        sentences("What to do", map(str, diagnosis.remedies), Sign.NUMBER, FEW_REMEDIES),
        Section("Curves", tuple(map(_curve, diagnosis.curves)), CURVES_HEAD, frozenset(CURVES_HEAD[1:4])),
        sentences("Not checked", not_checked, few=FEW_REASONS),
        sentences("Notes", diagnosis.notes, few=FEW_REASONS),
    )


def overview(report: Report) -> Section:
    """Return a row for each run, with its source where that is not its name."""
    rows = []
    for diagnosis in report.diagnoses:
        cells = (
            wording.outcome(diagnosis),
            wording.cause_name(diagnosis.cause) if diagnosis.cause else "",
            f"{diagnosis.steps[1]:,}" if diagnosis.steps else "",
            wording.counts_of(diagnosis),
        )
        source = diagnosis.source if diagnosis.name and diagnosis.name != diagnosis.source else ""
        rows.append(Row(cells, diagnosis.name or diagnosis.source, note=source))
    return Section("", tuple(rows), ("run", "outcome", "cause", "last step", "findings"), frozenset({"last step"}))


def _facts(diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    if diagnosis.source != diagnosis.name:
        yield "source", diagnosis.source
    yield "data", wording.basis(diagnosis)
    yield "judged", wording.judged(diagnosis)
    ending = wording.ending(diagnosis)
    if ending is not None:
        yield ending
    yield "findings", wording.counts_of(diagnosis)


def _findings(diagnosis: Diagnosis) -> Iterator[FindingRow]:
    kinds: set[str] = set()
    for number, finding in enumerate(diagnosis.findings, start=1):
        cause = wording.own_cause(finding, diagnosis)
        yield FindingRow(
            finding,
            number,
            wording.where(finding),
            wording.evidence(finding),
            f"{wording.cause_name(cause)}: {cause.statement}" if cause else "",
            () if finding.kind in kinds else tuple(map(str, finding.remedies)),
        )
        kinds.add(finding.kind)


def _reasons(diagnosis: Diagnosis) -> Iterator[Row]:
    cause = diagnosis.cause
    if cause is None:
        return
    yield Row((cause.statement,), wording.bare_cause_name(cause), Sign.LEAD)
    if wording.explained(diagnosis):
        yield Row((f"Explains the {wording.explained(diagnosis)}.",), sign=Sign.LEAD)
    yield from (Row((evidence,), sign=Sign.FOR) for evidence in cause.evidence)


def _curve(reading: CurveReading) -> Row:
    best = f"{number_text(reading.best)} at {reading.unit} {reading.best_step:,}"
    ends = (number_text(reading.first), number_text(reading.last))
    return Row((*ends, best, wording.character(reading), wording.figures(reading)), reading.metric)


MIN_LOG_RATIO = 10.0
"""From this ratio of the highest to the lowest value on, the scale is logarithmic, so that a spike leaves the rest
readable."""


@dataclass(frozen=True, slots=True, eq=False)
class DrawnCurve:
    metric: str
    steps: NDArray[np.int64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    first: int
    last: int
    final: float  # the last value; of a stretch of several, its middle
    bottom: float  # the lowest finite value, or NaN, as `top`
    top: float
    logarithmic: bool

    @property
    def finite(self) -> NDArray[np.bool_]:
        """Which stretches have a finite value."""
        return np.isfinite(self.low) & np.isfinite(self.high)


def drawn_curves(diagnosis: Diagnosis) -> list[DrawnCurve]:
    readings = {(reading.metric, reading.first_step): reading for reading in diagnosis.curves}
    drawable = [sketch for sketch in diagnosis.sketches if sketch.steps]
    return [_drawn_curve(sketch, readings.get((sketch.metric, sketch.steps[0]))) for sketch in drawable]


def marked_at(
    curve: DrawnCurve, curves: Sequence[DrawnCurve], numbered: Sequence[tuple[int, Finding]]
) -> list[tuple[int, Finding]]:
    """Return the findings to mark at one of these curves: its own, and at the first one those of no other curve.

    What begins within a curve that follows the first, as of a later training, is marked there.
    """
    first, *others = curves

    def belongs_to(other: DrawnCurve, finding: Finding) -> bool:
        return first.last < other.first <= finding.start <= other.last

    if curve is first:
        return [pair for pair in numbered if not any(belongs_to(other, pair[1]) for other in others)]
    return [pair for pair in numbered if pair[1].metric == curve.metric or belongs_to(curve, pair[1])]


def _drawn_curve(sketch: Sketch, reading: CurveReading | None) -> DrawnCurve:
    steps = np.asarray(sketch.steps, np.int64)
    low, high = np.asarray(sketch.low, np.float64), np.asarray(sketch.high, np.float64)
    finite = np.isfinite(low) & np.isfinite(high)
    bottom, top = (float(low[finite].min()), float(high[finite].max())) if finite.any() else (np.nan, np.nan)
    first, last = int(steps.min()), int(steps.max())
    at_end = int(steps.argmax())
    final = float(sketch.low[at_end]) / 2 + float(sketch.high[at_end]) / 2  # NaN between both infinities
    if reading is not None:  # the sketch has only the first step of its last stretch
        last, final = max(last, reading.last_step), reading.last if np.isfinite(final) else final
    return DrawnCurve(
        sketch.metric,
        steps,
        low,
        high,
        first,
        last,
        final,
        bottom,
        top,
        bool(bottom > 0 and top / MIN_LOG_RATIO > bottom),
    )
