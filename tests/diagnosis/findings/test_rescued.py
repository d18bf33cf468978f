from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from diagnosis.histories import falling, metric_of, run_of
from findings import at_step, changed, over_steps

from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.diagnosis.verdict import outcome_of, title_of, verdict_of
from mlflow_stability.kinds.loss.divergence import DivergenceFacts
from mlflow_stability.kinds.loss.divergence_curve import LastingRiseFacts
from mlflow_stability.kinds.loss.divergence_early import StartFacts
from mlflow_stability.kinds.reported.autopilot import EarlyStopFacts
from mlflow_stability.kinds.reported.rollback import RollbackFacts
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.loss_level import LOSS_LEVEL, LossLevel, NoLevel
from mlflow_stability.vocabulary.result import CurveReading, Finding, Severity, Text
from mlflow_stability.vocabulary.text.metric_names import Meaning

READING = CurveReading("loss", "", 500, 1, 500, 2.0, 1.0, 0.9, 480)


def episode(kind: str, step: int, severity: Severity, times: int = 1, **more: Any) -> Finding:
    return over_steps(kind, severity, step, step, step, f"{kind} at step {step}.", times, **{"recovered": True, **more})


DIVERGED = episode("divergence", 200, Severity.CRITICAL)


def back_to(target: int, step: int = 210, times: int = 1, **more: Any) -> Finding:
    facts = RollbackFacts("loss 9.", target, step - 10, step - target, 0.1, times)
    return episode("rollback", step, Severity.INFO, times, facts=facts, **more)


BACK = back_to(190)


def outcome(findings: list[Finding]) -> str:
    return outcome_of(findings, [READING], "", measured=True)


def test_a_training_that_was_rolled_back_and_trained_on_has_recovered() -> None:
    findings = [DIVERGED, BACK]
    assert outcome(findings) == "recovered"
    assert verdict_of("recovered", findings, [READING], 500) == (
        "Recovered: rolled back to step 190 after a divergence at step 200; loss fell from 2 to 1 in 500 steps."
    )


@pytest.mark.parametrize(
    ("rollbacks", "verdict"),
    [
        ([BACK], "Recovered: rolled back to step 190 (loss 9); loss fell from 2 to 1 in 500 steps."),
        ([back_to(190, times=2)], "Recovered: rolled back 2 times; loss fell from 2 to 1 in 500 steps."),
    ],
)
def test_a_training_that_was_rolled_back_without_a_warning_is_not_called_healthy(
    rollbacks: list[Finding], verdict: str
) -> None:
    assert outcome(rollbacks) == "recovered"
    assert verdict_of("recovered", rollbacks, [READING], 500) == verdict
    assert outcome_of(rollbacks, [], "", measured=False) == "cannot_tell"


@pytest.mark.parametrize(("rise", "update", "kinds"), [(900.0, 4.0, ["divergence"]), (900.0, 0.5, []), (5.0, 4.0, [])])
def test_a_divergence_whose_update_replaced_the_weights_stays_where_the_level_is_not_judged(
    rise: float, update: float, kinds: list[str]
) -> None:
    level = metric_of(
        LOSS_LEVEL, [LossLevel(NoLevel.BOOTSTRAPPED).code], steps=[9], meaning=Meaning(LOSS_LEVEL, is_known=True)
    )
    losses = np.r_[1.0, np.full(3, rise), np.geomspace(1.0, 0.3, 196)]
    facts = StartFacts(rise, 1.0, update, 1, 3, 3.0)
    diverged = replace(Finding.at(facts, 3, Severity.CRITICAL), kind="divergence")
    back = Finding.at(RollbackFacts("loss 900.", 0, 1, 4, 0.1, 1), 4, Severity.INFO)
    diagnosis = diagnosis_of(
        run_of(metric_of("loss", losses), metric_of("grad_norm", np.ones(200)), level, events=[diverged, back])
    )
    assert diagnosis.outcome == "recovered"
    assert [finding.kind for finding in diagnosis.findings if finding.severity >= Severity.WARNING] == kinds


