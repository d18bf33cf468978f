"""Which process it is, and whether it is still there: the one answer for trainings, couriers and owners of folders.

A pid can be taken by another process, and the time at which a process was started, told by the wall clock, moves when
that clock is set. So a process is named by what never changes: the boot of its system, its namespaces, its pid, and
its start counted from the boot. On macOS, where the system keeps the start as the time it was then, by that time.

Guarantees: `GONE` is said only of a process that cannot run any more. Where this machine cannot be asked about it
(another machine, a container that is hidden from here, a journal of an older version), the answer is `UNKNOWN`.
"""

from __future__ import annotations

import functools
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
_FIRST_NAMESPACE = "4026531836"
"""The namespace that sees the processes of all others: Linux has given it this number since there are such numbers."""
_CLOCK_SLACK = 2.0
_BOOT_DIGITS = 13
"""So much of a boot's random name tells it from all others; a claim must be short."""


class ProcessStatus(Enum):
    """What can be said of a process."""

    LIVES = "lives"
    GONE = "gone"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process, told from every other one."""

    pid: int
    host: str = ""
    boot: str = ""
    """Which start of the system it runs under; empty where the system has no name for it."""
    machine: str = ""
    """The machine's own id, which tells a reboot from another machine of the same name; empty where there is none."""
    namespaces: str = ""
    """Where its pid and its start mean what they say: the numbers of the namespaces of pids and of time; empty where
    there are none."""
    start: str = ""
    """When it began, as the system itself counts; empty where that is not known."""
    started: float = 0.0
    """What versions before this one kept instead of all that: the start by the wall clock of the time."""

    def said(self) -> dict[str, Any]:
        """What is known of it, as a page keeps it."""
        return {name: value for name, value in asdict(self).items() if value}

    @property
    def is_neighbour(self) -> bool:
        """Whether its pid is also its pid here, if it runs on this machine."""
        return self.namespaces in ("", _surroundings(os.getpid()).namespaces)


def identity_from(said: Mapping[str, Any]) -> ProcessIdentity | None:
    """The process that a page names; None where it names none. Pages of older versions are understood."""
    known: dict[str, Any] = {each.name: said[each.name] for each in fields(ProcessIdentity) if each.name in said}
    if isinstance(started := known.get("started"), str):  # the owner of a folder of checkpoints, as it was kept before
        del known["started"]
        if started.count(" ") == 1:
            known["boot"], known["start"] = started.split()
    try:
        known["boot"] = str(known.get("boot", ""))[:_BOOT_DIGITS]
        known = {**known, "pid": int(known["pid"]), "started": float(known.get("started", 0.0))}
    except (KeyError, TypeError, ValueError):
        return None
    return ProcessIdentity(**known)


def identity_in_link(link: Path) -> dict[str, Any]:
    """What a link says whose target is no path; nothing where there is none.

    A link is there at once and whole. A short target is kept where its name is, and fits on a full disk.
    """
    try:
        said = json.loads(os.readlink(link))  # noqa: PTH115 - a Path would tidy the text up
    except (OSError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}


def own_identity() -> ProcessIdentity:
    """This process."""
    return identity_of(os.getpid())


def identity_of(pid: int) -> ProcessIdentity:
    """The process that has this pid now, as this process numbers them."""
    seen = _seen(pid)
    return replace(_surroundings(os.getpid()), pid=pid, start=seen.start if seen else "")


def life_of(process: ProcessIdentity) -> ProcessStatus:
    """Whether this very process still runs; one that has ended and was not yet waited for does not."""
    if process.pid <= 0:
        return ProcessStatus.GONE
    here = _surroundings(os.getpid())
    if process.boot and here.boot:
        if process.boot != here.boot:
            was_rebooted = (process.host, process.machine) == (here.host, here.machine)
            return ProcessStatus.GONE if was_rebooted else ProcessStatus.UNKNOWN
    elif process.host != here.host:
        return ProcessStatus.UNKNOWN
    return _life_of_a_neighbour(process) if process.is_neighbour else _life_in_a_container(process, here)


def _life_of_a_neighbour(process: ProcessIdentity) -> ProcessStatus:
    """Of a process whose pid means here what it meant there."""
    if not _is_taken(process.pid):
        return ProcessStatus.GONE
    seen = _seen(process.pid)
    if seen is None:
        return ProcessStatus.UNKNOWN
    if seen.has_ended:
        return ProcessStatus.GONE
    if process.start:
        return ProcessStatus.LIVES if seen.start == process.start else ProcessStatus.GONE
    # That the clock tells another start does not say that it is another process: the clock may have been set.
    return ProcessStatus.LIVES if _clock_agrees(process) else ProcessStatus.UNKNOWN


