"""Mistakes in the set-up as causes of a training that does not learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
from diagnosis.histories import falling, metric_of, run_of

from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.kinds.first_look.loss_input import Activation, LossFunction, LossInput, LossInputFacts
from mlflow_stability.kinds.first_look.not_trained import NotOptimized, NotOptimizedFacts
from mlflow_stability.kinds.optimizer.weight_decay_strong import StrongDecayFacts, StrongWeightDecay
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.result import Finding, Remedy, Severity

COUNT = 400
FLAT = math.log(10) * np.exp(np.random.default_rng(0).normal(0, 0.005, COUNT))


def event(facts: Facts, remedies: tuple[Remedy, ...], step: int = 10) -> Finding:
    return Finding.at(facts, step, Severity.WARNING, remedies=remedies)


SOFTMAX = event(LossInputFacts(LossFunction.CROSS_ENTROPY, Activation.SOFTMAX, "4"), LossInput.remedies)
DECAY = event(StrongDecayFacts(10.0, 0.003), StrongWeightDecay.remedies)
FORGOTTEN = event(NotOptimizedFacts(2, 0.3, ("head",)), NotOptimized.remedies, 20)


@pytest.mark.parametrize("mistake", [SOFTMAX, DECAY, FORGOTTEN], ids=lambda mistake: mistake.kind)
def test_a_plateau_beside_a_mistake_in_the_setup_is_put_down_to_it(mistake: Finding) -> None:
    diagnosis = diagnosis_of(run_of(metric_of("loss", FLAT), events=[mistake]))
    assert diagnosis.outcome == "stuck"
    assert diagnosis.cause is not None
    assert (diagnosis.cause.name, diagnosis.cause.statement) == ("setup", mistake.message)
    assert diagnosis.remedies[0].action is mistake.remedies[0].action


def test_an_informative_finding_of_the_setup_explains_nothing() -> None:
    mistake = Finding.at(DECAY.facts, 10, Severity.INFO)
    diagnosis = diagnosis_of(run_of(metric_of("loss", FLAT), events=[mistake]))
    assert diagnosis.cause is not None
    assert diagnosis.cause.name == "guessing"


def test_a_run_with_nothing_but_such_a_mistake_is_not_called_unstable() -> None:
    diagnosis = diagnosis_of(run_of(metric_of("loss", falling(COUNT)), events=[DECAY]))
    assert diagnosis.verdict.startswith("Check the set-up: too strong a weight decay at step 10; ")
