"""The remedy of a certain mistake in the set-up comes before general ones, such as a lower learning rate."""

from __future__ import annotations

import numpy as np
import pytest
from diagnosis.histories import falling, metric_of, run_of

from mlflow_stability.diagnosis.advice import JUDGED_BY_CURVES
from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.kinds.catalog import OF_SETUP
from mlflow_stability.kinds.first_look.batches import SameInput
from mlflow_stability.kinds.first_look.dimensions import SameOutput, SameOutputFacts
from mlflow_stability.kinds.first_look.loss_function import (
    Activation,
    LossFunction,
    LossInput,
    LossInputFacts,
)
from mlflow_stability.kinds.first_look.not_trained import NotOptimized, NotOptimizedFacts
from mlflow_stability.kinds.gradients.layers import DeadLayer, DeadLayerFacts
from mlflow_stability.kinds.inside.activations import DeadUnits, DeadUnitsFacts
from mlflow_stability.kinds.loss.divergence import Divergence
from mlflow_stability.kinds.optimizer.clipping_and_decay import StrongDecayFacts, StrongWeightDecay
from mlflow_stability.kinds.reported.setup import EvaluationMode, MissingZeroGrad, UnclearedFacts
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.result import Action, Finding, Remedy, Severity, Text
from mlflow_stability.vocabulary.text.metric_names import Meaning

COUNT, AT = 800, 60
RISING = np.concatenate((falling(AT, first=2.3, last=0.9), np.linspace(1, 60, COUNT - AT)))
LATE = np.concatenate((falling(500, first=2.3, last=0.9), np.linspace(1, 60, 300)))


def event(facts: Facts, remedies: tuple[Remedy, ...], step: int, kind: str | None = None) -> Finding:
    return Finding.at(facts, step, Severity.WARNING, kind=kind or facts.kind, remedies=remedies)


SOFTMAX = event(LossInputFacts(LossFunction.CROSS_ENTROPY, Activation.SOFTMAX, "4"), LossInput.remedies, 10)
FORGOTTEN = event(NotOptimizedFacts(2, 0.3, ("head",)), NotOptimized.remedies, 20)
DEAD = event(DeadLayerFacts("body.0", 0.0, 9, 0, 5, 400), DeadLayer.remedies, 410)
DEAD_LATER = event(DeadLayerFacts("body.0", 0.0, 9, 300, 5, 400), DeadLayer.remedies, 710)
DEAD_RARELY_MEASURED = event(DeadLayerFacts("body.0", 0.0, 5, 100, 5, 400), DeadLayer.remedies, 500)
UNCLEARED = event(UnclearedFacts(3), MissingZeroGrad.remedies, 4)

SAME_OUTPUT = event(SameOutputFacts(10), SameOutput.remedies, 21)
SAME_INPUT = event(Text("Equal rows."), SameInput.remedies, 10, "same_input")
SAME_INPUT_LATE = event(Text("Equal rows."), SameInput.remedies, 101, "same_input")
DEAD_UNITS = event(DeadUnitsFacts(1.0, 0.5, place="2"), DeadUnits.remedies, 30)


def diverged(at: int) -> Finding:
    return Finding.at(Text("loss rose."), at, Severity.CRITICAL, kind="divergence", remedies=Divergence.remedies)


def actions(losses: np.ndarray, *events: Finding, **curves: np.ndarray) -> list[Action]:
    metrics = [metric_of(name, values) for name, values in {"loss": losses, **curves}.items()]
    return [remedy.action for remedy in diagnosis_of(run_of(*metrics, events=events)).remedies]


@pytest.mark.parametrize("mistake", [SOFTMAX, FORGOTTEN, DEAD, UNCLEARED], ids=lambda mistake: mistake.kind)
@pytest.mark.parametrize(("losses", "at"), [(RISING, AT), (LATE, 500)])
def test_the_remedy_of_a_mistake_comes_first_beside_a_divergence(losses: np.ndarray, at: int, mistake: Finding) -> None:
    advised = actions(losses, diverged(at), mistake)
    assert advised[0] is mistake.remedies[0].action
    assert Action.RESTART_BEFORE_STEP in advised


