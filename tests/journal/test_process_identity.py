import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from mlflow_stability.journal.process_identity import (
    ProcessIdentity,
    ProcessStatus,
    identity_from,
    identity_in_link,
    identity_of,
    own_identity,
    process_status,
    stat_from_ps,
)


@pytest.fixture
def sleeper():
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def end_without_being_taken_note_of(process):
    """Wait for its end, and leave it to be waited for."""
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


def test_a_process_has_the_same_identity_from_every_source(sleeper):
    code = (
        "import json, sys; from mlflow_stability.journal.process_identity import identity_of;"
        "print(json.dumps(identity_of(int(sys.argv[1])).as_json()))"
    )
    finished = subprocess.run(
        [sys.executable, "-c", code, str(sleeper.pid)], capture_output=True, text=True, check=True
    )
    assert identity_from(json.loads(finished.stdout)) == identity_of(sleeper.pid)
    assert process_status(identity_of(sleeper.pid)) is ProcessStatus.LIVES


def test_an_ended_process_is_gone_even_before_it_is_waited_for():
    process = subprocess.Popen(["true"])
    identity = identity_of(process.pid)
    end_without_being_taken_note_of(process)
    assert process_status(identity) is ProcessStatus.GONE
    process.wait()
    assert process_status(identity) is ProcessStatus.GONE


def test_another_process_with_the_same_pid_is_a_different_one():
    own = own_identity()
    assert process_status(own) is ProcessStatus.LIVES
    assert process_status(replace(own, start=own.start + "0")) is ProcessStatus.GONE


def test_a_reboot_ends_every_process_and_another_machine_of_the_same_name_tells_nothing():
    own = own_identity()
    assert process_status(replace(own, boot="another")) is ProcessStatus.GONE
    assert process_status(replace(own, boot="another", machine="another")) is ProcessStatus.UNKNOWN
    assert process_status(replace(own, boot="another", host="elsewhere")) is ProcessStatus.UNKNOWN


def test_a_machine_that_was_renamed_is_the_same_machine():
    assert process_status(replace(own_identity(), host="a-name-of-the-dhcp-server")) is ProcessStatus.LIVES


def test_without_a_name_for_the_boot_the_host_says_which_machine_it_was():
    own = replace(own_identity(), boot="", machine="")
    assert process_status(own) is ProcessStatus.LIVES
    assert process_status(replace(own, start="1")) is ProcessStatus.GONE
    assert process_status(replace(own, host="elsewhere")) is ProcessStatus.UNKNOWN


def test_an_identity_needs_a_numeric_pid_and_pid_zero_counts_as_gone():
    assert identity_from({}) is None
    assert identity_from({"pid": "many"}) is None
    assert process_status(ProcessIdentity(0)) is ProcessStatus.GONE


def test_the_start_by_the_wall_clock_of_older_journals_proves_life_and_never_death(sleeper):
    host, started = own_identity().host, psutil.Process(sleeper.pid).create_time()
    assert process_status(ProcessIdentity(sleeper.pid, host, started=started)) is ProcessStatus.LIVES
    assert process_status(ProcessIdentity(sleeper.pid, host, started=started + 3600)) is ProcessStatus.UNKNOWN
    sleeper.kill()
    sleeper.wait()
    assert process_status(ProcessIdentity(sleeper.pid, host, started=started)) is ProcessStatus.GONE


def test_the_owner_of_checkpoints_in_the_words_of_an_older_version_is_understood(sleeper):
    result = identity_of(sleeper.pid).as_json()
    older = {"run": "r", "pid": sleeper.pid, "started": f"{result['boot']} {result['start']}", "host": result["host"]}
    identity = identity_from(older)
    assert identity is not None
    assert process_status(identity) is ProcessStatus.LIVES
    assert process_status(replace(identity, start="1")) is ProcessStatus.GONE


def test_the_words_of_ps_are_the_same_in_every_time_zone_and_language(sleeper, monkeypatch):
    # What macOS is asked with: there the system keeps the time itself, and setting the clock does not move it.
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    first = stat_from_ps(sleeper.pid)
    monkeypatch.setenv("TZ", "America/New_York")
    assert stat_from_ps(sleeper.pid) == first
    assert first is not None
    started = time.mktime(time.strptime(first.start)) - time.mktime(time.gmtime(0))
    assert abs(started - time.time()) < 3600 * 2
    assert not first.has_ended
    sleeper.kill()
    end_without_being_taken_note_of(sleeper)
    ended = stat_from_ps(sleeper.pid)
    assert ended is not None
    assert ended.has_ended
    sleeper.wait()
    assert stat_from_ps(sleeper.pid) is None


def needs_namespaces(*kinds: str) -> None:
    if subprocess.run(["unshare", *kinds, "true"], check=False).returncode and os.environ.get("CI") != "true":
        pytest.skip("needs the right to make a namespace")


SAY = (
    "import json, sys, time; from mlflow_stability.journal.process_identity import own_identity;"
    "print(json.dumps(own_identity().as_json()), flush=True); time.sleep(60)"
)
ASK = (
    "import json, sys; from mlflow_stability.journal.process_identity import identity_from, process_status;"
    "print(process_status(identity_from(json.loads(sys.argv[1]))).value)"
)


def asked(identity: ProcessIdentity, *before: str) -> str:
    command = [*before, sys.executable, "-c", ASK, json.dumps(identity.as_json())]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.slow
@pytest.mark.parametrize("mounts", [[], ["--mount-proc"]], ids=["with the folder of outside", "with its own /proc"])
def test_a_process_of_a_container_is_found_from_outside_and_inside(mounts):
    needs_namespaces("-pf")
    inside = [sys.executable, "-c", SAY]
    process = subprocess.Popen(["unshare", "-pf", "--kill-child", *mounts, *inside], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    identity = identity_from(json.loads(process.stdout.readline()))
    assert identity is not None
    assert identity.pid == 1  # as another process is called here
    assert identity.start
    assert process_status(identity) is ProcessStatus.LIVES
    assert asked(identity, "unshare", "-pf", *mounts) == ("unknown" if mounts else "lives")
    (child,) = psutil.Process(process.pid).children()
    assert asked(identity, "nsenter", "-t", str(child.pid), "-p", *(["-m"] if mounts else [])) == "lives"
    process.kill()
    process.wait()
    process.stdout.close()
    child.wait(10)
    is_first = Path("/proc/self/ns/pid").readlink() == Path("pid:[4026531836]")
    assert process_status(identity) is (ProcessStatus.GONE if is_first else ProcessStatus.UNKNOWN)
    # The kernel may give a new namespace the number of the one that has ended; then it is known to be gone.
    assert asked(identity, "unshare", "-pf", *mounts) in ("unknown", "gone")


def test_a_container_clock_with_another_origin_proves_nothing():
    own = own_identity()
    pids = own.namespaces.partition(" ")[0]
    assert process_status(replace(own, namespaces=f"{pids} time:[1]")) is ProcessStatus.UNKNOWN


def test_anything_other_than_such_a_link_gives_no_identity(tmp_path):
    (tmp_path / "path").symlink_to("/etc/passwd")
    (tmp_path / "file").touch()
    assert [identity_in_link(tmp_path / name) for name in ("path", "file", "nothing")] == [{}, {}, {}]
