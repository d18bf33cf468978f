"""Conclude a run that has ended: its report, its final tags and its description.

Guarantees: the same conclusion as `mlflow-stability diagnose`; torch is not imported.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mlflow_stability.analysis.diagnose import concluded, in_place
from mlflow_stability.courier.sinks.event_sink import events_in_words
from mlflow_stability.diagnosis.run_card import run_card_of
from mlflow_stability.diagnosis.verdict import (
    end_on_purpose,
    ended_by_autopilot,
    reason_of_end,
    title_of,
    training_outcome,
)
from mlflow_stability.kinds.inside.sparse_codes import SdrCollapse, SdrLowDiversity
from mlflow_stability.kinds.reported.endings import RepresentationSummaryFacts
from mlflow_stability.kinds.reported.rollback import rollbacks_kept
from mlflow_stability.recovery.checkpoints.stored_checkpoints import best_of, listing
from mlflow_stability.reports import run_phrases
from mlflow_stability.reports.escape import markdown
from mlflow_stability.reports.report import Report
from mlflow_stability.reports.report_format import render
from mlflow_stability.reports.run_sections import HEADINGS
from mlflow_stability.tracking import tag_names
from mlflow_stability.tracking.read.run_reader import read_run_history
from mlflow_stability.tracking.run_writer import description_summary
from mlflow_stability.vocabulary.result import Diagnosis, RunCard
from mlflow_stability.vocabulary.run import RunHistory
from mlflow_stability.vocabulary.text.phrases import capitalised, counted, how_process_ended, number_text

FEW_ACTIONS = 2
SDR_COLLAPSE = SdrCollapse.kind
MOST_VALUES = 2_000_000  # longer records are sampled: a training may still run on this machine
LONGEST_TAG = 500  # MLflow's pages show much less of a tag


@dataclass(frozen=True, slots=True)
class Conclusion:
    files: Mapping[str, str]  # by name, for the folder `stability`
    tags: Mapping[str, str]
    description: str
    verdict: str  # outcome of the training in a sentence, for its terminal
    cause: str  # ``Likely cause: …``, or empty
    codes: str  # ``SDR: 0.61 unique, no collapse.``; empty without sparse codes


def conclusion_of(run_id: str, tracking_uri: str, page: str) -> Conclusion:
    """Conclude a run; `page`: its address in MLflow's UI."""
    history = in_place(read_run_history(run_id, tracking_uri, MOST_VALUES))
    diagnosis = concluded(history, None)
    card = run_card_of(history, diagnosis)
    report = Report((diagnosis,))
    stopped = diagnosis.early_stopping_step
    # The end by the autopilot comes first: the rest may be cut off.
    ended = ended_by_autopilot(diagnosis.findings)
    first = "" if ended is None else f"Ended with TrainingDiverged at step {ended.end}: {reason_of_end(ended)} "
    tags = {
        tag_names.VERDICT: training_outcome(diagnosis),
        tag_names.OUTCOME: f"{first}{_verdict(diagnosis)}"[:LONGEST_TAG],
        tag_names.CAUSE: card.cause,
        tag_names.FINDINGS: events_in_words(Counter(finding.severity.name for finding in diagnosis.findings)),
        tag_names.FIRST_ISSUE_STEP: "" if card.onset is None else str(card.onset),
        tag_names.ROLLBACKS: str(_rollbacks(history)),
        tag_names.SKIPPED_STEPS: str(card.skipped),
        tag_names.EARLY_STOPPING_STEP: "" if stopped is None else str(stopped),
    }
    return Conclusion(
        {f"report.{name}": render(report, name) for name in ("html", "json")},
        {name: value for name, value in tags.items() if value},
        _description(history, diagnosis, card, page),
        _first_sentence(diagnosis.verdict),
        _cause(diagnosis),
        _codes(history, diagnosis),
    )


def best_checkpoint(directory: Path | None) -> str:
    """``Best checkpoint: step 900 (loss 0.0852).``; empty without a good checkpoint."""
    stored = () if directory is None else listing(directory)
    best = best_of([checkpoint.meta for checkpoint in stored if checkpoint.meta is not None])
    if best is None:
        return ""
    name, value = ("loss", best.loss) if best.value is None else (best.best_by or "loss", best.value)
    return f"Best checkpoint: step {best.step:,} ({name} {value:.4g})."


def _first_sentence(text: str) -> str:
    return f"{text.partition('. ')[0].rstrip('.')}."


def _cause(diagnosis: Diagnosis) -> str:
    cause = diagnosis.cause
    if cause is None:
        return ""
    statement = _first_sentence(cause.statement)
    begin = statement[0].lower() if statement[1:2].islower() or statement[1:2] == " " else statement[0]
    return f"{HEADINGS[cause.certainty]}: {begin}{statement[1:]}"


def _codes(history: RunHistory, diagnosis: Diagnosis) -> str:
    """Describe sparse codes: share of unique patterns at the end, and their first collapse."""
    events = history.events or ()
    summaries = (event.facts for event in events if isinstance(event.facts, RepresentationSummaryFacts))
    shares = [facts.last_unique_ratio for facts in summaries if facts.last_unique_ratio is not None]
    if not shares:
        return ""
    low, high = min(shares), max(shares)
    unique = f"{low:.2f}" if len(shares) == 1 else f"{low:.2f} to {high:.2f}"
    where = "" if len(shares) == 1 else f" in {len(shares)} modules"
    collapse = min(
        (event for event in events if event.kind == SDR_COLLAPSE), key=lambda event: event.step, default=None
    )
    if collapse is None:
        is_cause = diagnosis.cause is not None and diagnosis.cause.name == SDR_COLLAPSE
        low = is_cause or any(event.kind == SdrLowDiversity.kind for event in events)
        return f"SDR: {unique} unique{where}, {'low diversity' if low else 'no collapse'}."
    of = "" if len(shares) == 1 else f" of {collapse.place}"
    return f"SDR: {unique} unique{where}, collapse{of} at step {collapse.step:,}."