def _is_taken(pid: int) -> bool:
    """Whether there is a process under this pid at all, whoever owns it."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _life_in_a_container(process: ProcessIdentity, here: ProcessIdentity) -> ProcessStatus:
    """Of a process that another namespace of this machine has, or had, under its pid."""
    pids, _, times = process.namespaces.partition(" ")
    our_pids, _, our_times = here.namespaces.partition(" ")
    if times != our_times:  # there its start is counted otherwise
        return ProcessStatus.UNKNOWN
    found = (_seen_in(folder) for folder in _folders_of(process.pid, pids))
    if any(seen is not None and not seen.has_ended and seen.start == process.start for seen in found):
        return ProcessStatus.LIVES
    return ProcessStatus.GONE if our_pids == _FIRST_NAMESPACE and _proc_is_ours(os.getpid()) else ProcessStatus.UNKNOWN


@dataclass(frozen=True, slots=True)
class _Seen:
    """A process as the system shows it now."""

    start: str
    has_ended: bool
    """It was not yet waited for."""


def _seen(pid: int) -> _Seen | None:
    """A process of our own namespace; None where there is none or it may not be looked at."""
    if sys.platform != "linux":
        return seen_by_ps(pid)
    if pid == os.getpid():
        return _seen_in(_PROC / "self")
    if _proc_is_ours(os.getpid()):
        return _seen_in(_PROC / str(pid))
    pids = _surroundings(os.getpid()).namespaces.partition(" ")[0]
    return next((seen for folder in _folders_of(pid, pids) if (seen := _seen_in(folder)) is not None), None)


def _seen_in(folder: Path) -> _Seen | None:
    """What a folder of `/proc` says: the start is in ticks since the boot, and no clock that is set moves it."""
    try:
        words = (folder / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return _Seen(words[19], words[0] in "ZX")


def seen_by_ps(pid: int) -> _Seen | None:
    """The same where there is no `/proc`: macOS keeps the start as a time that stays as it was written down."""
    asked = _said_by("ps", "-o", "stat=,lstart=", "-p", str(pid)).split(maxsplit=1)
    return _Seen(asked[1], asked[0].startswith("Z")) if len(asked) == 2 else None


def _folders_of(pid: int, namespace: str) -> Iterator[Path]:
    """Where `/proc` shows the process that has this pid in that namespace, whatever its pid is here."""
    for folder in _PROC.glob("[0-9]*"):
        try:
            status = (folder / "status").read_text()
            if re.search(rf"^NSpid:.*\t{pid}$", status, re.MULTILINE) and _namespace(folder / "ns/pid") == namespace:
                yield folder
        except OSError:  # it has gone, or belongs to another user
            continue


@functools.lru_cache(maxsize=1)
def _proc_is_ours(pid: int) -> bool:
    """Whether `/proc` counts processes as we do: a new namespace may still have the folder of the one outside."""
    return _link(_PROC / "self") == str(pid)


@functools.lru_cache(maxsize=1)
def _surroundings(pid: int) -> ProcessIdentity:
    """All of our own identity but the start; by pid, for a forked child may be somewhere else."""
    return ProcessIdentity(
        pid,
        socket.gethostname(),
        (_text(_PROC / "sys/kernel/random/boot_id") or _said_by("sysctl", "-n", "kern.bootsessionuuid"))[:_BOOT_DIGITS],
        _text(Path("/etc/machine-id")),
        f"{_namespace(_PROC / 'self/ns/pid')} {_namespace(_PROC / 'self/ns/time')}".strip(),
    )


def _clock_agrees(process: ProcessIdentity) -> bool:
    try:
        now = psutil.Process(process.pid).create_time()
    except psutil.Error:
        return False
    return process.started > 0 and abs(now - process.started) <= _CLOCK_SLACK


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def _link(link: Path) -> str:
    try:
        return os.readlink(link)  # noqa: PTH115 - it is no path
    except OSError:
        return ""


def _namespace(link: Path) -> str:
    """Its number, out of ``pid:[4026531836]``."""
    return "".join(filter(str.isdigit, _link(link)))


def _said_by(*command: str) -> str:
    """What a tool of the system says, in words that depend on no setting; empty where it has nothing to say."""
    environment = {**os.environ, "LC_ALL": "C", "TZ": "UTC"}
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    except OSError:
        return ""
    return said.stdout.strip() if said.returncode == 0 else ""
