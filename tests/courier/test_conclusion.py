from __future__ import annotations

import json
import math
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from courier.staging import SIGNALS, Training
from findings import at_step
from mlflow import MlflowClient

from mlflow_stability import diagnose
from mlflow_stability.courier import run_of_recording
from mlflow_stability.courier.conclusion import best_checkpoint, conclusion_of
from mlflow_stability.courier.deliver import deliver_session
from mlflow_stability.courier.run_of_recording import live_description
from mlflow_stability.courier.sinks.event_sink import RunSummary
from mlflow_stability.kinds.first_look.loss_function import Activation, LossFunction, LossInput, LossInputFacts
from mlflow_stability.recovery.checkpoints.stored_checkpoints import CheckpointMeta
from mlflow_stability.recovery.rollback_events import give_up_event, rollback_event
from mlflow_stability.recovery.rollback_state import Decision
from mlflow_stability.tracking import tag_names
from mlflow_stability.tracking.read.run_reader import RunReader
from mlflow_stability.vocabulary.measured.signal import StepReading
from mlflow_stability.vocabulary.result import Severity, read_remedies
from mlflow_stability.vocabulary.run import Closing, Reset

pytestmark = pytest.mark.usefixtures("blank_pictures")

READ_BY_PEOPLE = {
    tag_names.VERDICT,
    tag_names.OUTCOME,
    tag_names.CAUSE,
    tag_names.FIRST_ISSUE_STEP,
    tag_names.FINDINGS,
    tag_names.ROLLBACKS,
    tag_names.SKIPPED_STEPS,
    tag_names.ENDED,
    tag_names.CHANGED_SETTINGS,
    tag_names.EARLY_STOPPING_STEP,
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "journals"


def broken_training(root: Path, uri: str, **opening: object) -> Training:
    """Sixty steps; from the fiftieth on the loss is NaN."""
    training = Training(root, uri, **opening)
    now = time.time() - 60
    for step in range(1, 61):
        loss = math.nan if step >= 50 else 2.0 / step
        training.journal.append(StepReading(step, SIGNALS, (loss, 1.0, 0.01, 1.0), 0, now + step))
        if step == 50:
            message = "loss is NaN at step 50; last finite value 0.0408."
            training.journal.append(
                at_step(
                    50,
                    "nan_detected",
                    Severity.CRITICAL,
                    message,
                    remedies=read_remedies(("Check the data.",)),
                    time=now,
                )
            )
    return training


@pytest.mark.slow
def test_a_broken_run_is_described_with_advice_although_its_process_finished(root: Path, sqlite_uri: str) -> None:
    client = MlflowClient(sqlite_uri)
    run_id = client.create_run("0", tags={"mlflow.note.content": "Second try, *smaller* model."}).info.run_id
    training = broken_training(root, sqlite_uri, run_id=run_id)
    training.end(Closing("finished", "", 60))
    deliver_session(training.folder)
    tags = client.get_run(run_id).data.tags
    assert (tags["stability.ended"], tags["stability.verdict"]) == ("finished", "broken")
    assert tags["stability.first_issue_step"] == "50"
    assert tags["stability.findings"] == "1 critical"
    assert {tag for tag in tags if not tag.startswith("mlflow.")} <= READ_BY_PEOPLE
    description = tags["mlflow.note.content"]
    assert description.startswith(
        "Second try, *smaller* model.\n\n### Training stability: broken\n\n"
        "Loss is NaN at step 50; last finite value 0.0408; non-finite up to step 60."
    )
    shown = description.splitlines()[:8]  # of its own text two, and five of ours that MLflow shows unfolded
    assert any(line.startswith("**What to do:** ") for line in shown)
    assert "60 steps · loss 2 → NaN" in description
    diagnosis = diagnose(run_id, tracking_uri=sqlite_uri)  # which has the lowest loss, and no median of some
    least = diagnosis.curves[0]
    assert f", lowest {least.best:.3g} at step {least.best_step} ·" in description
    assert f"/runs/{run_id}/artifacts/stability/report.html?workflowType=machine_learning)" in description


def test_the_description_of_a_run_ended_by_the_autopilot_begins_with_the_reason(root: Path, sqlite_uri: str) -> None:
    training = broken_training(root, sqlite_uri)
    decision = Decision("give_up", "100 consecutive steps skipped since step 50.", 50, final=True, nothing_left=True)
    training.journal.append(give_up_event(decision, 60, rollbacks=0, ends=True))
    training.end(Closing("stopped", "100 consecutive steps skipped since step 50", 60))
    (run_id,) = deliver_session(training.folder).run_ids
    run = MlflowClient(sqlite_uri).get_run(run_id)
    assert (run.info.status, run.data.tags["stability.ended"]) == ("FAILED", "stopped")
    why = "TrainingDiverged at step 60{} 100 consecutive steps skipped since step 50."
    assert run.data.tags["stability.outcome"].startswith(f"Ended with {why.format(':')}")
    shown = run.data.tags["mlflow.note.content"].splitlines()
    assert shown[2].rstrip() == f"**Ended by mlflow-stability:** {why.format('.')}"


def test_a_rollback_that_was_reverted_is_not_counted(root: Path, sqlite_uri: str) -> None:
    training = Training(root, sqlite_uri)
    rolled_back = {
        50: Decision("rollback", "The loss is NaN.", 45, 40),
        58: Decision("rollback", "The rollback to step 40 did not help.", 45, 50, undoes=10),
    }
    attempt, now = 0, time.time() - 70
    for step in range(1, 71):
        loss = math.nan if step >= 45 else 2.0 / step
        training.journal.append(StepReading(step, SIGNALS, (loss, 1.0, 0.01, 1.0), attempt, now + step))
        if step in (45, 52, 60):
            broken = at_step(step, "nan_detected", Severity.CRITICAL, f"loss is NaN at step {step}.", time=now + step)
            training.journal.append(replace(broken, where=replace(broken.where, attempt=attempt)))
        if step in rolled_back:
            event = rollback_event(rolled_back[step], step, seconds=0.1, rollbacks=attempt + 1)
            training.journal.append(replace(event, where=replace(event.where, attempt=attempt)))
            attempt += 1
            training.journal.append(Reset(step + 1, attempt, "rollback"))
    training.end(Closing("finished", "", 70))
    (run_id,) = deliver_session(training.folder).run_ids
    tags = MlflowClient(sqlite_uri).get_run(run_id).data.tags
    assert tags["stability.rollbacks"] == "0"
    assert "rolled back once (reverted)" in tags["mlflow.note.content"]


def test_a_run_has_its_report_at_its_end(root: Path, sqlite_uri: str) -> None:
    training = broken_training(root, sqlite_uri)
    training.end(Closing("finished", "", 60))
    (run_id,) = deliver_session(training.folder).run_ids
    reader = RunReader(run_id, sqlite_uri)
    document = reader.fetched("stability/report.json", lambda file: json.loads(file.read_text()))
    assert document["runs"][0]["outcome"] == "broken"
    page = reader.fetched("stability/report.html", lambda file: file.read_text())
    assert "nan_detected" in page


def test_the_final_verdict_is_not_overwritten_by_later_updates(
    root: Path, sqlite_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_of_recording, "_INTERVAL", 0.0)  # pictures can take long
    training = broken_training(root, sqlite_uri)
    training.end(Closing("finished", "", 60))
    (run_id,) = deliver_session(training.folder).run_ids
    tags = RunReader(run_id, sqlite_uri).tags
    assert tags["stability.verdict"] == "broken"
    assert "running" not in tags["mlflow.note.content"]


def test_a_killed_process_does_not_hide_the_verdict_on_its_training(root: Path, sqlite_uri: str) -> None:
    training = broken_training(root, sqlite_uri)
    training.end(None)
    (run_id,) = deliver_session(training.folder).run_ids
    tags = RunReader(run_id, sqlite_uri).tags
    assert (tags["stability.ended"], tags["stability.verdict"]) == ("killed", "broken")
    assert "The process was killed" in tags["mlflow.note.content"]
    items = [item for _, item in RunReader(run_id, sqlite_uri).event_lines() if isinstance(item, Closing)]
    assert [item.outcome for item in items] == ["killed"]


def test_a_run_with_mistakes_in_its_set_up_alone_is_not_headed_unstable(root: Path, sqlite_uri: str) -> None:
    training, now = Training(root, sqlite_uri), time.time() - 60
    for step in range(1, 61):
        training.journal.append(StepReading(step, SIGNALS, (2.0 / step, 1.0, 0.01, 1.0), 0, now + step))
    facts = LossInputFacts(LossFunction.CROSS_ENTROPY, Activation.SOFTMAX, "head.2")
    finding = at_step(2, "loss_input", Severity.WARNING, facts=facts, remedies=LossInput.remedies, judged=False)
    training.journal.append(finding)
    training.end(Closing("finished", "", 60))
    (run_id,) = deliver_session(training.folder).run_ids
    tags = MlflowClient(sqlite_uri).get_run(run_id).data.tags
    assert tags["stability.verdict"] == "unstable"
    assert tags["mlflow.note.content"].startswith("### Training stability: check the set-up\n\n")
    assert "Remove the activation between the model's output and the loss function" in tags["mlflow.note.content"]


def test_the_description_of_a_running_training_has_its_step_state_and_newest_values() -> None:
    story = RunSummary(0)
    story.take(StepReading(4200, SIGNALS, (0.5, 1.25, 0.01, 1.0), 0, 1.0))
    assert live_description(story, Counter()).splitlines()[:3] == [
        "### Training stability: running, step 4,200, healthy",
        "",
        "loss 0.5 · gradient norm 1.25",
    ]
    event = at_step(
        4100, "loss_spike", Severity.WARNING, "loss 7 at step 4100.", remedies=read_remedies(("Inspect the batch.",))
    )
    story.take(event)
    description = live_description(story, story.findings())
    assert description.startswith("### Training stability: running, step 4,200, 1 warning\n")
    assert "loss\\_spike" in description or "loss_spike" in description
    assert "**What to do:** Inspect the batch." in description


@pytest.mark.slow
@pytest.mark.parametrize(
    ("places", "expected", "result"),
    [
        (("encoder",), "", "SDR: 0.61 unique, no collapse."),
        (("encoder",), "sdr_low_diversity", "SDR: 0.61 unique, low diversity."),
        (("encoder",), "sdr_collapse", "SDR: 0.61 unique, collapse at step 40."),
        (("a", "b"), "sdr_collapse", "SDR: 0.41 to 0.61 unique in 2 modules, collapse of b at step 40."),
    ],
)
def test_sparse_codes_are_summarized_in_one_sentence(
    root: Path, sqlite_uri: str, places: tuple[str, ...], expected: str, result: str
) -> None:
    training = Training(root, sqlite_uri)
    for step in range(1, 61):
        training.journal.append(StepReading(step, SIGNALS, (2.0 / step, 1.0, 0.01, 1.0), 0, float(step)))
    if expected:
        training.journal.append(at_step(40, expected, Severity.CRITICAL, "20 % unique.", place=places[-1]))
    for number, place in enumerate(reversed(places)):
        evidence = {"last_unique_ratio": 0.61 - 0.2 * number}
        training.journal.append(
            at_step(60, "representation_summary", Severity.INFO, "Codes.", place=place, evidence=evidence)
        )
    training.end(Closing("finished", "", 60))
    delivered = deliver_session(training.folder)
    (run_id,) = delivered.run_ids
    assert conclusion_of(run_id, sqlite_uri, "").codes == result
    assert result in RunReader(run_id, sqlite_uri).tags["mlflow.note.content"].replace("\\", "")


def test_the_best_checkpoint_is_named_with_its_loss(tmp_path: Path) -> None:
    assert best_checkpoint(None) == best_checkpoint(tmp_path / "none") == ""
    for step, loss, good in ((500, 0.4, True), (1000, 0.25, True), (1500, 0.1, False)):
        meta = CheckpointMeta(step, loss, "", 1, 0.0, good=good)
        (tmp_path / meta.name).mkdir()
        (tmp_path / meta.name / "meta.json").write_bytes(meta.to_json())
    assert best_checkpoint(tmp_path) == "Best checkpoint: step 1,000 (loss 0.25)."
    meta = CheckpointMeta(1200, 0.3, "", 1, 0.0, good=True, best_by="val_loss", value=0.31)
    (tmp_path / "by_value" / meta.name).mkdir(parents=True)
    (tmp_path / "by_value" / meta.name / "meta.json").write_bytes(meta.to_json())
    assert best_checkpoint(tmp_path / "by_value") == "Best checkpoint: step 1,200 (val_loss 0.31)."
