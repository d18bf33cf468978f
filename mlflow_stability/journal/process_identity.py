"""Identify processes, and check whether they still run: trainings, couriers, owners of folders, jobs of launchers.

A pid can be reused, and a start time by the wall clock moves when that clock is set. So a process is identified by what
never changes: the boot of its system, its namespaces, its pid, and its start counted from the boot. macOS keeps the
start as a time that does not change.

Guarantees: `GONE` is returned only for a process that cannot run any more. Where this machine cannot tell (another
machine, a container that is hidden from here, a journal of an older version), the answer is `UNKNOWN`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from enum import Enum
from pathlib import Path
from typing import Any

import psutil

_PROC = Path("/proc")
_FIRST_NAMESPACE = "4026531836"  # the initial pid namespace, which sees all processes: its number is fixed in Linux
_CLOCK_TOLERANCE_SECONDS = 2.0
_BOOT_DIGITS = 13  # length of the prefix of a boot id that is kept, because a claim must be short


class ProcessStatus(Enum):
    LIVES = "lives"
    GONE = "gone"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """What distinguishes a process from every other one."""

    pid: int
    host: str = ""
    boot: str = ""  # boot id of its system; empty where the system has none
    machine: str = ""
    """Id of the machine, which distinguishes a reboot from another machine of the same name; empty if unknown."""
    namespaces: str = ""
    """Numbers of its pid and time namespaces, in which its pid and its start are valid; empty where there are none."""
    start: str = ""  # its start, as the system counts it; empty where that is unknown
    started: float = 0.0  # its start by the wall clock, which older versions kept instead

    def as_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value}

    @property
    def is_neighbour(self) -> bool:
        """Whether its pid is valid in the namespaces of this process."""
        return self.namespaces in ("", _own_surroundings(os.getpid()).namespaces)


def identity_from(values: Mapping[str, Any]) -> ProcessIdentity | None:
    """Read what `as_json` returned, also of older versions; None where it identifies no process."""
    parts = {member.name: values[member.name] for member in fields(ProcessIdentity) if member.name in values}
    if isinstance(started := parts.get("started"), str):  # the owner of a folder of checkpoints, in older versions
        del parts["started"]
        if started.count(" ") == 1:
            parts["boot"], parts["start"] = started.split()
    try:
        parts["boot"] = str(parts.get("boot", ""))[:_BOOT_DIGITS]
        parts = {**parts, "pid": int(parts["pid"]), "started": float(parts.get("started", 0.0))}
    except (KeyError, TypeError, ValueError):
        return None
    return ProcessIdentity(**parts)


def identity_in_link(link: Path) -> dict[str, Any]:
    """Read the JSON in the target of a link; empty where there is none.

    A link is created atomically, and a short target is stored in the inode, so that it fits on a full disk.
    """
    try:
        values = json.loads(_link_target(link))
    except ValueError:
        return {}
    return values if isinstance(values, dict) else {}


def own_identity() -> ProcessIdentity:
    return identity_of(os.getpid())


def identity_of(pid: int) -> ProcessIdentity:
    """Return the identity of the process that has this pid now, in the namespace of this process."""
    stat = _find_process(pid)
    return replace(_own_surroundings(os.getpid()), pid=pid, start=stat.start if stat else "")


def process_status(process: ProcessIdentity) -> ProcessStatus:
    """Check whether this very process still runs; a zombie does not."""
    if process.pid <= 0:
        return ProcessStatus.GONE
    here = _own_surroundings(os.getpid())
    if process.boot and here.boot:
        if process.boot != here.boot:
            was_rebooted = (process.host, process.machine) == (here.host, here.machine)
            return ProcessStatus.GONE if was_rebooted else ProcessStatus.UNKNOWN
    elif process.host != here.host:
        return ProcessStatus.UNKNOWN
    return _status_of_neighbour(process) if process.is_neighbour else _status_in_container(process, here)


def _status_of_neighbour(process: ProcessIdentity) -> ProcessStatus:
    """Check a process whose pid is valid in the namespaces of this process."""
    if not _pid_exists(process.pid):
        return ProcessStatus.GONE
    stat = _find_process(process.pid)
    if stat is None:
        return ProcessStatus.UNKNOWN
    if stat.has_ended:
        return ProcessStatus.GONE
    if process.start:
        return ProcessStatus.LIVES if stat.start == process.start else ProcessStatus.GONE
    # Another start by the wall clock does not prove another process: the clock may have been set.
    return ProcessStatus.LIVES if _clock_agrees(process) else ProcessStatus.UNKNOWN


def _pid_exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _status_in_container(process: ProcessIdentity, here: ProcessIdentity) -> ProcessStatus:
    """Check a process whose pid is of another namespace of this machine."""
    pids, _, times = process.namespaces.partition(" ")
    our_pids, _, our_times = here.namespaces.partition(" ")
    if times != our_times:  # its start has another origin
        return ProcessStatus.UNKNOWN
    stats = (_read_stat(folder) for folder in _proc_folders(process.pid, pids))
    if any(stat is not None and not stat.has_ended and stat.start == process.start for stat in stats):
        return ProcessStatus.LIVES
    return ProcessStatus.GONE if our_pids == _FIRST_NAMESPACE and _proc_is_ours(os.getpid()) else ProcessStatus.UNKNOWN


@dataclass(frozen=True, slots=True)
class _ProcessStat:
    """What the system knows of a process now."""

    start: str
    has_ended: bool  # whether it is a zombie


def _find_process(pid: int) -> _ProcessStat | None:
    """Read a process of our own namespace; None where there is none or access is denied."""
    if sys.platform != "linux":
        return stat_from_ps(pid)
    if pid == os.getpid():
        return _read_stat(_PROC / "self")
    if _proc_is_ours(os.getpid()):
        return _read_stat(_PROC / str(pid))
    pids = _own_surroundings(os.getpid()).namespaces.partition(" ")[0]
    return next((stat for folder in _proc_folders(pid, pids) if (stat := _read_stat(folder)) is not None), None)


def _read_stat(folder: Path) -> _ProcessStat | None:
    """Read a folder of `/proc`; its start is in ticks since the boot, which do not depend on the wall clock."""
    try:
        words = (folder / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return _ProcessStat(words[19], words[0] in "ZX")


def stat_from_ps(pid: int) -> _ProcessStat | None:
    """Read the same where there is no `/proc`: macOS keeps the start as a time that does not change."""
    words = _output_of("ps", "-o", "stat=,lstart=", "-p", str(pid)).split(maxsplit=1)
    return _ProcessStat(words[1], words[0].startswith("Z")) if len(words) == 2 else None


def _proc_folders(pid: int, namespace: str) -> Iterator[Path]:
    """Yield the folders in `/proc` of processes with this pid in that namespace, whatever their pid is here."""
    for folder in _PROC.glob("[0-9]*"):
        try:
            status = (folder / "status").read_text()
            if re.search(rf"^NSpid:.*\t{pid}$", status, re.MULTILINE) and _namespace(folder / "ns/pid") == namespace:
                yield folder
        except OSError:  # it has ended, or belongs to another user
            continue


@functools.lru_cache(maxsize=1)
def _proc_is_ours(pid: int) -> bool:
    """Whether `/proc` is of our pid namespace: a new namespace may still have the mount of the outer one."""
    return _link_target(_PROC / "self") == str(pid)


@functools.lru_cache(maxsize=1)
def _own_surroundings(pid: int) -> ProcessIdentity:
    """Return our own identity without the start; cached by pid, because a forked child may be in another namespace."""
    return ProcessIdentity(
        pid,
        socket.gethostname(),
        (_file_text(_PROC / "sys/kernel/random/boot_id") or _output_of("sysctl", "-n", "kern.bootsessionuuid"))[
            :_BOOT_DIGITS
        ],
        _file_text(Path("/etc/machine-id")),
        f"{_namespace(_PROC / 'self/ns/pid')} {_namespace(_PROC / 'self/ns/time')}".strip(),
    )


def _clock_agrees(process: ProcessIdentity) -> bool:
    try:
        now = psutil.Process(process.pid).create_time()
    except psutil.Error:
        return False
    return process.started > 0 and abs(now - process.started) <= _CLOCK_TOLERANCE_SECONDS


def _file_text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def _link_target(link: Path) -> str:
    try:
        return os.readlink(link)  # noqa: PTH115 - it is no path, and a Path would normalise it
    except OSError:
        return ""


def _namespace(link: Path) -> str:
    """Return the number in ``pid:[4026531836]``."""
    return "".join(filter(str.isdigit, _link_target(link)))


def _output_of(*command: str) -> str:
    """Return the output of a system tool, independent of locale and time zone; empty where it fails."""
    environment = {**os.environ, "LC_ALL": "C", "TZ": "UTC"}
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    except OSError:
        return ""
    return result.stdout.strip() if result.returncode == 0 else ""


JOB_NAME_LENGTH = 32
MARK = "job"  # file in a folder with the name of the job that it belongs to


@dataclass(frozen=True, slots=True)
class LaunchedJob:
    name: str
    restarts: int  # number of restarts of its processes
    max_restarts: int  # `--max-restarts`

    @property
    def can_restart(self) -> bool:
        """Whether there is more than one attempt, or may be."""
        return self.max_restarts > 0


def launched_job() -> LaunchedJob | None:
    """Return the torchrun job of this process; None where no launcher started it.

    The name is the same in all attempts on this machine. It includes the identity of the launcher's process, because
    successive jobs may have the same `--rdzv-id`.
    """
    try:
        identifier = os.environ["TORCHELASTIC_RUN_ID"]
        restarts, max_restarts = (int(os.environ[f"TORCHELASTIC_{name}"]) for name in ("RESTART_COUNT", "MAX_RESTARTS"))
    except (KeyError, ValueError):
        return None
    launcher = identity_of(os.getppid())
    text = "\n".join((identifier, launcher.host, launcher.boot, str(launcher.pid), launcher.start))
    return LaunchedJob(hashlib.sha256(text.encode()).hexdigest()[:JOB_NAME_LENGTH], restarts, max_restarts)


def mark_folder(folder: Path, job: LaunchedJob) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.suppress(OSError):  # whatever needs the space next reports a full disk
        (folder / MARK).touch(mode=0o600)
        (folder / MARK).write_text(job.name)


def marked_folders(directory: Path, job: LaunchedJob) -> list[Path]:
    """Return the folders in a directory that belong to this job, those of its last attempt first."""
    folders = []
    for mark in directory.glob(f"*/{MARK}"):
        with contextlib.suppress(OSError):  # removed meanwhile
            if mark.read_text() == job.name:
                folders.append((mark.stat().st_mtime, mark.parent))
    return [folder for _, folder in sorted(folders, reverse=True)]
