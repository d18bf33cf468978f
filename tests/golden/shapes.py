"""Plain JSON of what users see of a diagnosis, a comparison, a model check and a checklist.

The golden files hold this shape. A change inside the package changes this module alone, never the files: they say what
was found, when, where, why and what to do, in the words and in the order in which users read it. Left out is what
depends on a machine: paths, times, run ids and versions. Floats have six significant digits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from mlflow_stability import Comparison, Diagnosis, Finding, ModelCheck, ModelFinding, diagnose
from mlflow_stability.analysis.diagnose import concluded, histories_of, in_place
from mlflow_stability.analysis.source import resolve_source
from mlflow_stability.cli.commands.check import show_model_check
from mlflow_stability.diagnosis.checklist.checklist import ORDERS, Checklist, checklist_of
from mlflow_stability.errors import StabilityError
from mlflow_stability.kinds.catalog import default_detectors
from mlflow_stability.reports import comparison_terminal, run_terminal
from mlflow_stability.reports.report import Report
from mlflow_stability.reports.run_phrases import character, figures
from mlflow_stability.reports.terminal_kit import TerminalWriter, written
from mlflow_stability.vocabulary.result import Cause, CurveReading, RunCard, SeedGroup
from mlflow_stability.vocabulary.run import RunHistory

WIDTH = 80
DIGITS = 6
Shape = dict[str, Any]


def diagnosed_runs(source: str) -> dict[str, Shape]:
    """What `mlflow-stability diagnose` and `checklist` say about each run at a path, or why not."""
    try:
        histories = histories_of(resolve_source(source))
    except StabilityError as error:
        return {source: {"error": str(error)}}
    return {history.source: diagnosed_history(history) for history in histories}


def diagnosed_history(history: RunHistory) -> Shape:
    """The same for a run that is in memory."""
    history = in_place(history)
    diagnosis = concluded(history, None)
    return {**diagnosis_shape(diagnosis), **run_checklist_shape(checklist_of("", history, diagnosis))}


def diagnosed_again(source: str) -> Shape:
    """The diagnosis of a recorded run whose values are judged by today's detectors, not by those of its recording."""
    return diagnosis_shape(diagnose(source, detectors=default_detectors()))


def diagnosis_shape(diagnosis: Diagnosis) -> Shape:
    """All that a report says about a run."""
    # A path in the report would be that of this machine.
    named = replace(diagnosis, source=diagnosis.name or Path(diagnosis.source).name)
    steps = diagnosis.steps
    return plain(
        {
            "outcome": diagnosis.outcome,
            "severity": diagnosis.severity.name,
            "verdict": diagnosis.verdict,
            "ended": diagnosis.ended,
            "format": diagnosis.format,
            "basis": diagnosis.basis,
            "steps": None if steps is None else f"{steps[0]} to {steps[1]}",
            "step_unit": diagnosis.unit,
            "values": diagnosis.points,
            "losses": diagnosis.judged.losses,
            "validation_losses": diagnosis.judged.validations,
            "why_these_losses": diagnosis.judged.reasons,
            "findings": [finding_shape(episode) for episode in diagnosis.findings],
            "cause": cause_shape(diagnosis.cause),
            "what_to_do": list(map(str, diagnosis.remedies)),
            "curves": [curve_shape(reading) for reading in diagnosis.curves],
            "not_judged": [str(value) for value in diagnosis.cannot_tell],
            "notes": diagnosis.notes,
            "text": lines(run_terminal.render(Report((named,)), width=WIDTH)),
        }
    )


def finding_shape(episode: Finding) -> Shape:
    """One finding of a diagnosis."""
    rank = episode.metrics.get("rank", episode.metrics.get("first_rank"))
    return {
        "kind": episode.kind,
        "severity": episode.severity.name,
        "score": episode.score,
        "first_step": episode.start,
        "peak_step": episode.peak,
        "end_step": episode.end,
        "recovered": episode.recovered,
        "attempt": episode.attempt,
        "signal": episode.metric,
        "layer": episode.place,
        "rank": None if rank is None else int(rank),
        "message": episode.message,
        "remedies": list(map(str, episode.remedies)),
        "cause": cause_shape(episode.cause),
        "spikes_within": episode.spikes,
        "experimental": episode.experimental,
    }


def cause_shape(cause: Cause | None) -> Shape | None:
    """Why something began."""
    if cause is None:
        return None
    return {
        "kind": cause.name,
        "certainty": cause.certainty,
        "explains": cause.kind,
        "step": cause.step,
        "since": cause.since,
        "layer": cause.place,
        "message": cause.statement,
        "evidence": cause.evidence,
        "ruled_out": cause.ruled_out,
        "not_checked": cause.not_checked,
        "remedies": list(map(str, cause.remedies)),
    }