@pytest.mark.parametrize(
    ("ended", "expected"),
    [(0.5, "recovered"), (0.61, "recovered"), (0.9, "unstable"), (2.3, "diverged"), (8.3e64, "diverged")],
)
def test_a_training_with_a_loss_near_its_earlier_level_has_recovered(ended: float, expected: str) -> None:
    level = changed(DIVERGED, metric="loss", facts=DivergenceFacts(5.0, 0.5, 9.0, 4.0, 12, 16))
    reading = replace(READING, first_level=2.0, last_level=ended)
    assert outcome_of([level, BACK], [reading], "", measured=True, main=reading) == expected


@pytest.mark.parametrize(("ended", "expected"), [(2.4, "recovered"), (2.6, "unstable")])
def test_a_loss_that_was_negative_and_whose_earlier_level_is_not_known_recovers_near_its_start(
    ended: float, expected: str
) -> None:
    reading = replace(READING, first_level=2.0, last_level=ended, best=-0.5)
    assert outcome_of([changed(DIVERGED, metric="loss"), BACK], [reading], "", measured=True, main=reading) == expected


def test_the_last_value_of_a_noisy_loss_is_given_beside_its_trend() -> None:
    noisy = replace(READING, volatility=0.2, change=-0.5, first_level=1.96, last_level=1.04)
    verdict = verdict_of("recovered", [DIVERGED, BACK], [noisy], 500)
    assert verdict.endswith("; loss (noisy) fell from about 1.96 to 1.04 in 500 steps; last value 1.")


def test_a_noisy_loss_that_did_not_move_stayed_where_it_was() -> None:
    noisy = replace(READING, volatility=0.2, change=0.001, first_level=2.0, last_level=2.002)
    assert (
        verdict_of("healthy", [], [noisy], 500) == "Healthy: loss (noisy) stayed at about 2 for 500 steps; no warnings."
    )


def test_a_single_step_is_counted_as_one() -> None:
    single = replace(READING, points=1, first_step=10, last_step=10)
    assert verdict_of("healthy", [], [single], 500).endswith(" in 1 step; no warnings.")


def test_a_run_ended_by_stop_on_is_called_stopped_whatever_its_outcome_is() -> None:
    facts = EarlyStopFacts("loss<0.05", "loss is 0.04", before_step=True)
    stop = episode("early_stopping", 74, Severity.INFO, facts=facts)
    assert verdict_of("healthy", [stop], [READING], 74) == (
        "Stopped: loss is 0.04 (stop_on=loss<0.05), before step 74 was taken; loss fell from 2 to 1 in 500 steps; "
        "no warnings."
    )
    assert title_of("healthy", [stop]) == "Stopped"
    assert verdict_of("recovered", [DIVERGED, BACK, stop], [READING], 500).endswith(
        "Stopped before step 74 was taken: loss is 0.04 (stop_on=loss<0.05)."
    )


def test_the_verdict_counts_the_rollbacks() -> None:
    again = back_to(300, 320, attempt=1)
    nan = episode("nan_detected", 319, Severity.CRITICAL, attempt=1)
    verdict = verdict_of("recovered", [DIVERGED, BACK, nan, again], [], 500)
    assert "rolled back 2 times, last to step 300 after NaN at step 319 (1 more finding)" in verdict
    facts = RollbackFacts("No lower loss.", 320, 319, 10, 0.1, 3, steps_regained=20)
    reverted = episode("rollback", 330, Severity.INFO, facts=facts, attempt=2)
    verdict = verdict_of("recovered", [DIVERGED, BACK, nan, again, reverted], [], 500)
    assert "rolled back to step 190 after a divergence at step 200" in verdict, "the second one was reverted"
    assert outcome([DIVERGED, BACK, again, reverted]) == "recovered"
    assert outcome([DIVERGED, again, reverted]) == "unstable", "no rollback is in effect"
    verdict = verdict_of("diverged", [DIVERGED, again, reverted], [READING], 500)
    assert "The training was rolled back once (reverted);" in verdict
    verdict = verdict_of("interrupted", [DIVERGED.with_span(recovered=True), BACK], [READING], 500)
    assert verdict.endswith("The training was rolled back to step 190 after a divergence at step 200."), "it came down"
    merged = back_to(190, times=3)
    assert "rolled back 3 times after" in verdict_of("recovered", [DIVERGED, merged], [READING], 500)


