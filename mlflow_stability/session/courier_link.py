"""Start and watch the courier process, and wait for it at the end of the training.

Guarantees: never a fork of this process; no wait except at the end; one warning when the tracking server does not
answer. The wait is needed: the end of a container's first process, or of a job, kills everything beside it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow_stability
from mlflow_stability.alerts.alert import OUTLETS_VARIABLE
from mlflow_stability.journal.layout import (
    COURIER_LOG,
    DELIVERED,
    RELEASED,
    STATUS,
    ask_to_flush,
    read_page,
    recording_folders,
)
from mlflow_stability.session.terminal_lines import ProgressLine
from mlflow_stability.session.training_output import DeliveredRun, TrainingOutput, delivered_run
from mlflow_stability.tracking.in_process import DeliveredState

LOOK_EVERY = 5.0
RESTART_PAUSE = 2.0
Say = Callable[..., None]
_LAUNCH = "import os, sys\nif os.fork() == 0: os.execv(sys.argv[1], sys.argv[1:])"


LONGEST_WAIT = 4  # longest wait with progress, as a multiple of that without


class DeliveryWait:
    """Decides how long to wait for a courier: longer while it makes progress."""

    def __init__(self, seconds: float, longest: float | None = None) -> None:
        self._seconds = seconds  # longest time without progress
        self._longest = LONGEST_WAIT * seconds if longest is None else longest
        self._began = self._moved = time.monotonic()
        self._said: tuple[Any, ...] = ()

    @property
    def waited(self) -> float:
        return time.monotonic() - self._began

    def is_over(self, status: dict[str, Any]) -> bool:
        """Whether to stop waiting, after a look at the courier's status."""
        now = time.monotonic()
        progress = tuple(str(status.get(key)) for key in ("state", "waiting_records", "left", "runs"))
        if progress != self._said and not status.get("error"):
            self._said, self._moved = progress, now
        return now - self._moved >= self._seconds or now - self._began >= self._longest


