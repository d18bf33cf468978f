"""Phrases of the reports of runs, the same in every format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from mlflow_stability.diagnosis.causes.catalog import cause_phrase
from mlflow_stability.diagnosis.verdict import title_of
from mlflow_stability.kinds.catalog import bare_noun_of
from mlflow_stability.reports.report import Report
from mlflow_stability.vocabulary.result import Cause, CurveReading, Diagnosis, Finding, Severity
from mlflow_stability.vocabulary.text.phrases import changed, counted, number_text, some_of

TRENDS = {
    "strong": "fell strongly",
    "steady": "fell steadily",
    "marginal": "fell slightly",
    "flat": "did not change",
    "rising": "rose",
}
NO_TROUBLE = frozenset({"healthy", "cannot_tell", "not_found"})  # outcomes that are no trouble


def outcome(diagnosis: Diagnosis) -> str:
    return diagnosis.outcome.replace("_", " ")


def headline(diagnosis: Diagnosis) -> tuple[str, str]:
    """The outcome, and the verdict without the outcome at its beginning."""
    word = title_of(outcome(diagnosis), diagnosis.findings)
    return word, diagnosis.verdict.removeprefix(f"{word}: ")


def counts(report: Report) -> str:
    """``1 critical, 2 warnings``; ``no findings``."""
    return _counts({severity: report.count(severity) for severity in Severity}) or "no findings"


def counts_of(diagnosis: Diagnosis) -> str:
    """The same for one run, behind the word ``findings``; ``none``."""
    return _counts(Counter(finding.severity for finding in diagnosis.findings)) or "none"


def _counts(numbers: Mapping[Severity, int]) -> str:
    phrases = {
        Severity.CRITICAL: f"{numbers.get(Severity.CRITICAL, 0):,} critical",
        Severity.WARNING: counted(numbers.get(Severity.WARNING, 0), "warning"),
        Severity.INFO: f"{numbers.get(Severity.INFO, 0):,} info",
    }
    return ", ".join(phrase for severity, phrase in phrases.items() if numbers.get(severity))


def read(report: Report) -> str:
    """``3 files and 1 run``."""
    parts = []
    if report.asked_for_files:
        parts.append(counted(report.files, "file"))
    if report.asked_for_runs or not parts:
        parts.append(counted(report.runs, "run"))
    return " and ".join(parts)


def basis(diagnosis: Diagnosis) -> str:
    """The data that the diagnosis was made from, and over which steps."""
    span = f", {diagnosis.unit}s {diagnosis.steps[0]:,} to {diagnosis.steps[1]:,}" if diagnosis.steps else ""
    return f"{diagnosis.basis}{span}" if diagnosis.basis else f"{counted(diagnosis.points, 'value')}{span}"


def judged(diagnosis: Diagnosis) -> str:
    """``loss_seg/train, validation loss_seg/val (6 other curves)``: the curves that the diagnosis was made from."""
    curves = diagnosis.judged
    losses = some_of(curves.losses) or "no loss"
    validations = f"validation {some_of(curves.validations)}" if curves.validations else "no validation loss"
    others = f" ({counted(curves.others, 'other curve')})" if curves.others else ""
    return f"{losses}, {validations}{others}"


def ending(diagnosis: Diagnosis) -> tuple[str, str] | None:
    """A label and a phrase about how the process ended; None where that is unknown."""
    if not diagnosis.ended:
        return None
    ended = diagnosis.ended.replace("_", " ")
    stopped_at = diagnosis.early_stopping_step
    if stopped_at is not None:
        ended = f"stopped by stop_on at {diagnosis.unit} {stopped_at}" + (f", {ended}" if ended != "stopped" else "")
    elif ended == "stopped":
        ended = "stopped on purpose"
    return "now" if diagnosis.ended == "running" else "ended", ended


def steps(finding: Finding) -> str:
    """``step 600``, ``steps 600 to 812``."""
    if finding.end <= finding.start:
        return f"{finding.unit} {finding.start:,}"
    return f"{finding.unit}s {finding.start:,} to {finding.end:,}"


def where(finding: Finding) -> str:
    """When and where, in a half sentence: ``steps 600 to 812, worst at 790, in train/loss, recovered``."""
    parts = [steps(finding)]
    if finding.peak not in (finding.start, finding.end):
        parts.append(f"worst at {finding.peak:,}")
    if finding.attempt:
        parts.append(f"attempt {finding.attempt + 1}")
    metric = finding.metric if finding.metric != finding.kind else ""  # the line begins with the kind
    name = metric or finding.place
    if name:
        parts.append(f"in {name}" + (f" ({finding.place})" if finding.place and finding.place not in name else ""))
    if finding.recovered is not None:
        parts.append("recovered" if finding.recovered else "not recovered")
    if finding.experimental:
        parts.append("experimental")
    return ", ".join(parts)


def bare_cause_name(cause: Cause) -> str:
    """``learning rate too high``, ``overflow in decoder``."""
    return cause_phrase(cause.name) + (f" in {cause.place}" if cause.place else "")


def cause_name(cause: Cause) -> str:
    """``learning rate too high (likely)``."""
    return f"{bare_cause_name(cause)} ({cause.certainty})"


def explained(diagnosis: Diagnosis) -> str:
    """``divergence at step 402``: the finding that the cause explains; empty if it is the only one or its cause."""
    cause = diagnosis.cause
    several = sum(finding.severity > Severity.INFO for finding in diagnosis.findings) > 1
    if cause is None or cause.step is None or cause.name == cause.kind or not several:
        return ""
    return f"{bare_noun_of(cause.kind)} at {diagnosis.unit} {cause.step:,}"


def own_cause(finding: Finding, diagnosis: Diagnosis) -> Cause | None:
    """The cause of a finding; None where it is also the cause of the outcome and shown there."""
    cause, deciding = finding.cause, diagnosis.cause
    same = cause is not None and deciding is not None and cause.is_same(deciding)
    return None if same else cause


def is_unreported_origin(finding: Finding, diagnosis: Diagnosis) -> bool:
    """Whether it is the origin of the first non-finite value, and neither cause nor other findings report that."""
    if finding.kind != "nan_origin":
        return False
    in_cause = () if diagnosis.cause is None else diagnosis.cause.repeats
    in_findings = (repeated for other in diagnosis.findings for repeated in other.repeats)
    return (finding.kind, finding.start) not in (*in_cause, *in_findings)


def evidence(finding: Finding) -> str:
    """``z 12.4, loss 8.31``."""
    return ", ".join(f"{name} {number_text(value)}" for name, value in finding.metrics.items())


def character(reading: CurveReading) -> str:
    """``fell strongly, low noise, monotone, decay``; empty where nothing is known."""
    words = [
        TRENDS.get(reading.trend, reading.trend),
        "low noise" if reading.stability == "smooth" else reading.stability,
        reading.pattern,
        "U-shaped" if reading.shape == "u-shape" else reading.shape,
        "" if reading.health == "ok" else reading.health,
    ]
    return ", ".join(filter(None, words))


def figures(reading: CurveReading) -> str:
    """``-61% from start to end, volatility 2%``: the numbers behind those words."""
    parts = []
    if reading.change is not None:
        parts.append(changed(reading.change, positive=reading.first > 0))
    if reading.volatility is not None:
        parts.append(f"volatility {reading.volatility:.0%}")
    if reading.expected_final is not None:
        parts.append(f"expected final {number_text(reading.expected_final)}")
    if reading.spike_score is not None:
        parts.append(f"spike score {reading.spike_score:.2%}")
    return ", ".join(parts)