@pytest.mark.parametrize(
    ("later", "expected"),
    [
        (episode("give_up", 230, Severity.WARNING, recovered=None), "unstable"),
        (episode("gradient_explosion", 400, Severity.CRITICAL, recovered=False), "unstable"),
        (episode("divergence", 400, Severity.CRITICAL, recovered=False), "diverged"),
        (episode("loss_spike", 400, Severity.WARNING), "recovered"),
    ],
)
def test_a_rollback_that_did_not_help_is_not_a_recovery(later: Finding, expected: str) -> None:
    assert outcome([DIVERGED, BACK, later]) == expected


def test_a_divergence_that_lasted_until_a_rollback_does_not_remain_after_it() -> None:
    lasted = changed(DIVERGED, recovered=False, end=210)
    later = episode("loss_spike", 400, Severity.WARNING, attempt=1)
    lasteds = [lasted, BACK, later]
    assert outcome_of(lasteds, [READING], "", measured=True, last_attempt=1) == "recovered"
    left = changed(later, severity=Severity.CRITICAL, kind="gradient_explosion", recovered=False)
    assert outcome_of([lasted, BACK, left], [READING], "", measured=True, last_attempt=1) == "unstable"


def test_a_rollback_is_reported_with_its_own_reason_and_not_with_an_earlier_finding() -> None:
    spike = episode("loss_spike", 300, Severity.WARNING)
    nan = episode("nan_detected", 801, Severity.CRITICAL)
    facts = RollbackFacts("Non-finite weights after step 801.", 673, 800, 128, 0.1, 1)
    back = changed(BACK, facts=facts, start=801, peak=801, end=801)
    verdict = verdict_of("recovered", [spike, nan, back], [READING], 500)
    assert verdict.startswith("Recovered: rolled back to step 673 after NaN at step 801 (1 more finding); loss fell")
    by_hand = changed(back, facts=replace(facts, reason="The script called rollback()."))
    verdict = verdict_of("recovered", [spike, by_hand], [READING], 500)
    assert verdict.startswith("Recovered: rolled back to step 673 (the script called rollback()); loss fell")


def test_a_warning_of_overfitting_is_not_the_outcome_over_something_critical() -> None:
    fitted = episode("overfitting", 300, Severity.WARNING, recovered=False)
    collapsed = episode("sdr_collapse", 400, Severity.CRITICAL, recovered=False)
    assert outcome([fitted]) == "overfitted"
    assert outcome([fitted, collapsed]) == "unstable"
    assert outcome([fitted, changed(collapsed, recovered=True)]) == "overfitted"


def test_a_divergence_that_passed_without_a_rollback_is_not_called_recovered() -> None:
    assert outcome([DIVERGED]) == "unstable"


UNCLEARED = at_step(180, "missing_zero_grad", Severity.WARNING, "Gradients are not cleared since step 180.")
CLEARED = at_step(
    260, "configuration_changed", Severity.INFO, "Gradients are cleared again.", evidence={"not_cleared_since": 180.0}
)


