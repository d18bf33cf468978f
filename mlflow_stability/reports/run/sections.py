"""Sections of a run's report, from summary to notes; every format draws these.

In: a `Diagnosis`. Out: `RunSections`. Guarantees: the same diagnosis gives the same sections.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mlflow_stability.reports.report import Report
from mlflow_stability.reports.sections import Row, Section, Sign, sentences
from mlflow_stability.reports.terminal_kit import number_text
from mlflow_stability.reports.words import run_phrases as wording
from mlflow_stability.vocabulary.result import CurveReading, Diagnosis, Finding

FEW_REMEDIES, FEW_REASONS = 5, 4
HEADINGS = {"certain": "Cause", "likely": "Likely cause", "possible": "Possible cause"}
"""How sure a cause is."""
CURVES_HEAD = ("metric", "first", "last", "best", "shape", "figures")


@dataclass(frozen=True, slots=True)
class FindingRow:
    """One episode as it is shown."""

    episode: Finding
    number: int
    """Its place in the list and beneath the curve."""
    where: str
    evidence: str
    cause: str
    """Empty where the run's section on its cause says it."""
    remedies: tuple[str, ...]
    """Those that no earlier finding of its kind has shown."""


@dataclass(frozen=True, slots=True)
class RunSections:
    """Everything a report says about one run."""

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
    """The sections of one run."""
    outcome, verdict = wording.headline(diagnosis)
    cause = diagnosis.cause
    return RunSections(
        diagnosis,
        diagnosis.name or diagnosis.source,
        outcome,
        verdict,
        Section("Summary", tuple(Row((said,), label, Sign.LABEL) for label, said in _facts(diagnosis))),
        tuple(_findings(diagnosis)),
        Section(HEADINGS[cause.certainty] if cause else "", tuple(_why(diagnosis))),
        sentences("Ruled out", cause.ruled_out if cause else ()),
        sentences("What to do", map(str, diagnosis.remedies), Sign.NUMBER, FEW_REMEDIES),
        Section("Curves", tuple(map(_curve, diagnosis.curves)), CURVES_HEAD, frozenset(CURVES_HEAD[1:4])),
        sentences("Not checked", _not_checked(diagnosis), few=FEW_REASONS),
        sentences("Notes", diagnosis.notes, few=FEW_REASONS),
    )


def _not_checked(diagnosis: Diagnosis) -> tuple[str, ...]:
    causes = () if diagnosis.cause is None else diagnosis.cause.not_checked
    return (*causes, *map(str, diagnosis.cannot_tell))


def overview(report: Report) -> Section:
    """A row for each of several runs, with its source where that says more than its name."""
    rows = tuple(
        Row(
            (
                wording.outcome(each),
                wording.cause_name(each.cause) if each.cause else "",
                f"{each.steps[1]:,}" if each.steps else "",
                wording.counts_of(each),
            ),
            each.name or each.source,
            note=each.source if each.name and each.name != each.source else "",
        )
        for each in report.diagnoses
    )
    return Section("", rows, ("run", "outcome", "cause", "last step", "findings"), frozenset({"last step"}))


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
    for number, episode in enumerate(diagnosis.findings, start=1):
        cause = wording.own_cause(episode, diagnosis)
        yield FindingRow(
            episode,
            number,
            wording.where(episode),
            wording.evidence(episode),
            f"{wording.cause_name(cause)}: {cause.statement}" if cause else "",
            () if episode.kind in kinds else tuple(map(str, episode.remedies)),
        )
        kinds.add(episode.kind)


def _why(diagnosis: Diagnosis) -> Iterator[Row]:
    cause = diagnosis.cause
    if cause is None:
        return
    yield Row((cause.statement,), wording.bare_cause_name(cause), Sign.LEAD)
    if wording.explained(diagnosis):
        yield Row((f"Explains the {wording.explained(diagnosis)}.",), sign=Sign.LEAD)
    yield from (Row((each,), sign=Sign.FOR) for each in cause.evidence)


def _curve(reading: CurveReading) -> Row:
    best = f"{number_text(reading.best)} at {reading.unit} {reading.best_step:,}"
    ends = (number_text(reading.first), number_text(reading.last))
    return Row((*ends, best, wording.character(reading), wording.figures(reading)), reading.metric)
