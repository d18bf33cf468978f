from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from diagnosis.histories import falling, metric_of, run_of

from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.kinds.reported.setup import ConfigurationFacts, Setting, SettingName
from mlflow_stability.vocabulary.result import Cause, Finding, Severity
from mlflow_stability.vocabulary.run import RunHistory

ADAM = {"stability.optimizer": "AdamW", "stability.parameters_total": "10000"}


def overwritten(at: int, times: float, params: dict[str, str]) -> RunHistory:
    losses, norms, weights = falling(800), np.ones(800), np.full(80, 10.0)
    losses[at:], norms[at:] = 200 * np.exp(0.3 * np.random.default_rng(1).standard_normal(800 - at)), 3000.0
    measured = np.arange(10, 801, 10)
    weights[measured >= at] *= times
    return run_of(
        metric_of("loss", losses),
        metric_of("grad_norm", norms),
        metric_of("learning_rate", np.full(800, 1e-3)),
        metric_of("stability/param_norm", weights, steps=measured),
        params=params,
    )


def cause_of(history: RunHistory) -> Cause | None:
    return diagnosis_of(history).cause


@pytest.mark.parametrize("at", [151, 601])
def test_weights_that_no_update_explains_were_overwritten(at: int) -> None:
    cause = cause_of(overwritten(at, 3000.0, ADAM))
    assert cause is not None
    assert (cause.name, cause.certainty) == ("damaged_weights", "likely")
    assert "other code or the device probably wrote to the weights" in cause.statement


@pytest.mark.parametrize(("times", "params"), [(3000.0, {}), (1.1, ADAM)])
def test_without_knowing_what_an_update_can_do_or_without_a_jump_they_were_not(
    times: float, params: dict[str, str]
) -> None:
    cause = cause_of(overwritten(601, times, params))
    assert cause is None or cause.name != "damaged_weights"


@pytest.mark.parametrize("group", ["", "group_1.", "optimizer_1."])
def test_adam_that_forgets_squares_before_gradients_can_take_any_step(group: str) -> None:
    cause = cause_of(overwritten(601, 3000.0, ADAM | {f"stability.{group}betas": "(0.999, 0.9)"}))
    assert cause is not None
    assert cause.name != "damaged_weights"
    assert any("the optimizer can change it has no bound at betas=(0.999, 0.9)" in text for text in cause.not_checked)


@pytest.mark.parametrize(("betas", "at_most"), [("(0.9, 0.999)", "10"), ("(0.5, 0.5)", "10"), ("(0.0, 0.9999)", "100")])
def test_how_far_adam_can_change_weights_follows_from_its_betas(betas: str, at_most: str) -> None:
    cause = cause_of(overwritten(601, 3000.0, ADAM | {"stability.betas": betas}))
    assert cause is not None
    assert (cause.name, cause.certainty) == ("damaged_weights", "likely")
    assert f"allow a change of at most {at_most}:" in cause.statement


def test_betas_that_were_changed_while_it_trained_tell_no_bound() -> None:
    run = overwritten(601, 3000.0, ADAM | {"stability.betas": "(0.9, 0.999)"})
    betas = SettingName(Setting.GROUP_OPTION, "betas", "AdamW")
    changed = Finding.at(ConfigurationFacts(betas, "(0.9, 0.999)", "(0.999, 0.9)"), 100, Severity.INFO)
    cause = cause_of(replace(run, events=(changed,)))
    assert cause is None or cause.name != "damaged_weights"


@pytest.mark.parametrize("at", [150, 600])
def test_gradients_that_grew_with_the_weights_are_no_excuse_under_sgd(at: int) -> None:
    run = overwritten(at, 3000.0, {"stability.optimizer": "SGD", "stability.momentum": "0"})
    norms = np.where(np.arange(800) < at, 1.0, 1e8)
    metrics = [metric for metric in run.metrics if metric.meaning.quantity != "grad_norm"]
    cause = cause_of(replace(run, metrics=(*metrics, metric_of("grad_norm", norms))))
    assert cause is not None
    assert (cause.name, cause.certainty) == ("damaged_weights", "likely")


def replaced(share: float, *, jump: bool = True) -> RunHistory:
    """Weights that changed by a share of their norm before steps 301 and 601, with losses that jumped there, or not."""
    losses = falling(800)
    for at in (301, 601) if jump else ():
        losses[at : at + 40] += 5.0 * np.exp(-np.arange(40) / 20)
    return run_of(
        metric_of("loss", losses),
        metric_of("grad_norm", np.ones(800)),
        metric_of("learning_rate", np.full(800, 1e-3)),
        metric_of("stability/update_ratio", np.full(80, 1e-3), steps=np.arange(0, 800, 10)),
        metric_of("stability/foreign_update", [share, share], steps=[301, 601]),
    )


def test_weights_that_changed_between_two_steps_before_a_jump_of_the_loss_were_replaced() -> None:
    causes = [finding.cause for finding in diagnosis_of(replaced(0.4)).findings if finding.cause is not None]
    assert {(cause.name, cause.certainty) for cause in causes} == {("weights_replaced", "certain")}
    assert "between steps 300 and 301: they changed by 0.4 of their norm" in causes[0].statement


def test_a_change_as_small_as_an_update_is_less_sure_and_one_without_a_jump_is_no_finding() -> None:
    causes = [finding.cause for finding in diagnosis_of(replaced(0.002)).findings if finding.cause is not None]
    assert {cause.certainty for cause in causes if cause.name == "weights_replaced"} <= {"likely"}
    assert diagnosis_of(replaced(0.4, jump=False)).outcome == "healthy"
