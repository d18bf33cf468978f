import shutil
import signal
import time

import psutil
import pytest
from courier.staging import Training
from mlflow import MlflowClient
from waiting import wait_until

from mlflow_stability.analysis.load import load_run
from mlflow_stability.courier.processes import MemoryWatch
from mlflow_stability.courier.progress import read_page
from mlflow_stability.journal.layout import COURIER
from mlflow_stability.vocabulary.run import Closing


@pytest.fixture
def training(tmp_path, sqlite_uri):
    return Training(tmp_path / ".mlflow-stability", sqlite_uri)


def run_ids(uri):
    return [run.info.run_id for run in MlflowClient(uri).search_runs(["0"])]


@pytest.mark.fault
def test_everything_is_in_the_run_ten_seconds_after_a_kill(training, sqlite_uri):
    courier = training.start_courier()
    wait_until(lambda: read_page(training.folder / "status.json").get("state") == "idle")
    training.train(1, 2000)
    ended = time.monotonic()
    training.end()
    wait_until(lambda: courier.poll() is not None)
    assert time.monotonic() - ended < 10
    assert courier.returncode == 0
    (run_id,) = run_ids(sqlite_uri)
    assert MlflowClient(sqlite_uri).get_run(run_id).info.status == "KILLED"
    assert len(load_run(run_id, sqlite_uri)) == 2000
    assert not training.folder.parent.exists()


@pytest.mark.slow
def test_ctrl_c_and_a_hang_up_are_not_for_the_courier(training, sqlite_uri):
    courier = training.start_courier()
    wait_until(lambda: (training.folder / "status.json").exists())
    for item in (signal.SIGINT, signal.SIGHUP):
        courier.send_signal(item)
    time.sleep(0.5)
    assert courier.poll() is None
    training.train(1, 10)
    training.end(Closing("finished", "", 10))
    wait_until(lambda: courier.poll() is not None)
    assert courier.returncode == 0
    assert len(run_ids(sqlite_uri)) == 1


@pytest.mark.slow
def test_a_second_courier_exits_at_once(training):
    first = training.start_courier()
    wait_until(lambda: (training.folder / COURIER).is_symlink())
    second = training.start_courier()
    wait_until(lambda: second.poll() is not None)
    assert second.returncode == 0
    assert first.poll() is None
    training.end()
    wait_until(lambda: first.poll() is not None)


@pytest.mark.slow
def test_a_session_that_was_left_behind_is_delivered_by_the_next_courier(training, tmp_path, sqlite_uri):
    training.train(1, 30)
    training.end()  # together with its courier
    elsewhere = Training(tmp_path / ".mlflow-stability", "sqlite:////elsewhere.db")
    elsewhere.train(1, 5)
    elsewhere.end()
    following = Training(tmp_path / ".mlflow-stability", sqlite_uri)
    following.train(1, 10)
    following.end(Closing("finished", "", 10))
    courier = following.start_courier()
    wait_until(lambda: courier.poll() is not None)
    assert sorted(len(load_run(run_id, sqlite_uri)) for run_id in run_ids(sqlite_uri)) == [10, 30]
    assert not training.folder.exists()
    assert elsewhere.folder.exists()  # goes to another store, for which we may have no password


@pytest.mark.slow
def test_two_runs_of_one_process_are_delivered_separately(training, sqlite_uri):
    courier = training.start_courier()
    training.train(1, 10)
    training.journal.append(Closing("finished", "", 10, run_was_active=False))
    wait_until(lambda: not training.journal.folder.exists())
    training.journal = training.begin("second")
    training.train(1, 20)
    training.end(Closing("finished", "", 20))
    wait_until(lambda: courier.poll() is not None)
    assert sorted(len(load_run(run_id, sqlite_uri)) for run_id in run_ids(sqlite_uri)) == [10, 20]


@pytest.mark.slow
def test_a_courier_leaves_a_released_session_although_its_process_still_runs(training):
    courier = training.start_courier()
    training.train(1, 10)
    training.journal.append(Closing("finished", "", 10, run_was_active=False))
    (training.folder / "released").touch()
    wait_until(lambda: courier.poll() is not None)
    assert not training.folder.exists()
    training.end()


@pytest.mark.slow
def test_the_courier_never_loads_torch(training):
    courier = training.start_courier()
    training.train(1, 10)
    wait_until(lambda: read_page(training.folder / "status.json").get("state") == "idle")
    loaded = [item.path for item in psutil.Process(courier.pid).memory_maps()]
    assert not any("libtorch" in path for path in loaded)
    training.end(Closing("finished", "", 10))
    wait_until(lambda: courier.poll() is not None)


def test_nothing_was_killed_for_memory_while_nothing_was():
    assert not MemoryWatch().has_killed()


@pytest.mark.slow
def test_a_courier_with_deleted_journals_runs_until_the_training_ends(training, sqlite_uri):
    courier = training.start_courier()
    training.train(1, 50)
    wait_until(lambda: read_page(training.folder / "status.json").get("state") == "idle")
    psutil.Process(courier.pid).suspend()  # or it puts its next page where all has just been deleted
    shutil.rmtree(training.folder.parent)
    psutil.Process(courier.pid).resume()
    time.sleep(2.0)  # several looks
    assert courier.poll() is None
    training.end()
    wait_until(lambda: courier.poll() is not None)
    assert courier.returncode == 0
    (run_id,) = run_ids(sqlite_uri)
    assert MlflowClient(sqlite_uri).get_run(run_id).info.status == "KILLED"
