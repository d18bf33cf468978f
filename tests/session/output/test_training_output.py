from __future__ import annotations

import logging
import time
from dataclasses import replace

import pytest
from findings import at_step, changed
from session.output.given_clock import GivenClock
from waiting import wait_until

from mlflow_stability.kinds.reported.rollback import RollbackFacts
from mlflow_stability.kinds.reported.setup import ConfigurationFacts, MissingZeroGrad, Setting, SettingName
from mlflow_stability.session import training_output
from mlflow_stability.session.training_output import (
    ALWAYS_REPORTED,
    GAP_STEPS,
    HELD_SECONDS,
    MOST_ENDS,
    DeliveredRun,
    TrainingOutput,
    Troubles,
)
from mlflow_stability.vocabulary.result import Finding, Severity, read_remedies

RUN = DeliveredRun("ab12", "kind-otter-7", "http://host:5000/#/experiments/0/runs/ab12", "", "Healthy: it fell.")
SPIKE = at_step(
    7, "loss_spike", Severity.WARNING, "loss 9 at step 7.", remedies=read_remedies(("Lower the learning rate.",))
)
BACK = RollbackFacts("loss 9.", target=3, onset=7, steps_lost=6, seconds=0.1, rollbacks=1)
ROLLBACK = Finding.at(BACK, 9, Severity.INFO)


def test_while_gradients_are_not_cleared_no_smaller_steps_are_advised(caplog: pytest.LogCaptureFixture) -> None:
    output = TrainingOutput(silent=False)
    missing = at_step(2, MissingZeroGrad.kind, Severity.WARNING, "Not cleared.", remedies=MissingZeroGrad.remedies)
    over = ConfigurationFacts(SettingName(Setting.GRADIENTS_CLEARED), not_cleared_since=2)
    output.found(missing)
    output.found(SPIKE)
    output.found(Finding.at(over, 300, Severity.INFO))
    output.found(changed(SPIKE, step=400))
    zero_grad, before, after = caplog.messages
    assert "zero_grad()" in zero_grad
    assert before == f"loss_spike: {SPIKE.message} {MissingZeroGrad.remedies[0]}"
    assert after == f"loss_spike: {SPIKE.message} {SPIKE.remedies[0]}"


def test_a_silent_session_says_nothing_but_that_data_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    output = TrainingOutput(silent=True)
    output.begins(RUN)
    output.found(SPIKE)
    output.found(ROLLBACK)
    output.ended([RUN])
    output.warn("This machine is slow.")
    assert caplog.messages == []
    output.warn("Recorded data is lost.", if_silent=True)
    assert caplog.messages == ["Recorded data is lost."]


def test_the_start_is_logged_once_and_only_when_the_run_is_known(caplog: pytest.LogCaptureFixture) -> None:
    output = TrainingOutput(silent=False)
    assert not output.begins(DeliveredRun())
    assert not output.begins(DeliveredRun("ab12")), "where to look is not known yet"
    assert output.begins(RUN)
    assert output.begins(RUN)
    assert caplog.messages == [f"Recording run kind-otter-7: {RUN.url}"]


