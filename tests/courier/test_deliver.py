import gc
import json
import os
import shutil
import stat
import time
from pathlib import Path

import pytest
from courier.staging import Training, bookkeeping, reading
from findings import at_step
from mlflow import MlflowClient
from waiting import wait_until

from mlflow_stability.alerts.alert import NO_OUTLETS
from mlflow_stability.analysis.load import load_run
from mlflow_stability.courier import run_of_recording
from mlflow_stability.courier.deliver import SessionDelivery, ask_for_short_requests, deliver_session, follow
from mlflow_stability.courier.processes import Claim, next_orphan
from mlflow_stability.journal.layout import TRAINING
from mlflow_stability.journal.process_identity import identity_of
from mlflow_stability.tracking.read.run_reader import RunReader, read_run_history
from mlflow_stability.vocabulary.result import Finding, Severity
from mlflow_stability.vocabulary.run import Closing, Gap, Note, Reset

pytestmark = pytest.mark.usefixtures("blank_pictures")


@pytest.fixture
def root(tmp_path):
    ask_for_short_requests()
    return tmp_path / ".mlflow-stability"


def run_of(uri, run_id):
    return MlflowClient(uri).get_run(run_id)


@pytest.mark.slow
def test_a_finished_training_is_delivered_and_leaves_nothing_behind(root, sqlite_uri):
    training = Training(root, sqlite_uri, tags={"team": "vision"})
    training.train(1, 123)
    training.end(Closing("finished", "", 123, time.time()))
    report = deliver_session(training.folder)
    assert (report.delivered, report.remaining, report.error) == (1, 0, "")
    assert not root.exists()
    run = run_of(sqlite_uri, report.run_ids[0])
    assert run.info.status == "FINISHED"
    assert run.data.tags["mlflow.autologging"] == "stability"
    assert run.data.tags["team"] == "vision"
    table = load_run(run.info.run_id, sqlite_uri)
    assert table["step"].tolist() == list(range(1, 124))
    assert table["loss"].tolist() == [float(step) for step in range(1, 124)]


def test_garbage_is_collected_again_once_a_run_was_opened(root, sqlite_uri):
    training = Training(root, sqlite_uri)
    training.train(1, 20)
    training.end(Closing("finished", "", 20, time.time()))
    session = SessionDelivery(training.folder, None, lambda: False)
    assert session.claim.take()
    gc.disable()
    try:
        assert follow(session, NO_OUTLETS)
        assert gc.isenabled()
    finally:
        gc.enable()
        gc.unfreeze()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("closing", "outcome", "status"),
    [
        (Closing("crashed", "ValueError: no", 5), "crashed", "FAILED"),
        (Closing("exited", "code 3", 5), "exited", "FAILED"),
        (Closing("interrupted", "", 5), "interrupted", "KILLED"),
        (None, "killed", "KILLED"),
    ],
)
def test_the_run_says_how_the_training_ended(root, sqlite_uri, closing, outcome, status):
    training = Training(root, sqlite_uri)
    training.train(1, 5)
    training.end(closing)
    report = deliver_session(training.folder)
    run = run_of(sqlite_uri, report.run_ids[0])
    assert run.info.status == status
    assert run.data.tags["stability.ended"] == outcome


def test_a_run_that_mlflow_called_finished_after_a_crash_is_corrected(root, sqlite_uri):
    client = MlflowClient(sqlite_uri)
    run_id = client.create_run("0", tags={"mine": "kept"}).info.run_id
    training = Training(root, sqlite_uri, run_id=run_id)
    training.train(1, 5)
    training.end(Closing("crashed", "ValueError: no", 5))
    client.set_terminated(run_id, "FINISHED")
    deliver_session(training.folder)
    run = client.get_run(run_id)
    assert run.info.status == "FAILED"
    assert run.data.tags["mine"] == "kept"


@pytest.mark.slow
def test_the_record_arrives_while_the_training_lives_but_its_status_waits(root, sqlite_uri):
    run_id = MlflowClient(sqlite_uri).create_run("0").info.run_id
    training = Training(root, sqlite_uri, run_id=run_id)
    training.train(1, 5)
    training.journal.append(Closing("crashed", "", 5))
    report = deliver_session(training.folder)
    delivered = json.loads((training.journal.folder / "delivered.json").read_text())
    assert delivered["complete"]
    assert report.remaining == 1
    assert run_of(sqlite_uri, run_id).info.status == "RUNNING"
    training.end()
    deliver_session(training.folder)
    assert run_of(sqlite_uri, run_id).info.status == "FAILED"