def curve_shape(reading: CurveReading) -> Shape:
    """How one loss curve went."""
    return {
        "signal": reading.metric,
        "first": reading.first,
        "last": reading.last,
        "best": reading.best,
        "best_step": reading.best_step,
        "shape": character(reading),
        "figures": figures(reading),
    }


def run_checklist_shape(checklist: Checklist) -> Shape:
    """What to check in a run and what to decide."""
    return {
        "checklist": [f"{item.state}: {item.question} {item.finding}".rstrip() for item in checklist.items],
        "decision": [f"{decision.when}: {decision.do}" for decision in checklist.decisions],
    }


def checklist_shapes() -> dict[str, Shape]:
    """The checklist of every kind that has one, without a run, and the general one."""
    shapes = {}
    for kind in ("", *ORDERS):
        checklist = checklist_of(kind)
        shapes[kind or "general"] = {
            "questions": [f"{item.question} Manual check: {item.how}" for item in checklist.items],
            "decisions": [f"If {decision.when}: {decision.do}" for decision in checklist.decisions],
        }
    return shapes


def comparison_shape(comparison: Comparison) -> Shape:
    """Which runs of a comparison are unstable, and what they have in common."""
    first_difference, cohort, gate = comparison.first_difference, comparison.cohort, comparison.gate
    return plain(
        {
            "summary": comparison.summary,
            "severity": comparison.severity.name,
            "runs": [run_shape(card) for card in comparison.cards],
            "unread": [f"{card.source}: {card.error}" for card in comparison.unread],
            "unstable_runs": [card.name for card in comparison.cards if card.unstable],
            "lost_runs": [card.name for card in comparison.cards if card.lost],
            "differing_parameters": [difference.name for difference in comparison.differences if not difference.is_tag],
            "first_difference": None if first_difference is None else first_difference.sentence,
            "layers": [layer.quantity for layer in comparison.layers],
            "baseline": None
            if gate is None
            else {
                "run": gate.name,
                "verdicts": [
                    f"{verdict.name} {'passed' if verdict.passed else 'worse'}: {' '.join(verdict.reasons)}"
                    for verdict in gate.verdicts
                ],
                "not_judged": gate.cannot_tell,
            },
            "commonalities": None
            if cohort is None
            else {
                "associations": [
                    {
                        "parameters": association.params,
                        "message": association.statement,
                        "p": association.p_value,
                        "given": association.given,
                    }
                    for association in cohort.associations
                ],
                "seed_groups": [seed_group_shape(group) for group in cohort.groups],
                "survival": [f"{curve.label}: {curve.lost} of {curve.runs} lost" for curve in cohort.survival],
            },
            "notes": comparison.notes,
            "text": lines(comparison_terminal.render(comparison, width=WIDTH)),
        }
    )


def run_shape(card: RunCard) -> Shape:
    """One run of a comparison."""
    return {
        "run": card.name,
        "state": card.state,
        "outcome": card.outcome,
        "severity": card.severity.name,
        "verdict": card.verdict,
        "cause": card.cause,
        "findings": [f"{mark.severity.name} {mark.kind} {mark.start} to {mark.end}" for mark in card.marks],
        "onset": card.onset,
        "divergence": card.divergence,
        "rolled_back": card.rolled_back,
        "skipped": card.skipped,
        "first_loss": card.first_loss,
        "final_loss": card.final_loss,
        "best_loss": card.best_loss,
    }


def seed_group_shape(group: SeedGroup) -> Shape:
    """Runs that differ in their seed alone."""
    return {
        "label": group.label,
        "runs": len(group.sources),
        "unstable": group.unstable,
        "lost": group.lost,
        "p": group.p_value,
    }


def model_check_shape(checked: ModelCheck) -> Shape:
    """What is wrong with a model that is not trained yet."""
    return plain(
        {
            "verdict": checked.verdict,
            "severity": checked.severity.name,
            "findings": [model_finding_shape(finding) for finding in checked.findings],
            "parameters": checked.parameters,
            "trainable": checked.trainable,
            "loss": checked.loss,
            "chance": checked.chance,
            "grad_norm": checked.grad_norm,
            "gradient_flow": checked.gradient_flow,
            "not_checked": checked.not_checked,
            "text": lines(written(lambda console: show_model_check(TerminalWriter(console), checked), WIDTH)),
        }
    )


def model_finding_shape(finding: ModelFinding) -> Shape:
    """One finding of a model check."""
    return {
        "kind": finding.kind,
        "severity": finding.severity.name,
        "layer": finding.place,
        "message": finding.message,
        "remedies": list(map(str, finding.remedies)),
    }


def lines(text: str) -> list[str]:
    """Lines of a report."""
    return text.rstrip("\n").split("\n")


def plain(value: Any) -> Any:
    """The value as JSON holds it: lists for tuples, rounded floats, words for floats that are not finite."""
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [plain(part) for part in value]
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else str(float(value))
    return value if value is None or isinstance(value, str | bool) else int(value)