@pytest.mark.parametrize(
    ("later", "expected"),
    [
        ((), "Unstable: rolled back to step 170 after a divergence at step 200 (1 more finding), but zero_grad() is"),
        ((CLEARED,), "Recovered: rolled back to step 170 after a divergence at step 200 (1 more finding); loss"),
    ],
)
def test_a_run_that_still_lacks_zero_grad_has_not_recovered(later: tuple[Finding, ...], expected: str) -> None:
    losses = falling(500, noise=0.05)
    losses[200:210] *= 30
    events = (
        UNCLEARED,
        at_step(200, "divergence", Severity.CRITICAL, "loss stands out.", evidence={"loss": float(losses[200])}),
        at_step(210, "rollback", Severity.INFO, "Rolled back from step 210 to step 170.", evidence={"target": 170.0}),
        *later,
    )
    diagnosis = diagnosis_of(run_of(metric_of("loss", losses), events=events))
    assert diagnosis.verdict.startswith(expected)
    (uncleared,) = [finding for finding in diagnosis.findings if finding.kind == "missing_zero_grad"]
    assert (uncleared.recovered, uncleared.end) == ((True, 260) if later else (False, 180))


NOT_BACK = episode("divergence", 200, Severity.CRITICAL, recovered=False, metric="loss", attempt=0)
RATIO = LastingRiseFacts("loss", 0.03, 9.0, True, True, best=0.01, best_step=180, threshold=1.1)


def test_a_loss_that_has_not_come_down_since_the_rollback_is_reported_with_the_rollback() -> None:
    changeds = [replace(NOT_BACK, facts=RATIO), BACK]
    assert outcome(changeds) == "diverged"
    assert verdict_of("diverged", changeds, [READING], 500) == (
        "Diverged: rolled back to step 190 after a divergence at step 200, but loss has not come down again: it ended "
        "at 0.03, 3 times its best level of 0.01."
    )
    again = back_to(300, 320, attempt=1)
    later = episode("divergence", 318, Severity.CRITICAL, attempt=1)
    verdict = verdict_of("diverged", [*changeds, later, again], [READING], 500)
    assert verdict.startswith(
        "Diverged: rolled back 2 times, last to step 300 after a divergence at step 318, but loss "
    )


def test_a_second_divergence_after_a_recovered_one_is_reported_from_its_own_first_step() -> None:
    losses = falling(800, noise=0.05)
    losses[400:413] *= 4
    losses[602:] = 5.0 * np.exp(np.random.default_rng(3).normal(0, 0.05, 198))
    events = (
        at_step(412, "divergence", Severity.CRITICAL, "loss stands out.", evidence={"loss": float(losses[412])}),
        at_step(413, "rollback", Severity.INFO, "Rolled back from step 413 to step 301.", evidence={"target": 301.0}),
    )
    diagnosis = diagnosis_of(run_of(metric_of("loss", losses), events=events))
    first, second = [finding for finding in diagnosis.findings if finding.kind == "divergence"]
    assert (first.start, first.end, first.recovered) == (412, 413, True)
    assert (second.start, second.end, second.recovered) == (602, 799, False)
    assert diagnosis.verdict.startswith("Diverged: loss rose from step 602 on: ended near ")
    assert "The training was rolled back to step 301 after a divergence at step 412." in diagnosis.verdict
    assert "has not come down again" not in diagnosis.verdict


@pytest.mark.parametrize("facts", [Text("divergence at step 200."), replace(RATIO, best=-1.0)])
def test_the_rollback_is_reported_where_no_ratio_of_the_loss_to_its_best_level_is_known(facts: Facts) -> None:
    verdict = verdict_of(
        "diverged", [changed(NOT_BACK, facts=facts, message="divergence at step 200."), BACK], [READING], 500
    )
    assert verdict == (
        "Diverged: divergence at step 200. The training was rolled back to step 190 after a divergence at step 200; "
        "the loss has not come down again."
    )


def test_a_finding_after_the_last_rollback_is_reported_first_and_then_the_rollback() -> None:
    later = changed(NOT_BACK, start=400, peak=400, end=400, attempt=1, message="divergence at step 400.", facts=RATIO)
    assert verdict_of("diverged", [DIVERGED, BACK, later], [READING], 500).startswith(
        "Diverged: divergence at step 400. The training was rolled back to step 190 after a divergence at step 200."
    )
    killed = changed(NOT_BACK, kind="killed", message="Killed after step 400.")
    assert verdict_of("killed", [DIVERGED, BACK, killed], [READING], 500).startswith(
        "Killed: Killed after step 400. The training was rolled back to step 190 after a divergence at step 200."
    )