@pytest.mark.parametrize("trouble", [SPIKE, ROLLBACK])
def test_the_start_is_logged_before_any_finding_even_if_the_run_is_created_late(
    trouble: Finding, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    delivered_runs = [DeliveredRun()]
    output = TrainingOutput(silent=False)
    output.recording_begins("into sqlite:///mlflow.db; the run is being created.", lambda: delivered_runs[0])
    output.found(trouble)
    assert caplog.messages[0] == "Recording into sqlite:///mlflow.db; the run is being created."
    assert trouble.message in caplog.messages[1]
    delivered_runs[0] = RUN
    output.found(replace(SPIKE, kind="memory_pressure"))
    assert len(caplog.messages) == 3
    assert output.begins(RUN)
    assert output.begins(RUN)
    assert caplog.messages[3:] == [f"The run is kind-otter-7: {RUN.url}"]


def test_a_finding_of_a_known_run_is_logged_after_its_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    output = TrainingOutput(silent=False)
    output.recording_begins("into sqlite:///mlflow.db; the run is being created.", lambda: RUN)
    output.found(SPIKE)
    assert output.begins(RUN)
    assert [line.split(":")[0] for line in caplog.messages] == ["Recording run kind-otter-7", "loss_spike"]
    output.recording_begins("into sqlite:///mlflow.db; the run is being created.", lambda: DeliveredRun())
    output.found(replace(SPIKE, kind="memory_pressure"))
    assert caplog.messages[2].startswith("Recording into"), "the next recording is another one"


def test_a_finding_that_causes_a_rollback_is_logged_by_the_rollback_alone(caplog: pytest.LogCaptureFixture) -> None:
    output = TrainingOutput(silent=False)
    output.found(SPIKE, may_act=True)
    output.found(ROLLBACK, may_act=True)
    output.readings += 1
    output.step_done()
    assert caplog.messages == [ROLLBACK.message]


def test_a_finding_without_an_action_is_logged_after_its_step(caplog: pytest.LogCaptureFixture) -> None:
    output = TrainingOutput(silent=False)
    output.found(SPIKE, may_act=True)
    output.readings += 1
    output.step_done()
    assert caplog.messages == [], "processes that train together may still skip it"
    output.readings += 1
    output.step_done()
    assert caplog.messages == ["loss_spike: loss 9 at step 7. Lower the learning rate."]


def test_a_rollback_some_steps_later_is_the_only_line(caplog: pytest.LogCaptureFixture) -> None:
    output = TrainingOutput(silent=False, rolls_back=True)
    output.found(SPIKE, may_act=True)
    for _ in range(12):
        output.readings += 1
        output.step_done()
    output.found(changed(SPIKE, kind="divergence", step=9), may_act=True)
    output.found(ROLLBACK, may_act=True)
    output.readings += 1
    output.step_done()
    output.all_done()
    assert caplog.messages == [ROLLBACK.message]


def test_a_finding_of_a_slow_training_does_not_wait_for_the_next_step(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = GivenClock()
    clock.time_output(monkeypatch)
    output = TrainingOutput(silent=False, rolls_back=True)
    output.found(SPIKE, may_act=True)
    clock.advance(0.5 * HELD_SECONDS)
    output.found(replace(SPIKE, kind="divergence", severity=Severity.CRITICAL), may_act=True)
    result = []
    for share in (0.4, 0.2, 0.3, 0.2):
        clock.advance(share * HELD_SECONDS)
        result.append(len(caplog.messages))
    assert result == [0, 1, 1, 2], "each waits for its own time, not for a second turn of the timer"


def test_a_finding_is_logged_by_a_thread_if_no_further_step_follows(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_output, "HELD_SECONDS", 0.2)
    began = time.monotonic()
    TrainingOutput(silent=False, rolls_back=True).found(SPIKE, may_act=True)
    wait_until(lambda: caplog.messages)
    assert time.monotonic() - began >= 0.2


def test_a_rollback_after_its_finding_was_logged_is_short_and_names_the_finding(
    caplog: pytest.LogCaptureFixture,
) -> None:
    output = TrainingOutput(silent=False, rolls_back=True)
    divergence = at_step(9, "divergence", Severity.CRITICAL, "loss 20 at step 9, 30σ above its baseline.")
    output.found(SPIKE, may_act=True)
    output.all_done()  # as after two seconds
    output.found(divergence, may_act=True)
    answer = replace(
        BACK, reason=divergence.message, learning_rate=0.005, finding=divergence.kind, finding_step=divergence.step
    )
    output.found(Finding.at(answer, 9, Severity.INFO), may_act=True)
    output.all_done()
    short = "Rolled back from step 9 to step 3 (6 steps lost) after the loss_spike at step 7"
    assert caplog.messages[1:] == [f"{short} and the divergence at step 9. Learning rate now 0.005."]
    later = Finding.at(answer, 30, Severity.INFO)
    output.found(later, may_act=True)
    assert caplog.messages[2:] == [later.message], "nothing was said of the second one before"


def test_a_reverted_rollback_is_logged_as_such(caplog: pytest.LogCaptureFixture) -> None:
    output = TrainingOutput(silent=False)
    output.found(SPIKE)
    reverted = replace(BACK, reason="The rollback to step 3 did not help.", target=8, steps_lost=1, steps_regained=5)
    output.found(Finding.at(reverted, 9, Severity.INFO))
    assert caplog.messages[1] == (
        "Reverted the rollback: weights of step 8 restored (5 steps regained): The rollback to step 3 did not help."
    )


def test_a_rollback_for_a_reason_not_logged_before_gives_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    output = TrainingOutput(silent=False, rolls_back=True)
    output.found(SPIKE, may_act=True)
    output.all_done()
    back = Finding.at(replace(BACK, reason="Non-finite weights after step 9."), 9, Severity.INFO)
    output.found(back, may_act=True)
    assert caplog.messages[1:] == [back.message]


def test_a_finding_that_never_causes_a_rollback_is_logged_at_once(caplog: pytest.LogCaptureFixture) -> None:
    output = TrainingOutput(silent=False, rolls_back=True)
    output.found(changed(SPIKE, kind="memory_pressure", message="Memory 97 % full."), may_act=True)
    assert caplog.messages == ["memory_pressure: Memory 97 % full. Lower the learning rate."]


def test_no_rollback_is_one_line_with_what_was_found(caplog: pytest.LogCaptureFixture) -> None:
    output = TrainingOutput(silent=False, rolls_back=True)
    output.found(SPIKE, may_act=True)
    output.found(at_step(9, "give_up", Severity.CRITICAL, f"No rollback at step 9: {SPIKE.message}"), may_act=True)
    output.all_done()
    assert caplog.messages == [f"give_up: No rollback at step 9: {SPIKE.message}"]


def test_a_skipped_step_is_logged_instead_of_the_finding_that_caused_it(caplog: pytest.LogCaptureFixture) -> None:
    output = TrainingOutput(silent=False)
    output.found(at_step(7, "nan_detected", Severity.CRITICAL, "loss is NaN."), may_act=True)
    output.found(at_step(7, "step_skipped", Severity.CRITICAL, "Skipped step 7."), may_act=True)
    output.all_done()
    assert caplog.messages == ["step_skipped: Skipped step 7."]


@pytest.mark.parametrize("readings", [0, 1])
def test_a_skip_is_logged_in_place_of_its_finding_when_the_finding_is_due(
    readings: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = GivenClock()
    clock.time_output(monkeypatch)
    output = TrainingOutput(silent=False, rolls_back=True)
    output.found(at_step(7, "nan_detected", Severity.CRITICAL, "loss is NaN."), may_act=True)
    clock.advance(0.1 * HELD_SECONDS)
    for _ in range(readings):
        output.readings += 1
        output.step_done()
    output.found(at_step(7, "step_skipped", Severity.WARNING, "Skipped step 7."), may_act=True)
    clock.advance(0.95 * HELD_SECONDS)  # the finding is due, and the skip is not
    assert len(caplog.messages) == 1
    output.all_done()
    assert caplog.messages == ["step_skipped: Skipped step 7."]


@pytest.mark.parametrize("kind", ["nan_detected", "step_skipped", "activation_nonfinite"])
def test_a_nan_with_a_known_origin_is_logged_with_its_origin_and_remedy(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    origin = at_step(
        7,
        "nan_origin",
        Severity.INFO,
        "Step 7: the batch was NaN.",
        remedies=read_remedies(("Inspect the saved batch.",)),
    )
    finding = at_step(
        7,
        kind,
        Severity.CRITICAL,
        "It is NaN.",
        remedies=read_remedies(("Find the first module whose output is NaN.",)),
    )
    before = TrainingOutput(silent=False)
    before.found(origin)
    before.found(finding)
    held = TrainingOutput(silent=False, rolls_back=True)
    held.found(finding, may_act=True)
    held.found(origin, may_act=True)
    held.all_done()
    assert caplog.messages == [f"{kind}: It is NaN. Step 7: the batch was NaN. Inspect the saved batch."] * 2


@pytest.mark.parametrize(("kind", "step"), [("loss_spike", 7), ("step_skipped", 9), ("nan_detected", 200)])
def test_an_unrelated_finding_is_not_attributed_to_an_earlier_nan(
    kind: str, step: int, caplog: pytest.LogCaptureFixture
) -> None:
    output = TrainingOutput(silent=False)
    output.found(
        at_step(7, "nan_origin", Severity.INFO, "Step 7: the batch was NaN.", remedies=read_remedies(("Inspect it.",)))
    )
    output.found(at_step(step, kind, Severity.CRITICAL, "It was so.", remedies=read_remedies(("Do this.",))))
    assert caplog.messages == [f"{kind}: It was so. Do this."]


def test_a_run_with_a_late_url_does_not_repeat_its_findings(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    output = TrainingOutput(silent=False)
    for run in (RUN, replace(RUN, run_id="cd34", name="calm-owl-1")):
        output.recording_begins("into sqlite:///mlflow.db; the run is being created.", DeliveredRun)
        output.found(SPIKE)
        output.begins(run)
        output.found(changed(SPIKE, step=8))
    first = [line.split(":")[0] for line in caplog.messages[:3]]
    assert first == ["Recording into sqlite", "loss_spike", "The run is kind-otter-7"]
    again = [line.split(":")[0] for line in caplog.messages[3:]]
    assert again == ["Recording into sqlite", "loss_spike", "The run is calm-owl-1"], "its findings are its own"


def test_advice_of_one_recording_is_not_given_in_the_next(caplog: pytest.LogCaptureFixture) -> None:
    output = TrainingOutput(silent=False)
    missing = at_step(2, MissingZeroGrad.kind, Severity.WARNING, "Not cleared.", remedies=MissingZeroGrad.remedies)
    origin = at_step(50, "nan_origin", Severity.INFO, "Step 50: the batch was NaN.", remedies=SPIKE.remedies)
    broken = at_step(51, "nan_detected", Severity.CRITICAL, "loss is NaN.", remedies=read_remedies(("Inspect it.",)))
    output.recording_begins("offline in here.", lambda: RUN)
    output.found(missing)
    output.found(origin)
    output.recording_begins("offline in here.", lambda: replace(RUN, run_id="cd34"))
    output.found(broken)
    assert caplog.messages[-1] == "nan_detected: loss is NaN. Inspect it."


def test_a_finding_that_waits_is_logged_before_the_next_recording_begins(caplog: pytest.LogCaptureFixture) -> None:
    output = TrainingOutput(silent=False)
    output.found(SPIKE, may_act=True)
    output.recording_begins("offline in here.", lambda: RUN)
    assert caplog.messages == [f"loss_spike: {SPIKE.message} {SPIKE.remedies[0]}"]


def test_the_last_message_gives_the_verdict_the_cause_and_the_report(caplog: pytest.LogCaptureFixture) -> None:
    output = TrainingOutput(silent=False)
    output.ended([RUN, DeliveredRun("cd34", "calm-owl-1", "", "mlflow ui", "Broken: NaN.", "Likely cause: its batch.")])
    assert caplog.messages == [
        f"Run kind-otter-7: Healthy: it fell. Report: {RUN.url}",
        "Run calm-owl-1: Broken: NaN. Likely cause: its batch. Report: `mlflow-stability open cd34`",
    ]


def test_an_end_without_a_verdict_says_how_to_get_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    TrainingOutput(silent=False).ended([DeliveredRun("cd34", "calm-owl-1")])
    assert caplog.messages == [
        "No verdict yet: `mlflow-stability diagnose cd34` gives it. Report: `mlflow-stability open cd34`"
    ]


def test_the_result_for_sparse_codes_is_logged_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    codes = "SDR: 0.61 unique, no collapse."
    TrainingOutput(silent=False).ended([DeliveredRun("cd34", "calm-owl-1", "", "", "Healthy: it fell.", codes=codes)])
    assert caplog.messages == [f"Healthy: it fell. {codes} Report: `mlflow-stability open cd34`"]


def test_of_many_runs_the_last_ones_are_listed_and_the_others_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    TrainingOutput(silent=False).ended([RUN] * (MOST_ENDS + 2))
    assert len(caplog.messages) == MOST_ENDS + 1
    assert caplog.messages[-1].startswith("2 more runs were recorded before.")
    TrainingOutput(silent=False).ended([RUN] * (MOST_ENDS + 1))
    assert caplog.messages[-1].startswith("1 more run was recorded before.")


WARNING, CRITICAL = Severity.WARNING, Severity.CRITICAL


def news_of(*events: tuple[int, str, Severity]) -> list[tuple[int, str]]:
    troubles = Troubles()
    return [
        (step, kind) for step, kind, severity in events if troubles.is_news(at_step(step, kind, severity, "It was."))
    ]


def test_findings_of_severity_info_are_not_logged() -> None:
    assert news_of((5, "loss_spike", Severity.INFO)) == []


def test_the_first_finding_of_a_problem_and_worse_ones_are_logged() -> None:
    learning_rate_jump = [
        (302, "gradient_explosion", WARNING),
        (301, "learning_rate_jump", WARNING),
        (303, "loss_spike", CRITICAL),
        (304, "step_skipped", WARNING),
        (308, "gradient_explosion", CRITICAL),
        (313, "divergence", CRITICAL),
        (317, "inf_detected", CRITICAL),
        (318, "nan_detected", CRITICAL),
        (400, "activation_nonfinite", WARNING),
    ]
    assert news_of(*learning_rate_jump) == [(302, "gradient_explosion"), (313, "divergence"), (317, "inf_detected")]


def test_another_problem_is_logged_when_the_previous_one_is_over() -> None:
    first, soon, later = (
        (step, "loss_spike", WARNING) for step in (100, 100 + GAP_STEPS, 100 + GAP_STEPS + GAP_STEPS + 1)
    )
    assert news_of(first, soon, later) == [(100, "loss_spike"), (101 + 2 * GAP_STEPS, "loss_spike")]


def test_a_finding_unrelated_to_the_current_problem_is_logged_too() -> None:
    counts = (10, "loss_spike", WARNING), (11, "memory_pressure", WARNING), (12, "memory_pressure", WARNING)
    assert news_of(*counts) == [(10, "loss_spike"), (11, "memory_pressure")]


def test_after_a_rollback_findings_of_the_same_problem_are_logged_only_if_worse() -> None:
    troubles = Troubles()
    troubles.answered(313)
    assert not troubles.is_news(at_step(315, "loss_spike", CRITICAL, "It was."))
    assert troubles.is_news(at_step(316, "nan_detected", CRITICAL, "It was."))


def test_actions_are_always_logged() -> None:
    assert news_of(*[(step, "give_up", WARNING) for step in (10, 11)]) == [(10, "give_up"), (11, "give_up")]


def test_a_training_full_of_spikes_says_each_doubling_of_their_number() -> None:
    spikes = [(step * 2 * GAP_STEPS, "loss_spike", WARNING) for step in range(1, 41)]
    assert [step // (2 * GAP_STEPS) for step, _ in news_of(*spikes)] == [*range(1, ALWAYS_REPORTED + 1), 8, 16, 32]
