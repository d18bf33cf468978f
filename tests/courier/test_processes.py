import json
import os
import socket
import subprocess
import time

import psutil

from mlflow_stability.courier.processes import Claim, holder_lives
from mlflow_stability.journal.layout import COURIER, STATUS
from mlflow_stability.journal.process_identity import identity_of, own_identity


def claim_of(folder, **fields):
    (folder / COURIER).symlink_to(json.dumps(fields))


def test_a_session_has_one_courier(tmp_path):
    first, second = Claim(tmp_path), Claim(tmp_path)
    assert first.take()
    assert not second.take()
    assert first.holds()
    first.release()
    assert second.take()


def test_the_claim_of_a_courier_that_was_killed_is_taken_over(tmp_path):
    process = subprocess.Popen(["sleep", "60"])
    claim_of(tmp_path, **identity_of(process.pid).as_json())
    assert holder_lives(tmp_path)
    assert not Claim(tmp_path).take()
    process.kill()
    process.wait()
    assert Claim(tmp_path).take()


def test_a_pid_that_another_process_has_taken_since_is_no_courier(tmp_path):
    claim_of(tmp_path, **{**own_identity().as_json(), "start": "1"})
    assert not holder_lives(tmp_path)


def test_a_courier_on_another_machine_lives_as_long_as_it_writes(tmp_path):
    claim_of(tmp_path, pid=1, host="elsewhere")
    (tmp_path / STATUS).touch()
    assert holder_lives(tmp_path)
    for name in (COURIER, STATUS):
        os.utime(tmp_path / name, (time.time() - 100,) * 2, follow_symlinks=False)
    assert not holder_lives(tmp_path)
    assert Claim(tmp_path).take()


def test_a_courier_of_an_older_version_keeps_its_claim_while_it_lives(tmp_path):
    process = subprocess.Popen(["sleep", "60"])
    started = psutil.Process(process.pid).create_time()
    claim_of(tmp_path, pid=process.pid, started=started, host=socket.gethostname())
    assert holder_lives(tmp_path)
    process.kill()
    process.wait()
    assert not holder_lives(tmp_path)


def test_a_claim_is_so_short_that_a_file_system_keeps_it_beside_its_name(tmp_path):
    assert Claim(tmp_path).take()
    assert len(str((tmp_path / COURIER).readlink())) < 128  # tmpfs keeps more only in a page of its own
