"""What a finding of a detector is worth once the whole run is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from diagnosis.histories import falling, run_named
from findings import over_steps

from mlflow_stability.curves.curves import RunCurves, run_curves
from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.diagnosis.findings.hindsight import in_hindsight, rare_among_starts, without_harm
from mlflow_stability.kinds.loss.divergence import DivergenceFacts
from mlflow_stability.vocabulary.facts import PeakFacts
from mlflow_stability.vocabulary.result import Finding, Severity


def curves_of(losses: np.ndarray) -> RunCurves:
    return run_curves(run_named(loss=losses))


def warning(kind: str, start: int) -> Finding:
    return over_steps(kind, Severity.WARNING, start, start, start + 3, recovered=True)


@pytest.mark.parametrize(("rise", "is_kept"), [(0.1, False), (1.5, True)])
def test_a_rise_by_one_step_of_the_rounding_of_a_log_is_dropped(rise: float, is_kept: bool) -> None:
    facts, peak = DivergenceFacts(1.5 + rise, 1.5, 30.0, 4.0, 12, 16), PeakFacts(1.5 + rise)
    rose = over_steps(
        "divergence", Severity.WARNING, 400, 405, 420, recovered=True, metric="loss", facts=facts, also=(peak,)
    )
    assert bool(in_hindsight([rose], [], curves_of(np.round(falling(600), 1)))) is is_kept


@pytest.mark.parametrize(("metric", "start"), [("loss", 395), ("another", 400)])
def test_a_divergence_began_where_the_loss_left_its_level_if_its_curve_is_known(metric: str, start: int) -> None:
    losses = falling(600)
    losses[395:] = 6.0
    facts = DivergenceFacts(6.0, 1.5, 30.0, 4.0, 12, 16)
    curve = over_steps("divergence", Severity.CRITICAL, 400, 405, 599, recovered=False, metric=metric, facts=facts)
    assert [finding.start for finding in in_hindsight([curve], [], curves_of(losses))] == [start]


@pytest.mark.parametrize(
    ("times", "asked", "severity"),
    [
        (1.0, (), Severity.INFO),
        (3.0, (), Severity.WARNING),
        (1.0, ("gradient_explosion",), Severity.WARNING),
    ],
)
def test_a_jump_of_the_gradient_without_an_answer_of_the_loss_is_information_unless_it_was_asked_for(
    times: float, asked: tuple[str, ...], severity: Severity
) -> None:
    losses = falling(600)
    losses[400:404] *= times
    (result,) = in_hindsight([warning("gradient_explosion", 400)], [], curves_of(losses), asked)
    assert result.severity is severity


def test_only_what_a_learning_rate_range_test_brings_about_is_information_and_only_during_it() -> None:
    curves = curves_of(falling(600))
    tested = replace(curves, losses=tuple(replace(curve, tested=(0, 300)) for curve in curves.losses))
    result = [warning("gradient_explosion", 200), warning("loss_spike", 200), warning("gradient_explosion", 400)]
    severities = [finding.severity for finding in without_harm(result, tested)]
    assert severities == [Severity.INFO, Severity.WARNING, Severity.WARNING]


def test_parameters_without_a_gradient_did_no_harm_where_the_loss_of_their_training_fell_to_zero() -> None:
    learnt = curves_of(falling(600, first=2.0, last=1e-4))
    result = [warning("no_gradient", 100), warning("no_gradient", 700)]
    assert [finding.severity for finding in without_harm(result, learnt)] == [Severity.INFO, Severity.WARNING]


def test_a_finding_of_an_ordinary_detector_is_not_experimental() -> None:
    losses = falling(600)
    losses[400:404] *= 4
    (finding,) = [finding for finding in diagnosis_of(run_named(loss=losses)).findings if finding.kind == "loss_spike"]
    assert not finding.experimental


@pytest.mark.parametrize(
    ("attempts", "starts", "kept"),
    [
        ([3], 7, [True]),
        ([3], 8, [False]),
        ([3, 7], 8, [True, True]),  # a quarter of them
        ([3, 11], 12, [False, True]),  # the last one
    ],
)
def test_a_warning_of_few_of_many_trainings_in_a_log_is_information(
    attempts: list[int], starts: int, kept: list[bool]
) -> None:
    warnings = [
        replace(item, where=replace(item.where, attempt=attempt))
        for attempt in attempts
        for item in [warning("loss_spike", 40)]
    ]
    judged = rare_among_starts(warnings, range(starts))
    assert [finding.severity is Severity.WARNING for finding in judged] == kept
    assert rare_among_starts(warnings, range(99), ["loss_spike"]) == tuple(warnings)


def test_what_is_critical_in_one_of_many_trainings_stays_critical() -> None:
    broken = replace(warning("divergence", 40), severity=Severity.CRITICAL)
    assert rare_among_starts([broken], range(99)) == (broken,)