@pytest.mark.slow
def test_events_notes_and_gaps_are_stored_in_the_run(root, sqlite_uri):
    training = Training(root, sqlite_uri)
    training.train(1, 55)
    event = at_step(55, "inf_detected", Severity.CRITICAL, "grad_norm is inf", evidence={"grad_norm": float("inf")})
    events = [
        event,
        Reset(56, 1, "rolled back"),
        Note("degraded", "layer probe"),
        Gap(60, 69, "No space left on device"),
    ]
    for item in events:
        training.journal.append(item)
    training.train(70, 75)
    training.end(Closing("finished", "", 75))
    (run_id,) = deliver_session(training.folder).run_ids
    reader = RunReader(run_id, sqlite_uri)
    assert [item for _, item in reader.event_lines()][1:-1] == events
    assert reader.tags["stability.findings"] == "2 critical"  # and a loss that has risen all the time
    kept = bookkeeping(run_id, sqlite_uri)
    assert kept["last_finding"] == "inf_detected at step 55: grad_norm is inf"
    assert kept["notes"] == {"degraded": "layer probe"}
    assert kept["missing"] == "steps 60 to 69 are missing (No space left on device)"
    assert read_run_history(run_id, sqlite_uri).tags["stability.degraded"] == "layer probe"
    points = MlflowClient(sqlite_uri).get_metric_history(run_id, "stability/loss")
    assert 55 in [point.step for point in points]


@pytest.mark.slow
def test_a_resumed_training_that_counts_from_one_again_goes_on_behind(root, sqlite_uri):
    run_id = MlflowClient(sqlite_uri).create_run("0").info.run_id
    for _ in range(2):
        training = Training(root, sqlite_uri, run_id=run_id)
        training.train(1, 20)
        training.end(Closing("finished", "", 20))
        deliver_session(training.folder)
    table = load_run(run_id, sqlite_uri)
    assert table[["recording", "step"]].values.tolist()[:1] == [[0, 1]]
    assert sorted(table["step"]) == list(range(1, 41))
    steps = [point.step for point in MlflowClient(sqlite_uri).get_metric_history(run_id, "stability/loss")]
    assert len(steps) == len(set(steps))


@pytest.mark.slow
def test_two_trainings_in_one_run_are_kept_apart(root, sqlite_uri):
    run_id = MlflowClient(sqlite_uri).create_run("0").info.run_id
    first = Training(root, sqlite_uri, run_id=run_id)
    first.train(1, 20)
    deliver_session(first.folder)
    second = Training(root, sqlite_uri, run_id=run_id)
    second.train(1, 20)
    second.end(Closing("crashed", "", 20))
    deliver_session(second.folder)
    assert run_of(sqlite_uri, run_id).info.status == "RUNNING"
    first.train(21, 30)
    first.end(Closing("finished", "", 30))
    deliver_session(first.folder)
    client = MlflowClient(sqlite_uri)
    assert max(point.step for point in client.get_metric_history(run_id, "stability/loss")) == 30
    assert max(point.step for point in client.get_metric_history(run_id, "stability_2/loss")) == 20
    table = load_run(run_id, sqlite_uri)
    assert table.groupby("recording")["step"].count().tolist() == [30, 20]


def test_a_session_that_a_living_courier_has_is_left_alone(root, sqlite_uri):
    training = Training(root, sqlite_uri)
    training.train(1, 5)
    claim = Claim(training.folder)
    assert claim.take()
    assert deliver_session(training.folder).busy
    claim.release()
    training.end()
    assert deliver_session(training.folder).delivered == 1


def test_a_session_without_a_single_record_goes_with_its_process(root, sqlite_uri):
    training = Training(root, sqlite_uri)
    training.end()
    (training.journal.folder / "journal").write_bytes(b"torn")
    report = deliver_session(training.folder)
    assert not root.exists()
    assert report.run_ids == ()


