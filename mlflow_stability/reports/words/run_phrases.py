"""The phrases that every report words alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from mlflow_stability.diagnosis.causes.catalog import cause_phrase
from mlflow_stability.diagnosis.verdict import title_of
from mlflow_stability.kinds.catalog import bare_noun_of
from mlflow_stability.reports.report import Report
from mlflow_stability.reports.terminal_kit import number_text
from mlflow_stability.vocabulary.result import Cause, CurveReading, Diagnosis, Finding, Severity
from mlflow_stability.vocabulary.text import changed, counted

OUTCOMES = {"cannot_tell": "cannot tell", "not_found": "not found", "out_of_memory": "out of memory"}
"""Words for programs that people would write otherwise."""
TRENDS = {
    "strong": "fell strongly",
    "steady": "fell steadily",
    "marginal": "fell slightly",
    "flat": "did not change",
    "rising": "rose",
}
STABILITIES = {"smooth": "low noise"}
SHAPES = {"u-shape": "U-shaped"}
FEW_NAMES = 3
"""Of so many names at most each is told."""
WELL = frozenset({"healthy", "cannot_tell", "not_found"})
"""The outcomes that are no trouble."""


def outcome(diagnosis: Diagnosis) -> str:
    """``healthy``, ``out of memory``."""
    return OUTCOMES.get(diagnosis.outcome, diagnosis.outcome)


def headline(diagnosis: Diagnosis) -> tuple[str, str]:
    """The outcome and the sentence about it; a sentence that begins with the outcome does not say it twice."""
    word = title_of(outcome(diagnosis), diagnosis.findings)
    return word, diagnosis.verdict.removeprefix(f"{word}: ")


def counts(report: Report) -> str:
    """``1 critical, 2 warnings``; ``no findings`` where that is all."""
    return _counts({each: report.count(each) for each in Severity}) or "no findings"


def counts_of(diagnosis: Diagnosis) -> str:
    """The same for one run, behind the word ``findings``: ``none`` where there are none."""
    return _counts(Counter(each.severity for each in diagnosis.findings)) or "none"


def read(report: Report) -> str:
    """``3 files and 1 run``."""
    parts = []
    if report.asked_for_files:
        parts.append(counted(report.files, "file"))
    if report.asked_for_runs or not parts:
        parts.append(counted(report.runs, "run"))
    return " and ".join(parts)


def basis(diagnosis: Diagnosis) -> str:
    """What the diagnosis was made from, and over which steps."""
    span = f", {diagnosis.unit}s {diagnosis.steps[0]:,} to {diagnosis.steps[1]:,}" if diagnosis.steps else ""
    return f"{diagnosis.basis}{span}" if diagnosis.basis else f"{counted(diagnosis.points, 'value')}{span}"


def judged(diagnosis: Diagnosis) -> str:
    """``loss_seg/train, validation loss_seg/val (6 other curves)``: which curves the diagnosis was made from."""
    chosen = diagnosis.judged
    found = _some_of(chosen.losses) or "no loss"
    found += f", validation {_some_of(chosen.validations)}" if chosen.validations else ", no validation loss"
    return found + (f" ({counted(chosen.others, 'other curve')})" if chosen.others else "")


def _some_of(names: Sequence[str]) -> str:
    return ", ".join(names[:FEW_NAMES]) + (f" and {len(names) - FEW_NAMES} more" if len(names) > FEW_NAMES else "")


def ending(diagnosis: Diagnosis) -> tuple[str, str] | None:
    """What to call how the process ended, and how it did; None where nobody can know."""
    if not diagnosis.ended:
        return None
    ended = diagnosis.ended.replace("_", " ")
    stopped = diagnosis.early_stopping_step
    if stopped is not None:
        ended = f"stopped by stop_on at {diagnosis.unit} {stopped}" + (f", {ended}" if ended != "stopped" else "")
    elif ended == "stopped":
        ended = "stopped on purpose"
    return "now" if diagnosis.ended == "running" else "ended", ended


def steps(episode: Finding) -> str:
    """``step 600``, ``steps 600 to 812``."""
    if episode.end <= episode.start:
        return f"{episode.unit} {episode.start:,}"
    return f"{episode.unit}s {episode.start:,} to {episode.end:,}"


def where(episode: Finding) -> str:
    """When and where, in a half sentence: ``steps 600 to 812, worst at 790, in train/loss, recovered``."""
    parts = [steps(episode)]
    if episode.peak not in (episode.start, episode.end):
        parts.append(f"worst at {episode.peak:,}")
    if episode.attempt:
        parts.append(f"attempt {episode.attempt + 1}")
    name = episode.metric or episode.place
    if name:
        parts.append(f"in {name}" + (f" ({episode.place})" if episode.place and episode.place not in name else ""))
    if episode.recovered is not None:
        parts.append("recovered" if episode.recovered else "not recovered")
    if episode.experimental:
        parts.append("experimental")
    return ", ".join(parts)


def bare_cause_name(cause: Cause) -> str:
    """``learning rate too high``, ``overflow in decoder``."""
    return cause_phrase(cause.name) + (f" in {cause.place}" if cause.place else "")


def cause_name(cause: Cause) -> str:
    """``learning rate too high (likely)``."""
    return f"{bare_cause_name(cause)} ({cause.certainty})"


def explained(diagnosis: Diagnosis) -> str:
    """``divergence at step 402``: which of several findings the cause explains.

    Empty where there is one finding, or where the finding is its own cause.
    """
    cause = diagnosis.cause
    several = sum(each.severity > Severity.INFO for each in diagnosis.findings) > 1
    if cause is None or cause.step is None or cause.name == cause.kind or not several:
        return ""
    return f"{bare_noun_of(cause.kind)} at {diagnosis.unit} {cause.step:,}"


def own_cause(episode: Finding, diagnosis: Diagnosis) -> Cause | None:
    """The cause of an episode; None where it is told as the cause of what decides the outcome."""
    cause, deciding = episode.cause, diagnosis.cause
    same = cause is not None and deciding is not None and cause.is_same(deciding)
    return None if same else cause


def is_unsaid_birth(episode: Finding, diagnosis: Diagnosis) -> bool:
    """Whether an episode tells where the first number that is not finite was born, and nothing else does."""
    if episode.kind != "nan_origin":
        return False
    told = () if diagnosis.cause is None else diagnosis.cause.repeats
    others = (repeated for each in diagnosis.findings for repeated in each.repeats)
    return (episode.kind, episode.start) not in (*told, *others)


def evidence(episode: Finding) -> str:
    """``z 12.4, loss 8.31``."""
    return ", ".join(f"{name} {number_text(value)}" for name, value in episode.metrics.items())


def character(reading: CurveReading) -> str:
    """``fell strongly, low noise, monotone, decay``; empty where nothing is known."""
    words = [
        TRENDS.get(reading.trend, reading.trend),
        STABILITIES.get(reading.stability, reading.stability),
        reading.pattern,
        SHAPES.get(reading.shape, reading.shape),
        "" if reading.health == "ok" else reading.health,
    ]
    return ", ".join(word for word in words if word)


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


def _counts(numbers: Mapping[Severity, int]) -> str:
    said = {
        Severity.CRITICAL: f"{numbers.get(Severity.CRITICAL, 0):,} critical",
        Severity.WARNING: counted(numbers.get(Severity.WARNING, 0), "warning"),
        Severity.INFO: f"{numbers.get(Severity.INFO, 0):,} info",
    }
    return ", ".join(text for severity, text in said.items() if numbers.get(severity))