@pytest.mark.parametrize("mistake", [SOFTMAX, FORGOTTEN, DEAD, UNCLEARED], ids=lambda mistake: mistake.kind)
def test_the_remedy_of_a_mistake_comes_first_beside_an_explosion_that_is_a_likely_cause(mistake: Finding) -> None:
    norms = np.exp(np.random.default_rng(1).normal(0, 0.1, COUNT))
    norms[AT - 4 :] *= 50
    advised = actions(RISING, diverged(AT), mistake, grad_norm=norms)
    assert advised[0] is mistake.remedies[0].action


def test_the_remedy_of_a_layer_that_was_dead_in_its_first_measurement_comes_first() -> None:
    assert actions(LATE, diverged(500), DEAD_RARELY_MEASURED)[0] is DEAD_RARELY_MEASURED.remedies[0].action


def test_a_layer_that_died_later_does_not_come_before_the_divergence() -> None:
    assert actions(LATE, diverged(500), DEAD_LATER)[0] is not DEAD_LATER.remedies[0].action


def test_a_layer_whose_weights_decayed_to_zero_does_not_come_before_the_decay() -> None:
    decay = event(StrongDecayFacts(5.0, 0.06), StrongWeightDecay.remedies, 10)
    advised = actions(LATE, diverged(500), DEAD_RARELY_MEASURED, decay)
    assert advised.index(decay.remedies[0].action) < advised.index(DEAD_RARELY_MEASURED.remedies[0].action)


def test_a_learning_rate_that_replaced_the_weights_comes_before_what_cannot_raise_a_loss() -> None:
    losses = np.r_[0.7, 5.0, 300.0, np.full(COUNT - 3, 4e6)]
    ratios = metric_of("update_ratio", [43.0], meaning=Meaning("update_ratio", "", is_known=True), steps=[1])
    curves = metric_of("loss", losses), metric_of("learning_rate", np.full(COUNT, 30.0)), ratios
    diagnosis = diagnosis_of(run_of(*curves, events=[diverged(3), FORGOTTEN]))
    assert diagnosis.cause is not None
    assert diagnosis.cause.name == "learning_rate_too_high"
    first = [remedy.action for remedy in diagnosis.remedies]
    assert first.index(Action.LOWER_LEARNING_RATE) < first.index(FORGOTTEN.remedies[0].action)


def test_the_jump_of_the_learning_rate_long_after_a_mistake_comes_first() -> None:
    rates = np.where(np.arange(COUNT) < 495, 0.001, 0.3)
    advised = diagnosis_of(
        run_of(metric_of("loss", LATE), metric_of("learning_rate", rates), events=[diverged(500), FORGOTTEN])
    ).remedies
    assert advised[0].action is Action.CHECK_SCHEDULE_AT_RESUME
    assert FORGOTTEN.remedies[0].action in [remedy.action for remedy in advised]


def test_a_mistake_that_began_after_the_trouble_does_not_come_first() -> None:
    off = event(Text("model.training is False."), EvaluationMode.remedies, 700, "evaluation_mode")
    assert actions(LATE, diverged(500), off)[0] is not Action.CALL_TRAIN


def test_each_kind_that_curves_only_suggest_is_a_mistake_in_the_set_up() -> None:
    assert JUDGED_BY_CURVES <= OF_SETUP


@pytest.mark.parametrize("origin", [SAME_INPUT, DEAD_UNITS], ids=lambda origin: origin.kind)
def test_where_rows_become_equal_is_not_looked_for_once_it_was_found(origin: Finding) -> None:
    assert Action.FIND_WHERE_ROWS_MEET in actions(RISING, diverged(AT), SAME_OUTPUT)
    advised = actions(RISING, diverged(AT), SAME_OUTPUT, origin)
    assert Action.FIND_WHERE_ROWS_MEET not in advised
    assert origin.remedies[-1].action in advised


def test_a_mistake_that_was_seen_late_comes_before_a_loss_at_chance_level() -> None:
    variance = metric_of("target_variance", np.full(COUNT, 0.5), meaning=Meaning("target_variance", "", is_known=True))
    metrics = metric_of("loss", falling(COUNT, first=0.52, last=0.5)), variance
    diagnosis = diagnosis_of(run_of(*metrics, events=(SAME_INPUT_LATE,)))
    assert [finding.kind for finding in diagnosis.findings] == ["above_chance", "same_input"]
    assert diagnosis.remedies[0].action is SAME_INPUT.remedies[0].action
