from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from architecture.repository import ROOT
from findings import at_step
from forked.processes import DELIVERY, python
from mlflow import MlflowClient
from mlflow.entities import Metric
from servers.same_answer import SameAnswer
from servers.troubled_server import TroubledServer
from waiting import wait_until

from mlflow_stability.errors import RunNotFoundError, TrackingError
from mlflow_stability.tracking.artifacts import EVENTS_FOLDER, RECORD_FOLDER, events_name, line_of
from mlflow_stability.tracking.read.recorded_history import RunFacts, recorded_folder
from mlflow_stability.tracking.read.run_reader import RunReader, read_run_history
from mlflow_stability.tracking.read.run_record import PartBuffer, part_name
from mlflow_stability.tracking.run_files import log_report
from mlflow_stability.tracking.run_import import RunImport
from mlflow_stability.vocabulary.measured.signal import Signal, StepReading
from mlflow_stability.vocabulary.result import Severity
from mlflow_stability.vocabulary.run import Closing

SIGNALS = (Signal("loss"), Signal("grad_norm"))
NAN = at_step(3, "nan_detected", Severity.CRITICAL, "loss is NaN at step 3.", evidence={"loss": math.nan})


def a_run(uri: str, points: list[tuple[str, int, float, int]], tags: dict[str, str] | None = None) -> str:
    client = MlflowClient(tracking_uri=uri)
    run_id = client.create_run("0", tags=tags, run_name="theirs").info.run_id
    client.log_batch(run_id, [Metric(key, value, when, step) for key, step, value, when in points])
    client.set_terminated(run_id)
    return str(run_id)


def record_into(folder: Path, recording: int, steps: range, losses: dict[int, float] | None = None) -> None:
    buffer = PartBuffer()
    for step in steps:
        buffer.add(StepReading(step, SIGNALS, ((losses or {}).get(step, 1 / step), 2.0), 0, 100.0 + step), step)
    (folder / RECORD_FOLDER).mkdir(parents=True, exist_ok=True)
    (folder / EVENTS_FOLDER).mkdir(parents=True, exist_ok=True)
    buffer.write(folder / RECORD_FOLDER / part_name(recording, 0), recording)


def a_recorded_run(uri: str, folder: Path) -> str:
    run_id = a_run(uri, [("val_loss", 2, 0.5, 1000), ("loss", 2, 0.4, 1000)], {"stability.outcome": "killed"})
    record_into(folder, 0, range(1, 6), {3: math.nan})
    record_into(folder, 1, range(6, 9))
    lines = {0: [NAN, Closing("killed", "", 5)], 1: [Closing("crashed", "ValueError: x", 8)]}
    for recording, text in lines.items():
        (folder / EVENTS_FOLDER / events_name(recording)).write_text("".join(map(line_of, text)))
    client = MlflowClient(tracking_uri=uri)
    for room in (RECORD_FOLDER, EVENTS_FOLDER):
        client.log_artifacts(run_id, str(folder / room), room)
    return run_id


def test_of_a_run_of_ours_the_full_record_is_read_with_what_was_judged_live(sqlite_uri: str, tmp_path: Path) -> None:
    history = read_run_history(a_recorded_run(sqlite_uri, tmp_path / "made"), sqlite_uri)
    assert history.format == "recorded"
    assert history.basis == "the full record (16 values of 8 steps)"
    assert history.complete
    loss = history.of("loss")[0].series
    assert loss.steps.tolist() == list(range(1, 9))
    assert math.isnan(loss.values[2])
    assert history.events is not None
    assert [(event.kind, event.step) for event in history.events] == [("nan_detected", 3)]
    assert (history.outcome, history.outcome_detail) == ("crashed", "ValueError: x")


def test_a_second_recording_of_a_run_is_another_attempt(sqlite_uri: str, tmp_path: Path) -> None:
    history = read_run_history(a_recorded_run(sqlite_uri, tmp_path / "made"), sqlite_uri)
    assert history.of("loss")[0].series.attempts.tolist() == [0] * 5 + [1] * 3


def test_what_the_script_logged_itself_is_there_and_no_loss_is_counted_twice(sqlite_uri: str, tmp_path: Path) -> None:
    history = read_run_history(a_recorded_run(sqlite_uri, tmp_path / "made"), sqlite_uri)
    assert history.of("val_loss")[0].series.values.tolist() == [0.5]
    assert [(metric.name, metric.meaning.duplicate_of) for metric in history.of("loss")] == [
        ("loss", ""),
        ("loss", "loss"),
    ]