class CourierLink:
    def __init__(
        self, folder: Path, tracking_uri: str | None, warn: Say, offline: bool = False, outlets: str = ""
    ) -> None:
        self.folder = folder
        self.offline = offline  # nothing is delivered before `mlflow-stability sync`
        self._tracking_uri = tracking_uri
        self._outlets = outlets  # outlets for the courier's environment alone: addresses contain passwords
        self._notices: set[str] = set()  # notices of the courier that were printed
        self.warn = warn
        self._launcher: subprocess.Popen[bytes] | None = None
        self._alive = -1  # read end of a pipe whose write end only the courier holds: it ends with the courier
        self._directory = Path.cwd()  # MLflow's relative defaults refer to it, whatever the script changes to later
        self._runs: dict[str, DeliveredRun] = {}
        self._flushes = 0  # number of requests to deliver everything
        self._look_at = 0.0
        self._start_after = 0.0
        self._away_reported = False
        self._gone_reported = False
        self._start_failure_reported = False

    def start(self) -> None:
        """Start the courier in a session of its own, so that Ctrl-C does not reach it."""
        if self.offline:
            return
        package = Path(mlflow_stability.__file__).parent
        environment = dict(os.environ)
        paths = [str(package.parent), *filter(None, [environment.get("PYTHONPATH")])]
        # A script that takes warnings for errors means its own; those of MLflow's libraries would end the delivery.
        environment.pop("PYTHONWARNINGS", None)
        environment |= {
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONSAFEPATH": "1",  # a mlflow.py beside the training script is not MLflow
            "MLFLOW_STABILITY_DISABLE": "1",
            "OMP_NUM_THREADS": "1",
        }
        if self._outlets:
            environment[OUTLETS_VARIABLE] = self._outlets
        if self._tracking_uri is not None:
            environment["MLFLOW_TRACKING_URI"] = self._tracking_uri
        try:
            self._spawn(environment)
        except OSError as error:
            if not self._start_failure_reported:
                self._start_failure_reported = True
                self.warn(
                    "The courier process could not be started (%s). Training continues and everything is "
                    "kept in %s. Run `mlflow-stability sync` to deliver it.",
                    str(error),  # as text: an error keeps its frames alive
                    self.folder.parent,
                    if_silent=True,
                )
        self._start_after = time.monotonic() + RESTART_PAUSE

    def _spawn(self, environment: dict[str, str]) -> None:
        """Start it without a parent: whoever kills this process and its children, as Ray does, leaves it alone."""
        self._hang_up()
        courier = [sys.executable, "-m", "mlflow_stability.courier", str(self.folder)]
        log = os.open(self.folder / COURIER_LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._alive, held = os.pipe()
        os.set_blocking(self._alive, False)
        try:
            self._launcher = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _LAUNCH, *courier],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=self._directory if self._directory.is_dir() else None,
                start_new_session=True,
                pass_fds=[held],
            )
        except OSError:
            self._hang_up()
            raise
        finally:
            os.close(held)
            os.close(log)

    def _is_running(self) -> bool:
        """Whether the courier lives, asked without its pid: that may be reused."""
        if self._launcher is None or self._alive < 0:
            return False
        self._launcher.poll()
        try:
            ended = os.read(self._alive, 1) == b""
        except BlockingIOError:
            ended = False
        if ended:
            self._hang_up()
        return not ended

    def _hang_up(self) -> None:
        if self._alive >= 0:
            os.close(self._alive)
            self._alive = -1

    @property
    def was_started(self) -> bool:
        return self._launcher is not None

    def look_after(self) -> None:
        """Check every few seconds that the courier lives, and print its notices."""
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + LOOK_EVERY
            if not self.folder.exists() and not self._gone_reported:
                self._gone_reported = True
                self.warn(
                    "The journal in %s was deleted during training. Undelivered records are lost, and "
                    "recording has stopped. Start a new run, or call autolog(disable=True) and autolog() "
                    "again, to record further.",
                    self.folder,
                    if_silent=True,
                )
            self._revive()
            self._pass_on()

    def run_id(self, recording: Path, wait: float = 0.0) -> str | None:
        """Return the run that the courier started for a recording, if known."""
        until = time.monotonic() + wait
        while True:
            run_id = self.run(recording).run_id
            if run_id or time.monotonic() >= until:
                return run_id or None
            time.sleep(0.05)

    def run(self, recording: Path) -> DeliveredRun:
        """Return id, address and verdict of the run of a recording."""
        delivered = read_page(recording / DELIVERED)
        if delivered.get("run_id"):
            return delivered_run({**delivered, "name": delivered.get("run_name")})
        return self.runs().get(recording.name, DeliveredRun())

    def wait(self, patience: DeliveryWait, progress: Callable[[str], None]) -> bool:
        """Wait until everything has arrived; False if that takes too long.

        Only the run's status may still be corrected, once this process is gone.
        """
        asked = self._ask_to_flush()
        while not self.all_arrived():
            self._revive()
            page = read_page(self.folder / STATUS)
            self._pass_on_notices(page)
            self.runs()
            if asked and int(page.get("flushed") or 0) >= asked:
                return True
            if not self.was_started or patience.is_over(page):
                return False
            progress(self.left())
            time.sleep(0.05)
        self.runs()
        self._pass_on_notices(read_page(self.folder / STATUS))
        return True

    def _ask_to_flush(self) -> int:
        """Request delivery of everything recorded so far; return the request's number, 0 without one."""
        if not self.was_started or not self.folder.is_dir():
            return 0
        if not ask_to_flush(self.folder, self._flushes + 1):
            return 0  # the disk is full: delivery is confirmed at the end of each recording only
        self._flushes += 1
        return self._flushes

    def runs(self) -> dict[str, DeliveredRun]:
        """Return the run of each recording, remembered: the status goes with the journal."""
        runs = read_page(self.folder / STATUS).get("runs")
        for name, run in runs.items() if isinstance(runs, dict) else ():
            self._runs[name] = delivered_run(run)
        return self._runs

    def left(self) -> str:
        """Describe what is still on its way."""
        page = read_page(self.folder / STATUS)
        waiting = float(page.get("waiting_records") or 0)
        size = f", {waiting / 1e6:.1f} MB" if waiting >= 50_000 else ""
        return ", ".join(page.get("left") or ["everything"]) + size

    def trouble(self) -> str:
        """Return why delivery is stuck; empty while it is not."""
        return str(read_page(self.folder / STATUS).get("error") or "")

    def release(self) -> None:
        """Say that nothing more will come, though this process may live on."""
        if self.folder.is_dir():
            (self.folder / RELEASED).touch(mode=0o600)

    def detach(self) -> None:
        """Wait until it has no parent: a few hundredths of a second after its start."""
        if self._launcher is not None:
            self._launcher.wait()

    def let_go(self) -> None:
        """Leave it running when this process ends."""
        self.detach()
        self._hang_up()

    def all_arrived(self) -> bool:
        return all(read_page(folder / DELIVERED).get("complete") for folder in recording_folders(self.folder))

    def _revive(self) -> None:
        if not self._is_running() and self.folder.exists() and time.monotonic() >= self._start_after:
            self.start()

    def _pass_on(self) -> None:
        status = read_page(self.folder / STATUS)
        self._pass_on_notices(status)
        since = status.get("away_since")
        if since and not self._away_reported:
            self._away_reported = True
            self.warn(
                "No answer from the tracking server since %s (%s). Training continues and everything is kept "
                "in %s. Delivery resumes when the server answers, or with `mlflow-stability sync`.",
                time.strftime("%H:%M:%S", time.localtime(since)),
                status.get("error") or "no answer",
                self.folder.parent,
            )

    def _pass_on_notices(self, status: dict[str, Any]) -> None:
        for notice in status.get("notices") or ():
            if notice not in self._notices:
                self._notices.add(notice)
                self.warn("%s", notice)