@pytest.mark.parametrize(("steps", "expected"), [(90, "Diverged: rolled back to step 1 after "), (900, "Recovered: ")])
def test_a_loss_that_has_only_begun_to_fall_again_is_not_reported_as_recovered(steps: int, expected: str) -> None:
    before, after = falling(300, first=0.5, last=0.01), falling(900, first=0.5, last=0.01)[:steps]
    losses = np.concatenate([before, np.geomspace(1, 1e9, 13), after])
    attempts = (np.arange(len(losses)) >= 313).astype(np.int64)
    events = (
        at_step(312, "divergence", Severity.CRITICAL, "loss 1e9 at step 312."),
        at_step(312, "rollback", Severity.INFO, "Rolled back from step 312 to step 1.", evidence={"target": 1.0}),
    )
    verdict = diagnosis_of(run_of(metric_of("loss", losses, attempts=attempts), events=events)).verdict
    assert verdict.startswith(expected)
    assert "rolled back to step 1 after a divergence at step 3" in verdict


@pytest.mark.parametrize("since", [36, 6])
@pytest.mark.parametrize("height", [1.6, 15.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_loss_that_continues_from_the_restored_state_has_recovered(since: int, height: float, seed: int) -> None:
    verdict = verdict_after_rollback(since, height, lambda losses: losses[101 : 101 + since], seed=seed)
    assert verdict.startswith("Recovered: rolled back to step 101 after a divergence at step ")
    assert "loss fell from 1." in verdict, "the undone rise is not its end"


@pytest.mark.parametrize("height", [1.6, 15.0])
def test_a_loss_that_stays_high_after_a_rollback_has_not_recovered(height: float) -> None:
    verdict = verdict_after_rollback(36, height, lambda losses: losses[:36] * height)
    assert verdict.startswith("Diverged: ")


def verdict_after_rollback(since: int, height: float, course: Callable[[np.ndarray], np.ndarray], seed: int = 0) -> str:
    """The verdict of a falling loss that was high for 14 steps and was rolled back to step 101."""
    losses = falling(400, seed=seed, first=1.4, last=0.3)[: 200 - since]
    losses[-14:] = height
    losses = np.concatenate([losses, course(falling(400, seed=seed + 9, first=1.4, last=0.3))])
    rise = DivergenceFacts(height, float(np.median(losses[150 - since : 180 - since])), 30.0, 4.0, 12, 16)
    back = RollbackFacts("loss is high.", 101, 180 - since, 98 - since, 0.1, 1)
    attempts = (np.arange(200) >= 200 - since).astype(np.int64)
    events = (
        at_step(198 - since, "divergence", Severity.CRITICAL, facts=rise),
        at_step(199 - since, "rollback", Severity.INFO, facts=back),
    )
    return diagnosis_of(run_of(metric_of("loss", losses, attempts=attempts), events=events)).verdict


def test_a_training_that_ended_above_its_start_has_not_recovered() -> None:
    reading = replace(READING, first_level=4.73, last_level=5.43, best=4.7)
    infinite = episode("inf_detected", 2, Severity.CRITICAL)
    assert outcome_of([infinite, back_to(0, 5)], [reading], "", measured=True, main=reading) == "diverged"


def test_a_higher_learning_rate_is_not_advised_where_the_loss_overflowed() -> None:
    losses = np.r_[4.73, np.inf, 5.43 + np.random.default_rng(0).normal(0, 0.002, 298)]
    rates = metric_of("learning_rate", np.full(300, 1e-3))
    advised = [str(remedy) for remedy in diagnosis_of(run_of(metric_of("loss", losses), rates)).remedies]
    assert advised
    assert [first for first in advised if first.startswith("Raise the learning rate")] == []