@pytest.mark.slow
def test_a_journal_is_kept_while_its_process_may_still_be_running(root, sqlite_uri):
    training = Training(root, sqlite_uri)
    elsewhere = {**identity_of(training.process.pid).as_json(), "host": "elsewhere", "boot": "another"}
    (training.folder / TRAINING).unlink()
    (training.folder / TRAINING).symlink_to(json.dumps(elsewhere))
    training.train(1, 20)
    journal = training.journal.folder / "journal"
    os.utime(journal, (time.time() - 300,) * 2)  # silent, as in a long evaluation
    report = deliver_session(training.folder)
    (run_id,) = report.run_ids
    assert (report.delivered, report.remaining, report.waiting_bytes) == (1, 0, 0)
    assert report.kept_for == f"process {training.process.pid} on elsewhere"
    assert len(load_run(run_id, sqlite_uri)) == 20
    assert next_orphan(root, root / "own", sqlite_uri, set()) is None  # once is enough
    training.train(21, 30)  # it lived all the time
    os.utime(journal, (time.time() - 120,) * 2)
    assert deliver_session(training.folder).run_ids == (run_id,)
    assert len(load_run(run_id, sqlite_uri)) == 30
    training.end(Closing("finished", "", 30))
    report = deliver_session(training.folder)
    assert (report.delivered, report.kept_for) == (1, "")
    assert not training.journal.folder.exists()
    run = run_of(sqlite_uri, run_id)
    assert (run.info.status, run.data.tags["stability.ended"]) == ("FINISHED", "finished")


def test_a_session_that_names_no_process_is_delivered_and_kept(root, sqlite_uri):
    training = Training(root, sqlite_uri, pid=2**22 + 1, host="elsewhere", process_started=1.0)
    (training.folder / TRAINING).unlink()  # a journal of an older version, from another machine
    training.train(1, 5)
    os.utime(training.journal.folder / "journal", (time.time() - 300,) * 2)
    report = deliver_session(training.folder)
    assert report.kept_for == f"process {2**22 + 1} on elsewhere"
    assert (training.journal.folder / "journal").exists()
    training.end()