def test_the_folder_of_a_moved_run_says_the_same(tmp_path: Path) -> None:
    record_into(tmp_path / "artifacts", 0, range(1, 6), {3: math.nan})
    (tmp_path / "artifacts" / EVENTS_FOLDER / events_name(0)).write_text(line_of(NAN) + '{"record": "eve')
    history = recorded_folder(tmp_path, RunFacts("here", "moved", "RUNNING"))
    assert history is not None
    assert history.of("loss")[0].series.steps.tolist() == [1, 2, 3, 4, 5]
    assert history.events is not None
    assert len(history.events) == 1
    assert history.outcome == "running"


def test_an_exception_with_other_line_ends_in_its_message_is_read_whole(sqlite_uri: str, tmp_path: Path) -> None:
    detail = "ValueError: caf\x85 noir\u2028first\u2029second"
    folder = tmp_path / "artifacts"
    record_into(folder, 0, range(1, 6))
    lines = "".join(map(line_of, [NAN, Closing("crashed", detail, 5)]))
    (folder / EVENTS_FOLDER / events_name(0)).write_text(lines, encoding="utf-8")
    run_id = a_run(sqlite_uri, [], {"stability.outcome": "killed"})
    for room in (RECORD_FOLDER, EVENTS_FOLDER):
        MlflowClient(tracking_uri=sqlite_uri).log_artifacts(run_id, str(folder / room), room)
    for history in (read_run_history(run_id, sqlite_uri), recorded_folder(tmp_path, RunFacts("here", "moved"))):
        assert history is not None
        assert (history.outcome, history.outcome_detail, history.notes) == ("crashed", detail, ())


def test_a_folder_without_a_record_is_not_a_recording(tmp_path: Path) -> None:
    assert recorded_folder(tmp_path, RunFacts("here", "theirs")) is None


@pytest.mark.slow
@pytest.mark.parametrize("server", ["sqlite_uri", pytest.param("rest_server", marks=pytest.mark.slow)])
def test_anybody_s_run_is_read_whole(server: str, request: pytest.FixtureRequest) -> None:
    uri = request.getfixturevalue(server)
    points = [("train_loss", step, 1.0 / (step + 1), 1000 + step) for step in range(900)]
    points += [("val_loss", 899, math.inf, 5000), ("val_loss", 1, math.nan, 1001), ("epoch", 3, 3.0, 4000)]
    run_id = a_run(uri, points[:900])
    MlflowClient(tracking_uri=uri).log_batch(run_id, [Metric(k, v, t, s) for k, s, v, t in points[900:]])
    history = read_run_history(run_id, uri)
    assert history.format == "mlflow"
    assert history.events is None
    assert history.outcome == "finished"
    loss = history.of("loss")[0]
    assert loss.name == "train_loss"
    assert np.array_equal(loss.series.values, 1.0 / (np.arange(900) + 1))
    validation = history.of("val_loss")[0].series
    assert math.isnan(validation.values[0])
    assert validation.values[1] == math.inf
    assert "epoch" not in {metric.name for metric in history.metrics}


def test_steps_that_are_all_zero_are_numbered_by_their_time(sqlite_uri: str) -> None:
    history = read_run_history(a_run(sqlite_uri, [("loss", 0, 9.0 - n, 1000 + n) for n in range(5)]), sqlite_uri)
    assert history.ordinal_steps
    assert history.of("loss")[0].series.steps.tolist() == [0, 1, 2, 3, 4]
    assert history.of("loss")[0].series.values.tolist() == [9.0, 8.0, 7.0, 6.0, 5.0]


def test_a_restart_that_repeats_steps_is_another_attempt(sqlite_uri: str) -> None:
    steps = [0, 10, 20, 30, 10, 20, 30, 40]
    history = read_run_history(a_run(sqlite_uri, [("loss", s, 1.0, 1000 + n) for n, s in enumerate(steps)]), sqlite_uri)
    assert history.of("loss")[0].series.attempts.tolist() == [0] * 4 + [1] * 4


def test_thinned_points_are_called_thinned(sqlite_uri: str) -> None:
    run_id = a_run(sqlite_uri, [("stability/loss", 10, 1.0, 1000)], {"stability.outcome": "finished"})
    history = read_run_history(run_id, sqlite_uri)
    assert not history.complete
    assert "thinned" in history.notes[0]
    assert history.of("loss")[0].meaning.is_known