@dataclass(frozen=True, slots=True)
class DeliveringCourier:
    link: CourierLink
    seconds: float  # longest wait without progress
    output: TrainingOutput
    longest: float | None = None  # longest wait; None: a multiple of `seconds`


def wait_for_delivery(awaited: Sequence[DeliveringCourier]) -> list[DeliveringCourier]:
    """Wait for all couriers at once; return those that take longer, after a warning."""
    line = ProgressLine(all(courier.output.silent for courier in awaited))
    waited = [(courier, DeliveryWait(courier.seconds, courier.longest)) for courier in awaited]
    try:
        late = [(courier, patience) for courier, patience in waited if not courier.link.wait(patience, line)]
    except KeyboardInterrupt:  # the user does not want to wait
        late = [(courier, patience) for courier, patience in waited if not courier.link.all_arrived()]
    line.clear()
    for courier, patience in late:
        link = courier.link
        if link.offline:
            journals = link.folder.parent
            courier.output.info(
                "Recorded offline in %s. Deliver it with `mlflow-stability sync %s`.", journals, journals
            )
        if not link.was_started:
            continue  # reported when it happened
        runs = [run.run_id for run in link.runs().values() if run.run_id]
        verdict = f" Show how it went: `mlflow-stability diagnose {runs[-1]}`." if runs else ""
        trouble = link.trouble()
        if trouble:
            link.warn(
                "Not delivered to MLflow yet after %.0f s: %s (%s). It is kept in %s. The courier process keeps "
                "trying for 10 minutes; afterwards run `mlflow-stability sync`.%s",
                patience.waited,
                link.left(),
                trouble,
                link.folder.parent,
                verdict,
                if_silent=True,
            )
        else:
            link.warn(
                "Still on the way to MLflow after %.0f s: %s. It will arrive: the courier process continues when this "
                "one has ended. If the machine stops first, run `mlflow-stability sync` (journal: %s).%s",
                patience.waited,
                link.left(),
                link.folder.parent,
                verdict,
            )
        link.let_go()
    return [courier for courier, _ in late]


def wait_for_run(
    link: CourierLink,
    folder: Path,
    address: str,
    output: TrainingOutput,
    settle: Callable[[], Callable[[], None] | None],
    seconds: float,
) -> DeliveredState | None:
    """Wait until everything recorded so far is in the run; None where the run is not known by then.

    `settle` gives a method that brings the last readings into the journal, if its object is still there.
    """
    method = settle()
    if method is not None:
        method()
    late = wait_for_delivery([DeliveringCourier(link, seconds, output, seconds)])
    run_id = link.run(folder).run_id
    return DeliveredState(run_id, address, link.left() if late else "") if run_id else None