def test_only_the_owner_may_read_a_journal(root, sqlite_uri):
    training = Training(root, sqlite_uri)
    training.train(1, 5)
    deliver_session(training.folder)
    for path in (item for item in [root, *root.rglob("*")] if not item.is_symlink()):
        mode = stat.S_IMODE(os.lstat(path).st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path
    training.end()


def test_a_run_that_was_deleted_is_named_and_its_journal_stays(root, sqlite_uri):
    client = MlflowClient(sqlite_uri)
    run_id = client.create_run("0").info.run_id
    training = Training(root, sqlite_uri, run_id=run_id)
    training.train(1, 5)
    training.end(Closing("finished", "", 5))
    client.delete_run(run_id)
    began = time.monotonic()
    report = deliver_session(training.folder)
    assert time.monotonic() - began < 20
    assert run_id in report.error
    assert report.remaining == 1
    client.restore_run(run_id)
    assert deliver_session(training.folder).delivered == 1
    assert Path(root).exists() is False


def test_the_full_record_has_what_the_metric_tables_leave_out(root, sqlite_uri):
    training = Training(root, sqlite_uri)
    training.train(1, 97)
    training.end(Closing("finished", "", 97))
    (run_id,) = deliver_session(training.folder).run_ids
    table = load_run(run_id, sqlite_uri)
    assert table["grad_norm@block.0"].tolist() == [reading(step).values[3] for step in range(1, 98)]
    points = RunReader(run_id, sqlite_uri).metric_points()
    assert not points.complete
    assert len(points) < 97 * 4 / 2


@pytest.mark.slow
def test_more_events_than_fit_into_one_file_all_arrive(root, sqlite_uri):
    training = Training(root, sqlite_uri)
    for step in range(1, 12_001):
        training.journal.append(at_step(step, "loss_spike", Severity.WARNING, "spike"))
    training.end(Closing("finished", "", 12_000))
    (run_id,) = deliver_session(training.folder).run_ids
    events = [record for _, record in RunReader(run_id, sqlite_uri).event_lines() if isinstance(record, Finding)]
    assert [event.step for event in events] == list(range(1, 12_001))
    assert RunReader(run_id, sqlite_uri).tags["stability.findings"] == "1 warning", "neighbours are one finding"


@pytest.mark.slow
def test_a_run_with_a_deleted_journal_keeps_its_delivered_data_and_ends_with_its_process(root, sqlite_uri):
    training = Training(root, sqlite_uri)
    session = SessionDelivery(training.folder, None, lambda: False)
    assert session.claim.take()
    training.train(1, 50)
    while session.advance():
        pass
    other = training.begin("other")
    other.append(reading(1))
    other.append(Closing("finished", "", 1, run_was_active=False))
    shutil.rmtree(training.journal.folder)
    wait_until(lambda: not session.advance() and session.report().delivered)
    first, second = session.report().run_ids
    assert (run_of(sqlite_uri, first).info.status, run_of(sqlite_uri, second).info.status) == ("RUNNING", "FINISHED")
    assert session.report().waiting_bytes == 0
    shutil.rmtree(root)
    training.end()
    wait_until(lambda: not session.advance() and session.over)
    assert not session.report().error
    session.remove()
    run = run_of(sqlite_uri, first)
    assert (run.info.status, run.data.tags["stability.ended"]) == ("KILLED", "unknown")
    history = read_run_history(first, sqlite_uri)
    assert history.of("loss")[0].series.steps.tolist() == list(range(1, 51))
    assert history.outcome_detail == "the journal was deleted after step 50; later steps are lost"
    assert not root.exists()


@pytest.mark.slow
def test_recordings_of_one_process_in_one_run_are_one_after_the_other(root, sqlite_uri):
    run_id = MlflowClient(sqlite_uri).create_run("0").info.run_id
    training = Training(root, sqlite_uri, run_id=run_id)
    journals, earlier = [training.journal], [training.folder.name]
    for number in (1, 2):
        journals.append(training.begin(f"again{number}", first_step=20 * number + 1, earlier=list(earlier)))
        earlier.append(f"again{number}")
    for number, journal in enumerate(journals):
        for step in range(20 * number + 1, 20 * number + 21):
            journal.append(reading(step))
        journal.append(Closing("finished", "", 20 * number + 20, run_was_active=number == 2))
    training.end()
    deliver_session(training.folder)
    table = load_run(run_id, sqlite_uri)
    assert table["step"].tolist() == list(range(1, 61))
    assert table["recording"].tolist() == [0] * 20 + [1] * 20 + [2] * 20
    run = run_of(sqlite_uri, run_id)
    assert {key.partition("/")[0] for key in run.data.metrics} == {"stability"}
    assert run.info.status == "FINISHED"


def test_a_recording_waits_for_the_earlier_recording_of_its_process(root, sqlite_uri):
    run_id = MlflowClient(sqlite_uri).create_run("0").info.run_id
    first = Training(root, sqlite_uri, run_id=run_id)
    first.train(1, 20)
    second = Training(root, sqlite_uri, run_id=run_id, first_step=21, earlier=[first.folder.name])
    second.train(21, 30)
    session = SessionDelivery(second.folder, None, lambda: False)
    for _ in range(3):
        session.advance()
    first.end(Closing("finished", "", 20, run_was_active=False))
    deliver_session(first.folder)
    second.end(Closing("finished", "", 30))
    deliver_session(second.folder)
    table = load_run(run_id, sqlite_uri)
    assert table["step"].tolist() == list(range(1, 31))
    assert table["recording"].tolist() == [0] * 20 + [1] * 10


@pytest.mark.slow
def test_a_recording_does_not_wait_forever_for_an_earlier_one_that_is_never_delivered(root, sqlite_uri, monkeypatch):
    monkeypatch.setattr(run_of_recording, "LONGEST_WAIT", 1.0)
    run_id = MlflowClient(sqlite_uri).create_run("0").info.run_id
    training = Training(root, sqlite_uri, run_id=run_id, first_step=21, earlier=["lost"])
    training.train(21, 30)
    training.end(Closing("finished", "", 30))
    deliver_session(training.folder)
    assert load_run(run_id, sqlite_uri)["step"].tolist() == list(range(21, 31))