NUMBERED = {"loss": "1_loss", "grad_norm": "3_grad_norm", "nonfinite_values": "7_nonfinite_values"}


def test_a_run_that_a_newer_version_resumed_is_one_curve_of_both_keys(sqlite_uri: str) -> None:
    points = [(key, 10 * n, 1.0 / n, 1000 + n) for n, key in enumerate(("stability/1_loss", "stability/loss"), start=1)]
    (loss,) = read_run_history(a_run(sqlite_uri, points), sqlite_uri).of("loss")
    assert (loss.series.steps.tolist(), loss.series.values.tolist()) == ([10, 20], [1.0, 0.5])


@pytest.mark.parametrize("names", [{}, NUMBERED], ids=["plain", "numbered"])
def test_losses_that_charts_do_not_show_are_nan_where_their_count_rose(sqlite_uri: str, names: dict[str, str]) -> None:
    loss, norm, count = (f"stability/{names.get(name, name)}" for name in NUMBERED)
    points = [(loss, step, 1.0, 1000 + step) for step in (10, 20, 30)]
    points += [(norm, step, 2.0, 1000 + step) for step in (10, 20, 50)]
    counts = {20: 1.0, 30: 3.0, 40: 5.0, 50: 6.0}  # at step 20 it was one of the steps between
    points += [(count, step, total, 1000 + step) for step, total in counts.items()]
    record = RunReader(a_run(sqlite_uri, points), sqlite_uri).metric_points(("loss", "grad_norm"))
    assert record is not None
    values = {
        (str(signal), reading.step): value
        for reading in record.readings()
        for signal, value in zip(reading.signals, reading.values, strict=True)
    }
    assert [step for name, step in values if name == "loss"] == [10, 20, 30, 40, 50]
    assert {key for key, value in values.items() if math.isnan(value)} == {
        ("loss", 40), ("loss", 50), ("grad_norm", 30), ("grad_norm", 40),
    }  # fmt: skip


def test_a_missing_run_is_refused_in_one_sentence(sqlite_uri: str) -> None:
    with pytest.raises(RunNotFoundError, match="No run 'nope'"):
        read_run_history("nope", sqlite_uri)


def test_a_database_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(RunNotFoundError, match="No MLflow database"):
        read_run_history("nope", f"sqlite:///{tmp_path}/none.db")
    assert not (tmp_path / "none.db").exists()


@pytest.mark.slow
def test_a_server_that_does_not_answer_is_reported_soon() -> None:
    before = dict(os.environ)
    with socket.socket() as listening:  # takes the connection and says nothing
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        began = time.monotonic()
        with pytest.raises(TrackingError, match="does not answer"):
            read_run_history("any", f"http://127.0.0.1:{listening.getsockname()[1]}")
        assert time.monotonic() - began < 60  # MLflow alone tries for minutes
    assert dict(os.environ) == before


def test_a_report_is_put_into_the_run_and_replaced(sqlite_uri: str) -> None:
    run_id = a_run(sqlite_uri, [("loss", 0, 1.0, 1000)])
    client = MlflowClient(tracking_uri=sqlite_uri)
    before = client.get_run(run_id).info
    for text in ("old", "new"):
        log_report(run_id, sqlite_uri, {"report.html": text})
    place = client.download_artifacts(run_id, "stability/report.html")
    assert Path(place).read_text() == "new"
    after = client.get_run(run_id).info
    assert (after.status, after.end_time) == (before.status, before.end_time)


@pytest.mark.parametrize(
    ("status", "kind", "body", "expected"),
    [
        (401, "text/plain", b"no", "answers with 401: check the credentials"),
        (403, "application/json", b'{"error_code": "PERMISSION_DENIED", "message": "no"}', "answers with 403"),
        (503, "text/plain", b"busy", "answers with 503: server error"),
        (200, "text/html", b"<html>Please log in</html>", "not as an MLflow server"),
        (200, "application/json", b"{}", "not as an MLflow server"),
    ],
)
def test_an_unexpected_answer_of_a_server_is_in_the_error(status: int, kind: str, body: bytes, expected: str) -> None:
    with SameAnswer(status, kind, body) as server:
        with pytest.raises(TrackingError, match=expected):
            read_run_history("0123456789abcdef" * 2, server.url)
        with pytest.raises(TrackingError, match=expected):
            RunImport("logs", server.url)


