"""The verdict of runs whose only findings are mistakes in the set-up, or a slow machine."""

from __future__ import annotations

import numpy as np
import pytest
from diagnosis.histories import falling, metric_of, run_of

from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.diagnosis.verdict import title_of
from mlflow_stability.kinds.catalog import OF_HARDWARE, OF_SETUP
from mlflow_stability.kinds.first_look.not_trained import NO_GRADIENT_AT_ALL, NoGradient, NoGradientFacts, Reached
from mlflow_stability.kinds.hardware.utilization import ThroughputFacts
from mlflow_stability.kinds.optimizer.clipping_and_decay import StrongDecayFacts
from mlflow_stability.kinds.optimizer.update_size import TinyUpdateFacts, UpdateRatioLow
from mlflow_stability.reports.run_phrases import headline
from mlflow_stability.vocabulary.result import Action, Finding, Severity
from mlflow_stability.vocabulary.text.metric_names import Meaning

COUNT = 200
DECAY = StrongDecayFacts(10.0, 0.003)
SLOW = ThroughputFacts(100.0, 300.0, 0.5, "samples_per_second", found_first=404)


def test_a_run_that_is_only_clipped_too_much_says_what_to_change() -> None:
    curves = {
        "loss": falling(COUNT),
        "grad_norm": np.exp(np.random.default_rng(0).normal(0, 0.1, COUNT)),
        "grad_norm_clipped": np.full(COUNT, 0.001),
        "learning_rate": np.full(COUNT, 0.1),
        "update_norm": np.full(COUNT, 0.001),
        "update_ratio": np.full(COUNT, 1e-5),
    }
    history = run_of(*(metric_of(name, curve, meaning=Meaning(name, is_known=True)) for name, curve in curves.items()))
    diagnosis = diagnosis_of(history)
    assert [finding.kind for finding in diagnosis.findings] == ["clipping_strong"]
    assert diagnosis.verdict.startswith("Check the set-up: too strong a clipping; ")
    title, sentence = headline(diagnosis)
    assert title == "Check the set-up"
    assert sentence.startswith("too strong a clipping; ")
    assert diagnosis.remedies[0].action is Action.RAISE_CLIPPING_THRESHOLD


def test_only_mistakes_in_the_setup_have_a_title_of_their_own() -> None:
    assert {"above_chance", "clipping_strong"} <= OF_SETUP
    assert title_of("unstable", [Finding.at(DECAY, 1, Severity.WARNING)]) == "Check the set-up"
    assert title_of("unstable", [Finding.at(DECAY, 1, Severity.INFO)]) == "Unstable"


def test_a_run_that_only_became_slow_is_not_called_unstable() -> None:
    assert {"throughput_drop", "step_time_increase", "memory_pressure"} == OF_HARDWARE
    slow, decay = Finding.at(SLOW, 504, Severity.WARNING), Finding.at(DECAY, 1, Severity.WARNING)
    assert title_of("unstable", [slow]) == "Check the hardware"
    assert title_of("unstable", [slow, decay]) == "Check the set-up"


FALLING = falling(200)
WHOLE = NoGradientFacts(4, 1.0, ("a tensor outside the model",), 10, Reached.OTHERS)
PART = NoGradientFacts(2, 0.4, ("branch",), 100)


def test_tiny_updates_of_an_optimizer_without_gradients_are_put_down_to_it() -> None:
    mistake = Finding.at(WHOLE, 10, Severity.WARNING, remedies=NO_GRADIENT_AT_ALL[Reached.OTHERS])
    tiny = Finding.at(TinyUpdateFacts(0.0, 1e-7, in_a_row=5), 20, Severity.WARNING, remedies=UpdateRatioLow.remedies)
    diagnosis = diagnosis_of(run_of(metric_of("loss", FALLING), events=[mistake, tiny]))
    assert diagnosis.verdict.startswith("Check the set-up: parameters without a gradient; loss")
    assert diagnosis.cause is not None
    assert (diagnosis.cause.name, diagnosis.cause.statement) == ("setup", mistake.message)
    assert [remedy.action for remedy in diagnosis.remedies] == [Action.MAKE_OPTIMIZER_OF_MODEL]


@pytest.mark.parametrize(("last", "severity"), [(1.5, Severity.WARNING), (1e-4, Severity.INFO)])
def test_a_branch_without_gradients_is_only_mentioned_where_the_loss_fell_almost_to_zero(
    last: float, severity: Severity
) -> None:
    mistake = Finding.at(PART, 100, Severity.WARNING, remedies=NoGradient.remedies)
    loss = metric_of("loss", falling(2000, last=last))
    (finding,) = [
        finding for finding in diagnosis_of(run_of(loss, events=[mistake])).findings if finding.kind == "no_gradient"
    ]
    assert finding.severity is severity


def test_the_verdict_names_the_trainings_of_other_models_that_followed() -> None:
    names = ["stability/loss", "stability/track_1/loss", "stability/track_2/loss"]
    trials = [
        metric_of(name, falling(100, seed=at, last=1.0 + at), steps=np.arange(100) + 100 * at)
        for at, name in enumerate(names)
    ]
    verdict = diagnosis_of(run_of(*trials)).verdict
    assert "fell from 4.157 to 1.008 in 100 steps; the last of 3 trainings: " in verdict
    assert verdict.endswith("in 100 steps; no warnings.")
    more = [
        metric_of(f"stability/track_{at}/loss", falling(100), steps=np.arange(100) + 100 * at) for at in range(3, 14)
    ]
    assert "in 100 steps; the first of many trainings; " in diagnosis_of(run_of(*trials, *more)).verdict
    beside = [metric_of(name, falling(100, seed=at)) for at, name in enumerate(names)]
    assert "trainings" not in diagnosis_of(run_of(*beside)).verdict
