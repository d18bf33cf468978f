"""`sync` of a folder with the journals of many trainings: several at once, resumed after a kill, and cleaned up."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from courier.staging import Training
from mlflow import MlflowClient
from servers.troubled_server import TroubledServer
from waiting import wait_until

from mlflow_stability import load_run
from mlflow_stability.cli.main import INTERRUPTED, run
from mlflow_stability.courier.processes import holder_lives
from mlflow_stability.journal.layout import TRAINING, journal_roots_below, session_folders
from mlflow_stability.journal.process_identity import own_identity

NODES, STEPS = 4, 40
DAY = 86400


def cluster(place: Path, uri: str, experiment: str, nodes: int = NODES) -> None:
    """A shared folder in which every node has left a journal of a killed training."""
    for number in range(nodes):
        root = place / f"node-{number}" / "job" / ".mlflow-stability"
        root.parent.mkdir(parents=True)
        training = Training(root, uri, experiment_id=experiment)
        training.train(1, STEPS)
        training.end()


def must_be_there_once(uri: str, experiment: str, nodes: int = NODES) -> None:
    runs = MlflowClient(tracking_uri=uri).search_runs([experiment])
    assert len(runs) == nodes
    for item in runs:
        assert list(load_run(item.info.run_id, uri)["step"]) == list(range(1, STEPS + 1))


@pytest.fixture
def experiment(rest_server: str, tmp_path: Path) -> str:
    return MlflowClient(tracking_uri=rest_server).create_experiment(tmp_path.name)


@pytest.mark.slow
def test_all_journals_below_a_folder_are_delivered_several_at_once(
    rest_server: str, experiment: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster(tmp_path / "shared", rest_server, experiment)
    assert run(["sync", str(tmp_path / "shared"), "--jobs", "3"]) == 0
    printed = capsys.readouterr().out
    assert sorted(line.partition(":")[0] for line in printed.splitlines()[:-1]) == [
        f"node-{n}/job" for n in range(NODES)
    ]
    assert re.fullmatch(r"Delivered 4 of 4 sessions \(\d+ kB\) in \d+ s\.", printed.splitlines()[-1])
    must_be_there_once(rest_server, experiment)
    assert journal_roots_below(tmp_path / "shared") == []


@pytest.mark.slow
def test_a_delivery_that_was_killed_is_continued(
    rest_server: str,
    troubled_server: TroubledServer,
    experiment: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shared = tmp_path / "shared"
    cluster(shared, rest_server, experiment, 2)
    troubled_server.down_after = 8
    cluster(shared / "later", troubled_server.url, experiment, 1)
    first = sync_in_a_process(shared, "--wait", "600")
    # Two have arrived, and the third is held up in its middle: on a machine of any speed it is killed before its end.
    wait_until(lambda: len(journal_roots_below(shared)) == 1 and troubled_server.mood == "down", 120)
    first.kill()
    first.communicate()
    (session,) = [folder for root in journal_roots_below(shared) for folder in session_folders(root)]
    wait_until(lambda: not holder_lives(session))  # those that it started end with it

    troubled_server.down_after, troubled_server.mood = None, "up"
    assert run(["sync", str(shared), "--jobs", "2"]) == 0
    must_be_there_once(rest_server, experiment, 3)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_no_process_outlives_the_command(how: signal.Signals, troubled_server: TroubledServer, tmp_path: Path) -> None:
    troubled_server.mood = "failing"
    cluster(tmp_path / "shared", troubled_server.url, "0", 3)
    command = sync_in_a_process(tmp_path / "shared", "--wait", "600")
    wait_until(lambda: len(troubled_server.requests) > 4, 120)
    started = psutil.Process(command.pid).children(recursive=True)
    assert len(started) >= 2
    command.send_signal(how)
    text, _ = command.communicate(timeout=60)
    assert command.returncode == (INTERRUPTED if how is signal.SIGINT else -how)
    assert psutil.wait_procs(started, 60)[1] == []
    if how is signal.SIGINT:
        assert b"Interrupted: delivered 0 of 3. The same command delivers the rest." in text
    assert len(journal_roots_below(tmp_path / "shared")) == 3


def sync_in_a_process(place: Path, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "mlflow_stability", "sync", str(place), "--jobs", "2", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)


def left_by_another_machine(root: Path, uri: str) -> Training:
    """A journal of another machine's process, without a write for a day."""
    training = Training(root, uri, host="node-9")
    training.train(1, STEPS)
    link = training.folder / TRAINING
    values = {**json.loads(str(link.readlink())), "host": "node-9", "machine": "another", "boot": "another"}
    link.unlink()
    link.symlink_to(json.dumps(values))
    training.end()
    make_old(training.folder)
    return training


def make_old(folder: Path) -> None:
    before = time.time() - DAY
    for path in [*folder.rglob("*"), folder]:
        if not path.is_symlink():
            os.utime(path, (before, before))


def checkpoints_of(root: Path, name: str, pid: int) -> Path:
    folder = root / "checkpoints" / name
    (folder / "rollback_ckpt-000100-1.0000").mkdir(parents=True)
    (folder / "rollback_ckpt-000100-1.0000" / "state.pt").write_bytes(bytes(1_000_000))
    (folder / "owner.json").write_text(json.dumps({"run": name, **own_identity().as_json(), "pid": pid}))
    make_old(folder)
    return folder


def test_old_journals_and_checkpoints_are_removed_after_delivery_unless_in_use(
    sqlite_uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / ".mlflow-stability"
    kept = left_by_another_machine(root, sqlite_uri)
    over, running = checkpoints_of(root, "over", 0), checkpoints_of(root, "running", os.getpid())
    assert run(["sync"]) == 0
    assert "Its journal is kept" in capsys.readouterr().out
    assert run(["sync", "--older-than", "2d"]) == 0
    assert "Journals kept: 1." in capsys.readouterr().out  # and nothing was asked of the store
    assert kept.folder.is_dir()

    assert run(["sync", "--older-than", "12h"]) == 0
    assert not kept.folder.exists()
    assert (over.exists(), running.exists()) == (False, True)
    assert capsys.readouterr().out.count("Removed") == 2


def test_undelivered_journals_and_their_checkpoints_are_kept_at_any_age(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / ".mlflow-stability"
    undelivered = left_by_another_machine(root, "http://127.0.0.1:9")
    needed = checkpoints_of(root, undelivered.folder.name, 0)
    assert run(["sync", "--wait", "0.2", "--older-than", "1h", "--max-size", "1KB"]) == 2
    assert undelivered.folder.is_dir()
    assert needed.is_dir()
    assert "the rest was not delivered" in capsys.readouterr().out


def test_the_oldest_journals_are_removed_until_the_rest_fits(sqlite_uri: str, tmp_path: Path) -> None:
    root = tmp_path / ".mlflow-stability"
    folders = [checkpoints_of(root, f"run-{number}", 0) for number in range(3)]
    for number, folder in enumerate(folders):
        for path in folder.rglob("*"):
            os.utime(path, (time.time() - DAY * (9 - number),) * 2)
        os.utime(folder, (time.time() - DAY * (9 - number),) * 2)
    assert run(["sync", "--max-size", "2.5MB"]) == 0
    assert [path.exists() for path in folders] == [False, True, True]


@pytest.mark.parametrize(("option", "value"), [("--older-than", "30"), ("--max-size", "5 apples")])
def test_an_invalid_age_or_size_is_refused_with_an_example(
    option: str, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["sync", option, value]) == 2
    assert "such as" in capsys.readouterr().err