def test_a_deleted_run_is_read_with_a_note(sqlite_uri: str) -> None:
    run_id = a_run(sqlite_uri, [("loss", 0, 1.0, 1000), ("loss", 1, 0.5, 2000)])
    assert not read_run_history(run_id, sqlite_uri).notes
    MlflowClient(tracking_uri=sqlite_uri).delete_run(run_id)
    assert "This run was deleted" in read_run_history(run_id, sqlite_uri).notes[-1]


def test_an_id_in_capital_letters_is_found(sqlite_uri: str) -> None:
    run_id = a_run(sqlite_uri, [("loss", 0, 1.0, 1000)])
    assert read_run_history(run_id.upper(), sqlite_uri).source == run_id


def test_steps_of_any_size_are_read_unchanged(sqlite_uri: str) -> None:
    steps = [-(2**53) - 1, 2**53 + 1, 2**62 + 1, 2**63 - 1]
    history = read_run_history(a_run(sqlite_uri, [("loss", s, 1.0, 1000 + n) for n, s in enumerate(steps)]), sqlite_uri)
    assert history.of("loss")[0].series.steps.tolist() == steps


@pytest.mark.slow
def test_ctrl_c_does_not_wait_for_a_server_that_is_silent(troubled_server: TroubledServer) -> None:
    run_id = a_run(troubled_server.url, [("loss", 0, 1.0, 1000), ("val_loss", 0, 1.0, 1000)])
    troubled_server.silent_at = "/metrics/get-history"
    code = (
        "import sys\n"
        "from mlflow_stability.tracking.read.run_reader import read_run_history\n"
        "try:\n"
        "    read_run_history(*sys.argv[1:])\n"
        "except KeyboardInterrupt:\n"
        "    sys.exit(130)\n"
    )
    reading = subprocess.Popen(
        [python(DELIVERY), "-c", code, run_id, troubled_server.url], env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    wait_until(lambda: any("get-history" in path for path in troubled_server.requests))
    reading.send_signal(signal.SIGINT)
    try:
        assert reading.wait(timeout=60) == 130
    finally:
        reading.kill()
        reading.wait()


def test_a_record_with_a_damaged_part_says_so(sqlite_uri: str, tmp_path: Path) -> None:
    run_id = a_recorded_run(sqlite_uri, tmp_path / "made")
    record = tmp_path / "store" / "artifacts" / run_id / "artifacts" / RECORD_FOLDER
    torn = record / part_name(1, 0)
    torn.write_bytes(torn.read_bytes()[:100])
    for history in (read_run_history(run_id, sqlite_uri), recorded_folder(record.parents[3], RunFacts("a", "b"))):
        assert history is not None
        assert history.of("loss")[0].series.steps.tolist() == [1, 2, 3, 4, 5]
        assert history.notes == (
            f"Some of what was recorded cannot be read and is missing here: {RECORD_FOLDER}/{torn.name}.",
        )


@pytest.mark.parametrize(
    "line",
    [
        "5",
        "null",
        '"x"',
        "[1]",
        "[" * 9000,
        '{"record": "event", "step": 1e400}',
        '{"record": "event", "step": 2.5}',
        '{"record": "event", "step": 1, "kind": "x", "severity": "WORSE", "message": ""}',
        '{"record": "eve',
    ],
)
def test_a_line_of_garbage_costs_no_more_than_itself(sqlite_uri: str, tmp_path: Path, line: str) -> None:
    run_id = a_recorded_run(sqlite_uri, tmp_path / "made")
    events = tmp_path / "store" / "artifacts" / run_id / "artifacts" / EVENTS_FOLDER / events_name(0)
    events.write_text(f"{line}\n{events.read_text()}")
    for history in (read_run_history(run_id, sqlite_uri), recorded_folder(events.parents[4], RunFacts("a", "b"))):
        assert history is not None
        assert [finding.kind for finding in history.events or ()] == ["nan_detected"]
        assert f"line 1 of {EVENTS_FOLDER}/{events.name}." in history.notes[0]


def test_a_part_without_the_columns_of_a_record_is_left_out(sqlite_uri: str, tmp_path: Path) -> None:
    run_id = a_recorded_run(sqlite_uri, tmp_path / "made")
    record = tmp_path / "store" / "artifacts" / run_id / "artifacts" / RECORD_FOLDER
    pq.write_table(pa.table({"x": [1, 2]}), record / part_name(1, 0))
    history = read_run_history(run_id, sqlite_uri)
    assert history.of("loss")[0].series.steps.tolist() == [1, 2, 3, 4, 5]
    assert "cannot be read" in history.notes[0]
