"""Mistakes in the set-up as causes of a training that does not learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
from diagnosis.histories import falling, metric_of, run_of
from findings import at_step

from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.kinds.first_look.accumulation import (
    AccumulationFacts,
    AccumulationSum,
    DiscardedGradientsFacts,
    GradientsDiscarded,
)
from mlflow_stability.kinds.first_look.batches import InputScale, InputScaleFacts
from mlflow_stability.kinds.first_look.loss_function import (
    Activation,
    LossFunction,
    LossInput,
    LossInputFacts,
    LossSum,
    LossSumFacts,
    remedies_for,
)
from mlflow_stability.kinds.first_look.not_trained import NotOptimized, NotOptimizedFacts
from mlflow_stability.kinds.first_look.precision import (
    GradientUnderflow,
    UnderflowFacts,
    UpdatesLost,
    UpdatesLostFacts,
)
from mlflow_stability.kinds.first_look.settings import GroupRateZero, ZeroGroupFacts
from mlflow_stability.kinds.inside.activations import DeadUnits
from mlflow_stability.kinds.optimizer.clipping_and_decay import StrongDecayFacts, StrongWeightDecay
from mlflow_stability.kinds.reported.setup import LintFacts
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.result import Action, Finding, Remedy, Severity
from mlflow_stability.vocabulary.run import RunHistory
from mlflow_stability.vocabulary.text.metric_names import Meaning

COUNT = 400
FLAT = math.log(10) * np.exp(np.random.default_rng(0).normal(0, 0.005, COUNT))


def event(facts: Facts, remedies: tuple[Remedy, ...], step: int = 10) -> Finding:
    return Finding.at(facts, step, Severity.WARNING, remedies=remedies)


GROUP = Finding.at(ZeroGroupFacts(0, 0.9, 0.02), 100, Severity.INFO, remedies=GroupRateZero.remedies)
SOFTMAX = event(LossInputFacts(LossFunction.CROSS_ENTROPY, Activation.SOFTMAX, "4"), LossInput.remedies)
DECAY = event(StrongDecayFacts(10.0, 0.003), StrongWeightDecay.remedies)
FORGOTTEN = event(NotOptimizedFacts(2, 0.3, ("head",)), NotOptimized.remedies, 20)


@pytest.mark.parametrize("mistake", [SOFTMAX, DECAY, FORGOTTEN, GROUP], ids=lambda mistake: mistake.kind)
def test_a_plateau_beside_a_mistake_in_the_setup_is_put_down_to_it(mistake: Finding) -> None:
    diagnosis = diagnosis_of(run_of(metric_of("loss", FLAT), events=[mistake]))
    assert diagnosis.outcome == "stuck"
    assert diagnosis.cause is not None
    assert (diagnosis.cause.name, diagnosis.cause.statement) == ("setup", mistake.message)
    assert diagnosis.remedies[0].action is mistake.remedies[0].action


@pytest.mark.parametrize(("check", "named"), [("betas_swapped", True), ("small_eps", False)])
def test_swapped_betas_are_the_cause_of_a_divergence(check: str, named: bool) -> None:
    losses = falling(COUNT)
    losses[300:] *= np.geomspace(1, 1e3, COUNT - 300)
    remark = Finding.at(LintFacts(check, "A remark."), 10, Severity.INFO)
    cause = diagnosis_of(run_of(metric_of("loss", losses), events=[remark])).cause
    assert (cause is not None and (cause.name, cause.statement) == ("setup", "A remark.")) is named


def test_a_loss_far_above_the_variance_of_its_targets_is_answered_by_their_scale() -> None:
    def remedy_at(variance: float) -> Action:
        level = metric_of("target_variance", [variance] * 3, meaning=Meaning("target_variance", is_known=True))
        return diagnosis_of(run_of(metric_of("loss", FLAT), level)).remedies[0].action

    assert remedy_at(0.05) is Action.STANDARDISE_TARGETS
    assert remedy_at(2.0) is not Action.STANDARDISE_TARGETS


def test_gradients_that_underflow_are_the_cause_of_updates_that_round_to_nothing() -> None:
    underflow = event(UnderflowFacts(1e-6, 6.1e-5), GradientUnderflow.remedies, 100)
    lost = event(UpdatesLostFacts(0.998), UpdatesLost.remedies, 100)
    diagnosis = diagnosis_of(run_of(metric_of("loss", FLAT), events=[lost, underflow]))
    assert diagnosis.cause is not None
    assert diagnosis.cause.statement == underflow.message
    first = [remedy.action for remedy in diagnosis.remedies[:2]]
    assert first == [Action.USE_GRAD_SCALER, Action.KEEP_WEIGHTS_IN_FLOAT32]


def test_strong_clipping_that_only_whole_curves_show_is_the_cause_of_a_plateau() -> None:
    curves = {
        "loss": FLAT,
        "grad_norm": np.full(COUNT, 0.7),
        "grad_norm_clipped": np.full(COUNT, 0.001),
        "learning_rate": np.full(COUNT, 0.1),
        "update_norm": np.full(COUNT, 0.001),
        "update_ratio": np.full(COUNT, 1e-5),
    }
    metrics = [metric_of(name, curve, meaning=Meaning(name, is_known=True)) for name, curve in curves.items()]
    diagnosis = diagnosis_of(run_of(*metrics))
    assert diagnosis.cause is not None
    assert diagnosis.cause.name == "setup"
    assert diagnosis.cause.statement.startswith("Clipping divides gradients by 700")


RISING = np.concatenate((falling(200, first=2.3, last=0.9), np.linspace(1, 60, 200)))
BYTES = event(InputScaleFacts("0", 0.0, 255.0, 138.0), InputScale.remedies)


def test_a_divergence_beside_inputs_that_were_not_scaled_is_put_down_to_them() -> None:
    diagnosis = diagnosis_of(run_of(metric_of("loss", RISING), events=[BYTES]))
    assert diagnosis.outcome == "diverged"
    assert diagnosis.cause is not None
    assert (diagnosis.cause.name, diagnosis.cause.statement) == ("setup", BYTES.message)


def test_summed_gradients_are_the_cause_of_a_divergence_though_they_are_informative() -> None:
    summed = Finding.at(AccumulationFacts(8), 4, Severity.INFO, remedies=AccumulationSum.remedies)
    diagnosis = diagnosis_of(run_of(metric_of("loss", RISING), events=[summed]))
    assert diagnosis.cause is not None
    assert (diagnosis.cause.name, diagnosis.cause.statement) == ("setup", summed.message)
    assert diagnosis_of(run_of(metric_of("loss", falling(COUNT)), events=[summed])).outcome == "healthy"


@pytest.mark.parametrize(("optimizer", "is_cause"), [("SGD", True), ("Adam", False), ("RMSprop", False)])
def test_a_loss_that_is_a_sum_is_the_cause_of_a_divergence_under_sgd_alone(optimizer: str, is_cause: bool) -> None:
    summed = Finding.at(LossSumFacts(64), 1, Severity.INFO, remedies=LossSum.remedies)
    history = run_of(metric_of("loss", RISING), events=[summed], params={"optimizer": optimizer})
    diagnosis = diagnosis_of(history)
    cause = diagnosis.cause
    assert (cause is not None and cause.statement == summed.message) == is_cause
    assert (Action.AVERAGE_LOSS in [remedy.action for remedy in diagnosis.remedies]) == is_cause


def test_exchanged_arguments_of_kl_div_are_the_certain_cause_of_a_nan() -> None:
    facts = LossInputFacts(LossFunction.KL, Activation.LOG_TARGET)
    exchanged = event(facts, remedies_for(facts), 2)
    nan = at_step(1, "nan_detected", Severity.CRITICAL, "loss is NaN at step 1.", evidence={"loss": math.nan})
    diagnosis = diagnosis_of(run_of(metric_of("loss", np.full(COUNT, np.nan)), events=[nan, exchanged]))
    assert diagnosis.cause is not None
    assert (diagnosis.cause.name, diagnosis.cause.certainty) == ("setup", "certain")
    assert diagnosis.remedies[0].action is Action.EXCHANGE_KL_ARGUMENTS


def test_gradients_that_are_thrown_away_are_the_cause_of_a_plateau() -> None:
    discarded = event(DiscardedGradientsFacts(8), GradientsDiscarded.remedies, 4)
    diagnosis = diagnosis_of(run_of(metric_of("loss", FLAT), events=[discarded]))
    assert diagnosis.cause is not None
    assert (diagnosis.cause.name, diagnosis.cause.statement) == ("setup", discarded.message)


def test_inputs_that_were_not_scaled_are_the_cause_of_dead_units() -> None:
    dead = at_step(200, "dead_units", Severity.WARNING, remedies=DeadUnits.remedies)
    diagnosis = diagnosis_of(run_of(metric_of("loss", FLAT), events=[BYTES, dead]))
    finding = next(finding for finding in diagnosis.findings if finding.kind == "dead_units")
    assert finding.cause is not None
    assert (finding.cause.name, finding.cause.statement) == ("setup", BYTES.message)


def measured(**curves: np.ndarray) -> RunHistory:
    return run_of(*(metric_of(name, curve, meaning=Meaning(name, is_known=True)) for name, curve in curves.items()))


@pytest.mark.parametrize(("ratio", "cause"), [(1e-5, "learning_rate_too_low"), (1e-3, "guessing")])
def test_steps_that_hardly_move_the_weights_are_the_cause_of_a_plateau(ratio: float, cause: str) -> None:
    run = measured(loss=FLAT, update_ratio=np.full(COUNT, ratio), learning_rate=np.full(COUNT, 1e-6))
    diagnosis = diagnosis_of(run)
    assert diagnosis.cause is not None
    assert diagnosis.cause.name == cause
    if cause == "learning_rate_too_low":
        assert "399 steps together moved the weights by at most 0.4% of their norm" in diagnosis.cause.statement


def test_a_high_rate_whose_steps_hardly_move_the_weights_is_not_too_high() -> None:
    run = measured(loss=FLAT, update_ratio=np.full(COUNT, 7.5e-8), learning_rate=np.full(COUNT, 0.5))
    diagnosis = diagnosis_of(run)
    assert diagnosis.cause is not None
    assert diagnosis.cause.name == "guessing"
    assert any("learning rate too high: 399 steps together moved" in reason for reason in diagnosis.cause.ruled_out)


@pytest.mark.parametrize("mistake", [SOFTMAX, FORGOTTEN], ids=lambda mistake: mistake.kind)
def test_a_divergence_is_not_put_down_to_what_only_holds_a_loss_back(mistake: Finding) -> None:
    diagnosis = diagnosis_of(run_of(metric_of("loss", RISING), events=[mistake]))
    assert diagnosis.cause is None or diagnosis.cause.name != "setup"


def test_an_informative_finding_of_the_setup_explains_nothing() -> None:
    mistake = Finding.at(DECAY.facts, 10, Severity.INFO)
    diagnosis = diagnosis_of(run_of(metric_of("loss", FLAT), events=[mistake]))
    assert diagnosis.cause is not None
    assert diagnosis.cause.name == "guessing"


def test_a_run_with_nothing_but_such_a_mistake_is_not_called_unstable() -> None:
    diagnosis = diagnosis_of(run_of(metric_of("loss", falling(COUNT)), events=[DECAY]))
    assert diagnosis.verdict.startswith("Check the set-up: strong decay of the weights; ")


@pytest.mark.parametrize(("very_first", "first"), [(40.0, 40.0), (1.0, 1.0), (1.0, 40.0)])
def test_gradients_that_explode_beside_targets_of_another_scale_are_put_down_to_them(
    very_first: float, first: float
) -> None:
    losses = np.linspace(first, 36.0, COUNT) * np.exp(np.random.default_rng(0).normal(0, 0.05, COUNT))
    losses[0], losses[1:4] = very_first, np.inf if very_first < first else first
    norms = np.exp(np.random.default_rng(1).normal(0, 0.1, COUNT))
    losses[300:304] *= 1.4
    norms[300:304] = 40.0
    variances = [
        metric_of("target_variance", [2.0, 2.0], steps=[2, 3], meaning=Meaning("target_variance", is_known=True))
    ]
    loss = metric_of("loss", losses, meaning=Meaning("loss", is_known=True))
    diagnosis = diagnosis_of(run_of(loss, metric_of("grad_norm", norms), *variances))
    (far,) = [finding for finding in diagnosis.findings if finding.kind == "above_chance"]
    named = diagnosis.cause is not None and (diagnosis.cause.name, diagnosis.cause.statement) == ("setup", far.message)
    assert named is (very_first > 2.0)
    assert not named or diagnosis.remedies[0].action is Action.STANDARDISE_TARGETS
