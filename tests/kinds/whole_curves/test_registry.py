"""

Who asks for some detectors gets their judgements, and no others from the rules of whole curves.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from diagnosis.histories import falling, metric_of, run_named, run_of

from mlflow_stability.curves.curves import run_curves
from mlflow_stability.detectors.detector import Detector
from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.diagnosis.findings import replay
from mlflow_stability.diagnosis.findings.replay import apply_rules
from mlflow_stability.kinds.catalog import RULES, detectors_named
from mlflow_stability.kinds.loss.divergence import Divergence
from mlflow_stability.kinds.loss.divergence_curve import DivergenceRule
from mlflow_stability.kinds.loss.loss_spike_curve import SpikeRule
from mlflow_stability.kinds.loss.nonfinite import NonFiniteRule
from mlflow_stability.kinds.progress.no_progress import ScoreRule
from mlflow_stability.kinds.progress.overfitting import Overfitting, OverfittingRule
from mlflow_stability.kinds.progress.plateau import PlateauRule
from mlflow_stability.kinds.rule import Rule
from mlflow_stability.vocabulary.result import Severity
from mlflow_stability.vocabulary.result.finding import Finding
from mlflow_stability.vocabulary.run import RunHistory

nan, inf = math.nan, math.inf


def findings_of(rule: Rule, history: RunHistory) -> list[Finding]:
    return rule.find(run_curves(history))


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_documents_what_it_sees_and_when_it_is_wrong(rule: type[Rule]) -> None:
    paragraphs = [text.strip().partition(":")[0] for text in (rule.__doc__ or "").split("\n\n")[1:]]
    assert paragraphs == ["What it sees", "When it is wrong"]


def test_a_nan_is_reported_once_from_its_first_step_on() -> None:
    (episode,) = findings_of(
        NonFiniteRule(), run_named(loss=[3.0, 2.0, nan, nan, nan], val_loss=[3.0, 2.5, 2.4, nan, nan])
    )
    assert (episode.kind, episode.start, episode.end, episode.recovered) == ("nan_detected", 2, 4, False)
    assert episode.message == (
        "loss is NaN at step 2; last finite value 2; 3 non-finite values up to step 4; none finite afterwards."
    )


def test_an_infinity_that_a_database_kept_as_the_largest_number_is_one() -> None:
    (episode,) = findings_of(NonFiniteRule(), run_named(loss=[3.0, 2.0, 1.7976931348623157e308, 2.0, 1.9]))
    assert (episode.kind, episode.start, episode.recovered) == ("inf_detected", 2, True)


def test_an_infinity_that_turns_into_nan_is_one_finding() -> None:
    (episode,) = findings_of(NonFiniteRule(), run_named(loss=[3.0, 2.0, inf, nan, nan]))
    assert (episode.kind, episode.start) == ("nan_detected", 2)
    assert "infinite at step 2 and NaN from step 3 on" in episode.message


def test_a_gradient_norm_that_a_loss_scaler_skipped_is_only_mentioned() -> None:
    norms = np.ones(100)
    norms[[3, 50]] = inf
    episodes = findings_of(NonFiniteRule(), run_named(loss=falling(100), grad_norm=norms))
    assert [(episode.start, episode.severity) for episode in episodes] == [(3, Severity.INFO), (50, Severity.INFO)]


def test_a_gradient_norm_that_stays_nan_is_critical() -> None:
    norms = np.ones(100)
    norms[60:] = nan
    (episode,) = findings_of(NonFiniteRule(), run_named(loss=falling(100), grad_norm=norms))
    assert (episode.start, episode.severity, episode.recovered) == (60, Severity.CRITICAL, False)


@pytest.mark.parametrize("count", [7, 10, 16, 30, 100, 400])
def test_a_lone_peak_is_found_in_curves_of_any_length(count: int) -> None:
    losses = falling(count, first=2.0)
    losses[count // 2] *= 3
    (episode,) = findings_of(SpikeRule(), run_named(loss=losses))
    assert (episode.kind, episode.start, episode.recovered) == ("loss_spike", count // 2, True)
    assert episode.severity is Severity.WARNING


def test_neither_a_falling_loss_nor_a_step_up_or_down_is_a_spike() -> None:
    down, up = np.r_[np.full(30, 4.0), np.full(30, 2.0)], np.r_[np.full(30, 2.0), np.full(30, 4.0)]
    noise = np.exp(np.random.default_rng(1).normal(0, 0.02, 60))
    for losses in (falling(60), down * noise, up * noise):
        assert findings_of(SpikeRule(), run_named(loss=losses)) == []


def test_a_jump_of_the_first_steps_that_comes_back_is_only_mentioned() -> None:
    losses = falling(200)
    losses[2] *= 3
    (episode,) = findings_of(SpikeRule(), run_named(loss=losses))
    assert episode.severity is Severity.INFO


def test_a_high_last_value_is_only_mentioned_where_the_log_begins_another_training() -> None:
    losses, steps, attempts = np.tile(falling(30), 2), np.tile(np.arange(30), 2), np.repeat([0, 1], 30)
    losses[29] *= 3
    (alone,) = findings_of(SpikeRule(), run_named(loss=losses[:30]))
    assert (alone.start, alone.severity) == (29, Severity.WARNING)
    (followed,) = findings_of(SpikeRule(), run_of(metric_of("loss", losses, steps=steps, attempts=attempts)))
    assert (followed.start, followed.severity) == (29, Severity.INFO)


@pytest.mark.parametrize(("trainings", "severity"), [(2, Severity.WARNING), (8, Severity.INFO)])
def test_a_spike_in_one_of_many_short_trainings_is_only_mentioned(trainings: int, severity: Severity) -> None:
    losses, steps = np.tile(falling(12), trainings), np.tile(np.arange(12), trainings)
    losses[6] *= 3
    attempts = np.repeat(np.arange(trainings), 12)
    (spike,) = findings_of(SpikeRule(), run_of(metric_of("loss", losses, steps=steps, attempts=attempts)))
    assert (spike.start, spike.severity) == (6, severity)


def test_a_jump_that_is_doubtful_alone_counts_when_the_gradient_jumps_with_it() -> None:
    losses, norms = falling(40, noise=0.05), np.full(40, 1.0) * np.exp(np.random.default_rng(3).normal(0, 0.1, 40))
    losses[20] *= 1.3
    assert findings_of(SpikeRule(), run_named(loss=losses)) == []
    norms[20] *= 20
    (episode,) = findings_of(SpikeRule(), run_named(loss=losses, grad_norm=norms))
    assert episode.start == 20


def test_a_loss_that_jumps_up_and_stays_has_diverged() -> None:
    losses = falling(23)
    losses[20:] *= 1.5
    (episode,) = findings_of(DivergenceRule(), run_named(loss=losses))
    assert (episode.start, episode.end, episode.severity) == (20, 22, Severity.CRITICAL)


def test_a_loss_that_left_its_start_upwards_has_diverged_however_noisy_it_is() -> None:
    losses = np.r_[7.0, 6.9, 7.1, 40 * np.exp(np.random.default_rng(2).normal(-0.8, 0.35, 30))]
    (episode,) = findings_of(DivergenceRule(), run_named(loss=losses))
    assert 2 <= episode.start <= 4


def test_a_loss_whose_first_step_alone_was_good_and_never_was_again_has_diverged() -> None:
    losses = np.r_[3.6, np.linspace(29, 18.5, 40)]
    (episode,) = findings_of(DivergenceRule(), run_named(loss=losses))
    assert episode.start == 1
    assert "ended near 19.04, 5.29 times its best level of 3.6 at step 0" in episode.message
    assert findings_of(DivergenceRule(), run_named(loss=np.r_[0.0, losses[1:]])) == []  # logged before a loss was known
    assert findings_of(DivergenceRule(), run_named(loss=np.r_[3.6, np.linspace(6, 3.7, 40)])) == []


def test_a_jump_that_the_validation_shares_is_believed_sooner() -> None:
    noise = np.random.default_rng(4).normal(0, 0.22, 16)
    losses = 5 * np.exp(noise - np.arange(16) / 12)
    losses[14:] *= 2.6
    assert findings_of(DivergenceRule(), run_named(train_loss=losses)) == []
    (episode,) = findings_of(DivergenceRule(), run_named(train_loss=losses, val_loss=losses * 1.1))
    assert episode.start >= 13


def test_a_peak_that_came_back_is_no_divergence() -> None:
    losses = falling(100)
    losses[40:60] *= 2
    assert findings_of(DivergenceRule(), run_named(loss=losses)) == []


@pytest.mark.parametrize(("first", "level"), [(5.5, 4.5), (10.8, 7.6), (6.0, 5.2)])
def test_a_model_of_a_vocabulary_that_stops_early_is_stuck(first: float, level: float) -> None:
    losses = np.maximum(level, first - (first - level) * np.arange(500) / 50)
    losses = losses * np.exp(np.random.default_rng(0).normal(0, 0.01, 500))
    (episode,) = findings_of(PlateauRule(), run_named(loss=losses))
    assert 30 <= episode.start <= 60


def test_a_plateau_counts_from_the_first_value_even_if_the_first_updates_raised_the_loss() -> None:
    losses = np.r_[3.638, 3.95, 4.149, 4.05, 3.84, 3.76, 3.70, 3.67, 3.6, np.full(140, 3.487)]
    losses[9:] *= np.exp(np.random.default_rng(0).normal(0, 0.002, 140))
    (episode,) = findings_of(PlateauRule(), run_named(loss=losses))
    assert "fell by only 4.1%: from 3.638 to 3.489 over its last 14 points" in episode.message
    assert episode.metrics["first"] == pytest.approx(3.638)


def test_the_message_says_how_many_points_a_level_was_taken_from() -> None:
    losses = 3.3 * np.exp(np.random.default_rng(0).normal(0, 0.005, 60))
    (episode,) = findings_of(PlateauRule(), run_named(loss=losses))
    assert " over its first 6 points to " in episode.message
    assert " over its last 6, flat" in episode.message


def test_a_plateau_at_the_cost_of_guessing_is_named_so() -> None:
    losses = math.log(10) * np.exp(np.random.default_rng(0).normal(0, 0.005, 60))
    (episode,) = findings_of(PlateauRule(), run_named(loss=losses))
    assert "chance level for 10 classes" in episode.message
    assert episode.metrics["classes"] == 10


@pytest.mark.parametrize(
    ("first", "last"), [(1.3, 1.08), (2.5, 1.9), (0.7, 0.1), (10.8, 3.2)], ids=["fine", "fine", "classes", "model"]
)
def test_a_run_that_gained_and_then_converged_is_no_plateau(first: float, last: float) -> None:
    losses = last + (first - last) * np.exp(-np.arange(500) / 20)
    losses = losses * np.exp(np.random.default_rng(0).normal(0, 0.02, 500))
    assert findings_of(PlateauRule(), run_named(loss=losses)) == []


@pytest.mark.parametrize("steps", [3.0, 10.0, 30.0])
def test_a_gain_in_the_very_first_steps_is_a_gain(steps: float) -> None:
    losses = (1.08 + 0.22 * np.exp(-np.arange(500) / steps)) * np.exp(np.random.default_rng(0).normal(0, 0.02, 500))
    assert findings_of(PlateauRule(), run_named(loss=losses)) == []


def test_a_log_that_begins_late_says_nothing_about_the_start() -> None:
    losses = 2.0 * np.exp(np.random.default_rng(0).normal(0, 0.01, 100))
    at = 140_000 + 50 * np.arange(100)
    assert findings_of(PlateauRule(), run_of(metric_of("loss", losses, steps=at))) == []
    assert len(findings_of(PlateauRule(), run_of(metric_of("loss", losses)))) == 1


def test_noise_that_could_hide_a_gain_is_no_plateau() -> None:
    losses = 3.0 * np.exp(np.random.default_rng(0).normal(0, 0.4, 40))
    assert findings_of(PlateauRule(), run_named(loss=losses)) == []


def test_a_validation_that_rises_while_training_falls_is_overfitting() -> None:
    train = np.linspace(4, 1, 20)
    val = np.r_[np.linspace(4, 2.5, 8), np.linspace(2.55, 3.4, 12)]
    (episode,) = findings_of(OverfittingRule(), run_named(train_loss=train, val_loss=val))
    assert (episode.start, episode.metrics["best_step"]) == (8, 7.0)
    assert findings_of(OverfittingRule(), run_named(train_loss=train[::-1], val_loss=val)) == []
    assert findings_of(OverfittingRule(), run_named(train_loss=train, val_loss=np.r_[val[:8], np.full(12, 2.5)])) == []


def test_losses_and_validations_are_paired_by_their_place() -> None:
    boxes, classes = np.linspace(2, 1, 30), np.linspace(3, 1, 30)
    rising = np.r_[np.linspace(3, 1.5, 10), np.linspace(1.5, 2.2, 20)]
    history = run_named(
        **{"train/box_loss": boxes, "train/cls_loss": classes, "val/box_loss": boxes + 0.1, "val/cls_loss": rising}
    )
    episodes = findings_of(OverfittingRule(), history)
    assert [episode.metric for episode in episodes] == ["val/cls_loss"]


def test_a_model_that_is_never_right_is_stuck_whatever_its_loss_does() -> None:
    losses = falling(60)
    scores = 0.004 * np.random.default_rng(0).random(60)
    history = run_named(**{"train/loss": losses, "metrics/mAP50(B)": scores, "metrics/recall(B)": scores})
    (episode,) = findings_of(ScoreRule(), history)
    assert (episode.kind, episode.severity) == ("plateau", Severity.WARNING)
    begun = np.r_[scores[:59], 0.2]
    assert findings_of(ScoreRule(), run_named(**{"train/loss": losses, "metrics/mAP50(B)": begun})) == []
    assert findings_of(ScoreRule(), run_named(**{"train/loss": losses[:20], "accuracy": scores[:20]})) == []


def test_an_accuracy_of_exactly_zero_beside_a_loss_that_fell_was_not_measured() -> None:
    losses, zeros = np.geomspace(2.3, 0.2, 60), np.zeros(60)
    assert findings_of(ScoreRule(), run_named(loss=losses, acc=zeros)) == []
    assert len(findings_of(ScoreRule(), run_named(loss=losses, mAP50=zeros))) == 1
    assert len(findings_of(ScoreRule(), run_named(loss=2.3 + 0.001 * losses, acc=zeros))) == 1


def test_what_a_score_is_called_is_read_from_its_name() -> None:
    history = run_named(
        **{name: np.zeros(50) for name in ("val/accuracy", "F1", "mIoU", "learning_rate", "time", "mapping")}
    )
    assert {curve.name for curve in run_curves(history).scores} == {"val/accuracy", "F1", "mIoU"}


asked_rules_nan = float("nan")


def kinds(history: RunHistory, *detectors: Detector) -> set[str]:
    return {finding.kind for finding in diagnosis_of(history, detectors=detectors or None).findings}


def troubled() -> RunHistory:
    """A spike, a divergence, an infinity and a validation loss that rises."""
    losses = falling(600)
    losses[200] *= 8
    losses[400:] *= np.linspace(1, 5, 200)
    losses[300] = np.inf
    return run_named(loss=losses, val_loss=np.interp(np.arange(600), [0, 200, 600], [4.0, 2.0, 6.0]))


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("loss_spike", {"loss_spike"}),
        ("divergence", {"divergence"}),
        ("inf_detected", {"inf_detected"}),
        ("gradient_explosion", set()),
        ("nan_detected plateau", set()),
        ("divergence:start", set()),
    ],
)
def test_only_what_was_asked_for_is_judged(asked: str, expected: set[str]) -> None:
    assert kinds(troubled(), *detectors_named(asked.split())) == expected


def test_the_usual_detectors_judge_all_of_it() -> None:
    assert kinds(troubled()) >= {"loss_spike", "divergence", "inf_detected"}


def test_no_detector_at_all_judges_nothing() -> None:
    assert diagnosis_of(troubled(), detectors=()).findings == ()


def test_the_classic_way_of_finding_a_kind_is_not_helped_by_our_own() -> None:
    losses = falling(40, noise=0.001)
    losses[20] *= 1.6
    assert kinds(run_named(loss=losses)) == {"loss_spike"}
    assert kinds(run_named(loss=losses), *detectors_named(["loss_spike:classic"])) == set()


def test_a_rise_below_the_threshold_that_was_asked_for_is_no_divergence() -> None:
    history = run_named(loss=np.concatenate([falling(200), np.full(50, 2.9)]))
    assert kinds(history, Divergence()) == {"divergence"}
    assert kinds(history, Divergence(smallest_rise=3.0)) == set()


def test_a_validation_loss_below_the_threshold_that_was_asked_for_is_no_overfitting() -> None:
    steps = np.arange(60)
    history = run_named(loss=4 * np.exp(-steps / 20), val_loss=np.interp(steps, [0, 20, 60], [4.0, 2.0, 2.6]))
    assert kinds(history, Overfitting()) == {"overfitting"}
    assert kinds(history, Overfitting(smallest_rise=1.5)) == set()


def test_what_a_rule_finds_of_an_experimental_kind_is_information(monkeypatch: pytest.MonkeyPatch) -> None:
    curves = run_curves(run_of(metric_of("loss", np.r_[falling(200), math.nan, math.nan])))
    (certain,) = apply_rules([NonFiniteRule], curves, detectors_named(["nan_detected"]))
    monkeypatch.setattr(replay, "EXPERIMENTAL", frozenset({"nan_detected"}))
    (experimental,) = apply_rules([NonFiniteRule], curves, detectors_named(["nan_detected"]))
    assert (certain.severity, certain.experimental) == (Severity.CRITICAL, False)
    assert (experimental.severity, experimental.experimental) == (Severity.INFO, True)