def _description(history: RunHistory, diagnosis: Diagnosis, card: RunCard, page: str) -> str:
    """MLflow shows five lines before "Show more": what happened, why and what to do come first."""
    cause = diagnosis.cause
    word = training_outcome(diagnosis)
    verdict, _, more = _verdict(diagnosis).partition(". ")
    first, *others = [str(remedy) for remedy in diagnosis.remedies[:FEW_ACTIONS]] or [""]
    why, _, evidence = cause.statement.partition(". ") if cause else ("", "", "")
    ended = ended_by_autopilot(diagnosis.findings)
    stopped = "" if ended is None else f"TrainingDiverged at step {ended.end}. {reason_of_end(ended)}"
    lines = [
        f"**Ended by mlflow-stability:** {markdown(stopped)}" if stopped else "",
        markdown(f"{verdict.rstrip('.')}."),
        f"**{HEADINGS[cause.certainty]}:** {markdown(why.rstrip('.'))}." if cause else "",
        f"**What to do:** {markdown(first)}" if first else "",
    ]
    paragraphs = [
        "  \n".join(filter(None, lines)),
        markdown(more),
        markdown(evidence),
        *(f"**Then:** {markdown(remedy)}" for remedy in others),
        _end_of_process(history, diagnosis),
        _not_recorded(history),
        _figures(history, diagnosis, card),
        markdown(_codes(history, diagnosis)),
        _links(page),
    ]
    title = title_of(word, diagnosis.findings)
    # Two titles of verdicts are no outcomes: "Check the set-up" and "Stopped".
    headline = word.replace("_", " ") if title == word.capitalize() else title[0].lower() + title[1:]
    return description_summary(headline, paragraphs)


def _verdict(diagnosis: Diagnosis) -> str:
    """Return the verdict without its word and cause, which have places of their own."""
    _, verdict = run_phrases.headline(diagnosis)
    if diagnosis.cause is not None:
        verdict = verdict.replace(diagnosis.cause.statement, "").replace("  ", " ").strip()
    if ended_by_autopilot(diagnosis.findings) is not None:  # has a line of its own
        verdict = verdict.replace(end_on_purpose(diagnosis.findings), "")
    return capitalised(verdict)


def _end_of_process(history: RunHistory, diagnosis: Diagnosis) -> str:
    """Describe the end of the process, if it did not end normally and nothing else says so."""
    if history.outcome == "stopped" and ended_by_autopilot(diagnosis.findings) is not None:
        return ""
    if history.outcome in ("", "finished", "running") or diagnosis.outcome == history.outcome:
        return ""
    detail = f": {history.outcome_detail}" if history.outcome_detail else ""
    return markdown(f"{how_process_ended(history.outcome)}{detail}.")


def _not_recorded(history: RunHistory) -> str:
    """Name missing steps, and parts that were switched off."""
    missing = [f"steps {gap.first_step} to {gap.last_step} ({gap.reason})" for gap in history.gaps]
    off = history.tags.get(f"{tag_names.PREFIX}degraded")
    sentences = ([f"Not recorded: {', '.join(missing)}."] if missing else []) + (
        [f"Switched off: {off}."] if off else []
    )
    return markdown(" ".join(sentences)) if sentences else ""


def _figures(history: RunHistory, diagnosis: Diagnosis, card: RunCard) -> str:
    """``300 steps · loss 4.16 → 0.003, lowest 0.002 at step 290 · 1 rollback · 26 steps/s · overhead 1.2 %``.

    The losses are those of the report; a card has medians instead, for comparing runs.
    """
    figures = [f"{card.steps:,} steps"] if card.steps else []
    if diagnosis.curves:
        loss = diagnosis.curves[0]
        ended = math.nan if loss.health == "broken" else loss.last
        best = f"lowest {number_text(loss.best)} at {loss.unit} {loss.best_step:,}"
        figures.append(f"loss {number_text(loss.first)} → {number_text(ended)}, {best}")
    if back := _rollbacks(history):
        figures.append(f"{counted(back, 'rollback')} ({counted(card.rolled_back, 'step')} lost)")
    figures += [f"{counted(card.skipped, 'step')} skipped"] if card.skipped else []
    figures += [f"{card.steps_per_second:.3g} steps/s"] if card.steps_per_second else []
    figures += [f"overhead {card.overhead:.1%}"] if card.overhead is not None else []
    return markdown(" · ".join(figures))


def _links(page: str) -> str:
    layout = "?workflowType=machine_learning"
    names = {"Report": "report.html", "Dashboard": "dashboard.png"}
    links = [f"[{words}]({page}/artifacts/stability/{name}{layout})" for words, name in names.items()]
    return " · ".join([*links, f"[Charts]({page}/model-metrics{layout})"])


def _rollbacks(history: RunHistory) -> int:
    return rollbacks_kept(event.facts for event in history.events or ())
