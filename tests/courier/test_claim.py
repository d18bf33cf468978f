import json
import os
import socket
import subprocess
import time

import psutil

from mlflow_stability.courier.claim import Claim, holder_lives
from mlflow_stability.courier.training_process import process_lives
from mlflow_stability.journal.layout import COURIER, STATUS


def claim_of(folder, **said):
    (folder / COURIER).symlink_to(json.dumps({"pid": 1, "started": 0.0, "host": socket.gethostname(), **said}))


def test_a_session_has_one_courier(tmp_path):
    first, second = Claim(tmp_path), Claim(tmp_path)
    assert first.take()
    assert not second.take()
    assert first.holds()
    first.release()
    assert second.take()


def test_the_claim_of_a_courier_that_was_killed_is_taken_over(tmp_path):
    process = subprocess.Popen(["sleep", "60"])
    claim_of(tmp_path, pid=process.pid, started=psutil.Process(process.pid).create_time())
    assert holder_lives(tmp_path)
    assert not Claim(tmp_path).take()
    process.kill()
    process.wait()
    assert Claim(tmp_path).take()


def test_a_pid_that_another_process_has_taken_since_is_no_courier(tmp_path):
    claim_of(tmp_path, pid=os.getpid(), started=psutil.Process().create_time() - 100)
    assert not holder_lives(tmp_path)


def test_a_courier_on_another_machine_lives_as_long_as_it_writes(tmp_path):
    claim_of(tmp_path, host="elsewhere")
    (tmp_path / STATUS).touch()
    assert holder_lives(tmp_path)
    for name in (COURIER, STATUS):
        os.utime(tmp_path / name, (time.time() - 100,) * 2, follow_symlinks=False)
    assert not holder_lives(tmp_path)
    assert Claim(tmp_path).take()


def test_a_process_that_ended_and_was_not_waited_for_is_gone():
    process = subprocess.Popen(["true"])
    started = psutil.Process(process.pid).create_time()
    time.sleep(0.3)
    assert not process_lives(process.pid, started)
    process.wait()
