"""Decide before each step which run it belongs to, and keep a recording for it.

A run that the script is in comes first, then that of a Lightning logger, then one of our own, which the courier starts,
since that may wait for a server. Guarantees: two microseconds where nothing changes; no call to a server.
"""

from __future__ import annotations

import os
import socket
import sys
import time
import uuid
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

from mlflow_stability.alerts.alert import outlet_settings
from mlflow_stability.alerts.channels import console_file
from mlflow_stability.errors import JournalError
from mlflow_stability.journal.layout import new_session_folder
from mlflow_stability.journal.process_identity import launched_job
from mlflow_stability.kinds.catalog import describe
from mlflow_stability.kinds.reported.endings import RestartFacts
from mlflow_stability.kinds.reported.ranks import JobRestarted
from mlflow_stability.probes.hooks.guarded_hooks import PartGuard
from mlflow_stability.session.courier_link import CourierLink, Say, wait_for_run
from mlflow_stability.session.probe_plan import chosen_detectors, judging_of
from mlflow_stability.session.rank_comparison import rank_and_world_size
from mlflow_stability.session.recording.recording import Recording
from mlflow_stability.session.recording.script_metrics import ScriptMetrics
from mlflow_stability.session.training_facts import SweepTrial, running_trial
from mlflow_stability.session.training_output import DeliveredRun, TrainingOutput
from mlflow_stability.tracking.address import absolute_uri, default_uri, strip_credentials
from mlflow_stability.tracking.in_process import (
    CLIENT,
    Deliver,
    ImplicitRunJoin,
    RunInProgress,
    announced_run,
    end_fluent_run,
    experiment_id,
    fluent_run,
    fluent_run_id,
    fluent_runs,
    lightning_run,
    measures_machine,
    tracking_uri,
)
from mlflow_stability.tracking.tag_names import last_step
from mlflow_stability.vocabulary.result import Finding, Severity
from mlflow_stability.vocabulary.run import RUN_STATUS, Closing, Opening
from mlflow_stability.vocabulary.settings import Settings

MOST_NAMED = 20
"""Recordings of a run named to a further one; those before have long arrived, even if a script switches between two
runs at every epoch."""


@dataclass(slots=True)
class _Recorded:
    last_step: int = 0
    recordings: deque[str] = field(default_factory=lambda: deque(maxlen=MOST_NAMED))


class EarlierRecordings:
    """Ended recordings of this process, by run; they survive `autolog(disable=True)`, not a fork."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._runs: dict[str, _Recorded] = {}

    def ended(self, run_id: str, recording: str, last_step: int) -> None:
        """Remember a recording; also again, once its run is known."""
        recorded = self._of_this_process().setdefault(run_id, _Recorded())
        recorded.last_step = max(recorded.last_step, last_step)
        if recording not in recorded.recordings:
            recorded.recordings.append(recording)

    def last_step(self, run_id: str) -> int:
        """Return the last recorded step of a run; 0 without one."""
        recorded = self._of_this_process().get(run_id)
        return 0 if recorded is None else recorded.last_step

    def of_run(self, run_id: str) -> list[str]:
        """Return the newest recordings of a run, oldest first."""
        recorded = self._of_this_process().get(run_id)
        return [] if recorded is None else list(recorded.recordings)

    def _of_this_process(self) -> dict[str, _Recorded]:
        if self._pid != os.getpid():
            self._pid, self._runs = os.getpid(), {}
        return self._runs


EARLIER = EarlierRecordings()


RUN_ID_WAIT = 10.0  # how long to wait for the id of a run to be made
JOIN_WAIT = 30.0
"""How long a metric that the script logs without a run waits for ours: on a busy machine the courier needs more than
ten seconds for its imports, and a second run would split the record."""
_LAYER_METRICS: dict[bool | str, Literal["", "blocks", "parameters"]] = {
    False: "",
    True: "blocks",
    "parameters": "parameters",
}


class RunBinding:
    def __init__(
        self,
        settings: Settings,
        guard: PartGuard,
        on_event: Callable[[Finding], None],
        warn: Say,
        settle: Callable[[], None],
        begun: Callable[[], None] = lambda: None,
    ) -> None:
        self.settings = settings
        self.recording: Recording | None = None
        self.links: dict[str, CourierLink] = {}
        self._guard = guard
        self._on_event = on_event
        self._warn = warn
        self._settle = settle  # waits for pending readings of the recording
        self._begun = begun  # called when another recording has begun
        self._run_id: str | None = None  # the run of the recording; None while the courier has not started it
        self._folder: Path | None = None
        self._opened: Opening | None = None  # the opening of the recording in progress, or the last one
        self._recording_link: CourierLink | None = None
        self._recording_address = ""
        self._own = False
        self._ours = False  # the run was made for a recording of this process, and its status is ours to set
        self._ended_cell: int | None = None  # last step of a recording of ours that ended with a notebook's cell
        self._fluent = False
        self._known_optimizers: weakref.WeakSet[object] = weakref.WeakSet()
        self.newest: Callable[[], object] = lambda: None  # weak reference to the optimizer that stepped last
        self.runs: Sequence[object] = ()  # runs that this thread is in: MLflow's own list
        self.bound_to: object = None  # the innermost of them at the last `recording_for`
        self.modules = 0  # number of loaded modules then; 0: look again, whatever the optimizer
        self._recordings = 0
        self._rank: tuple[int, int] | None = None
        self._join = ImplicitRunJoin(self._joinable_run_id)
        self.heard = ScriptMetrics()
        self._trial: SweepTrial | None = None  # the trial of a sweep that the recording is for
        self._trial_is_written = False
        self._trial_of = guard("trials of a sweep", running_trial)
        self._hear = guard("the script's own metrics", self._hear_the_script)

    def recording_for(self, optimizer: object) -> Recording | None:
        """Return the recording of this capture; None on every rank but the first."""
        if self._rank is None:
            self._rank = rank_and_world_size()
        if self._rank[0] != 0:
            return None
        is_new = False
        if optimizer is not None and self.newest() is not optimizer:
            self.newest = weakref.ref(optimizer)
            is_new = optimizer not in self._known_optimizers
            self._known_optimizers.add(optimizer)
            if is_new:
                self.heard.trainers.install()
                self._meet_trial()
        exclusive = self.settings.exclusive
        run = None if exclusive and self.recording is not None else self._changed_run(is_new)
        if run is not None or self.recording is None:
            self._switch(run)
            self._write_trial("trial")
        elif is_new and self._trial is not None:
            self._write_trial(self._trial.name.replace(" ", "_"))  # one of several trials in one run
        elif self._own and not exclusive and CLIENT in sys.modules:
            self._join.install()  # the script may have imported MLflow since
        if not self.heard.is_on and CLIENT in sys.modules:
            self.heard.install()
        if self.heard.waiting:
            self._hear()
        self.runs = () if exclusive else fluent_runs()
        self.bound_to, self.modules = self.runs[-1] if self.runs else None, len(sys.modules)
        return self.recording

    def _meet_trial(self) -> None:
        """End the recording of our own run with its trial: the next one has its own run."""
        before, self._trial = self._trial, self._trial_of()
        was, now = (trial.identity if trial is not None else () for trial in (before, self._trial))
        if was == now:
            return
        self._trial_is_written = False
        if self.recording is None or self.settings.exclusive:
            return
        if fluent_run_id() is not None and fluent_run_id() == self._join.joined:
            end_fluent_run(RUN_STATUS["finished"])  # by the script's own metrics, and it would go on in this one
        if self._own and fluent_run_id() is None:
            self._end_recording(Closing("finished", run_was_active=False))

    def _write_trial(self, prefix: str) -> None:
        """Write the parameters of the trial once."""
        if self._trial is not None and self.recording is not None and not self._trial_is_written:
            self._trial_is_written = True
            self.recording.know(self._trial.facts(prefix))

    def close(self, closing: Closing) -> None:
        if self.recording is not None:
            self._end_recording(self._with_run(closing))
        self._join.remove()
        self.heard.remove()

    def returned(self, closing: Closing) -> None:
        """The training thread has ended: write so before the process can be killed."""
        if self.recording is not None:
            self._hear()
            self.recording.returned(self._with_run(closing))

    def _with_run(self, closing: Closing) -> Closing:
        still_active = not self._fluent or fluent_run_id() == self._run_id
        return replace(closing, run_was_active=closing.run_was_active and still_active)

    def _changed_run(self, new_optimizer: bool) -> RunInProgress | None:
        """Return the run to switch to; None: stay. Leaving a run for none at all ends the recording here."""
        if self.settings.exclusive:
            return None
        active = fluent_run_id()
        if active is not None:
            return fluent_run() if active != self.current_run_id() else None
        if self._fluent and self.recording is not None and not self._own:
            self._end_recording(Closing("finished", run_was_active=False))
        if self._ended_cell is not None and not new_optimizer:  # the next cell trains on
            run_id = self.current_run_id()
            if run_id is None:  # not even begun: then another run is made
                return None
            if self._opened is not None:  # its run may have been unknown when it ended
                EARLIER.ended(run_id, self._opened.recording, self._ended_cell)
            return RunInProgress(run_id, resumed=True)
        if new_optimizer or self.recording is None:
            run = lightning_run() or announced_run()
            if run is not None and run.run_id != self._run_id:
                return run
        return None

    def _hear_the_script(self) -> None:
        """Judge the validation losses that the script has logged since, from the first step on."""
        recording = self.recording
        self.heard.wanted = self.settings.policy.best_by or ""
        if recording is not None and recording.step >= recording.opening.first_step:
            recording.record_script_metrics(self.heard.take(self.current_run_id()))

    def current_run_id(self, wait: float = 0.0) -> str | None:
        """Return the run of the recording in progress, or of the last one, if known within `wait` seconds."""
        if self._own and self._run_id is None and self._folder is not None and self._recording_link is not None:
            self._run_id = self._recording_link.run_id(self._folder, wait)
        return self._run_id

    def delivery(self, output: TrainingOutput, settle: Callable[[], None]) -> Deliver | None:
        """Return what waits for the recording in progress, or the last one; None before the first step.

        It outlives the session, and holds nothing of the training.
        """
        if self._folder is None or self._recording_link is None:
            return None
        link, address = self._recording_link, self._recording_address
        return partial(wait_for_run, link, self._folder, address, output, weakref.WeakMethod(settle))

    def delivered_run(self) -> DeliveredRun:
        if self._folder is None or self._recording_link is None:
            return DeliveredRun()
        return self._recording_link.run(self._folder)

    def tell_beginning(self, output: TrainingOutput) -> None:
        if self._folder is None or self._recording_link is None:
            return
        link = self._recording_link
        where = f"into {strip_credentials(self._recording_address)}; the run is being created."
        if link.offline:
            where = f"offline in {link.folder.parent}."
        output.recording_begins(where, partial(link.run, self._folder))

    def _joinable_run_id(self) -> str | None:
        """Return our run for a metric of the script; None where the script has switched to another store since."""
        opening = self._opened
        if opening is None or opening.pid != os.getpid() or not (self._own or self._ours):
            return None
        same = _address(opening.directory) == self._recording_address and experiment_id() == opening.experiment_id
        return self.current_run_id(JOIN_WAIT) if same else None

    def cell_ended(self, closing: Closing) -> int:
        """End the recording of our own run with a notebook's cell; return its number of steps.

        A run that the script has started stays open. Our own run that the script's metrics joined is left, so that the
        next cell that trains has its own.
        """
        if fluent_run_id() is not None and fluent_run_id() == self._join.joined:
            end_fluent_run(RUN_STATUS[closing.outcome])
        self.leave_ended_run()
        recording = self.recording
        if recording is None or not self._ours:
            return 0
        self._ended_cell = recording.step
        self._end_recording(replace(closing, run_was_active=False))
        return recording.step - recording.opening.first_step + 1

    def leave_ended_run(self) -> None:
        if self._fluent and self.recording is not None and fluent_run_id() != self._run_id:
            self._end_recording(Closing("finished", run_was_active=False))

    def _switch(self, run: RunInProgress | None) -> None:
        if self.recording is not None:
            self._end_recording(Closing("finished", run_was_active=False))
        link = self._link()
        detectors = chosen_detectors(self.settings)
        try:
            self.recording = Recording(
                link.folder / f"{self._recordings:03d}-{uuid.uuid4().hex[:8]}",
                replace(self._opening(run), detectors=describe(detectors)),
                detectors,
                self._guard,
                self._on_event,
                lambda message: self._warn("%s", message),
                judging=judging_of(self.settings),
            )
        except OSError as error:
            raise _no_journal(link.folder.parent, error) from error
        self._recordings += 1
        job, step = launched_job(), self.recording.opening.first_step
        if job is not None and job.restarts:
            facts = RestartFacts(job.restarts + 1, job.max_restarts)
            self.recording.emit(Finding.at(facts, step, Severity.INFO, remedies=JobRestarted.remedies))
        self._folder = self.recording.folder
        self._recording_link, self._recording_address = link, _address(str(Path.cwd()))
        self._ours = run is None or (self._ended_cell is not None and run.run_id == self._run_id)
        self._own, self._run_id = run is None, run.run_id if run else None
        self._ended_cell, self._opened = None, self.recording.opening
        self._fluent = run is not None and fluent_run_id() == run.run_id
        if not link.was_started:
            link.start()
        if self._own and not self.settings.exclusive:
            self._join.install()
        self._begun()

    def _end_recording(self, closing: Closing) -> None:
        if self.recording is not None:
            self._settle()
            self._hear()
        recording, self.recording, self.modules = self.recording, None, 0
        if recording is not None:
            run_id = self.current_run_id()
            if run_id is not None:
                EARLIER.ended(run_id, recording.opening.recording, recording.step)
            recording.close(closing)

    def _link(self) -> CourierLink:
        """Return the courier for the current store; it starts with the first recording."""
        uri, address = tracking_uri(), _address(str(Path.cwd()))
        if address not in self.links:
            try:
                folder = new_session_folder(self.settings.journal_root())
            except OSError as error:
                raise _no_journal(self.settings.journal_root(), error) from error
            asked = self.settings
            outlets = outlet_settings(asked.alerts, console_file(), asked.prometheus_port, asked.mirrors)
            environment = outlets.text() if outlets else ""
            self.links[address] = CourierLink(folder, uri, self._warn, self.settings.offline, environment)
        return self.links[address]

    def _opening(self, run: RunInProgress | None) -> Opening:
        uri, directory, job = tracking_uri(), Path.cwd(), launched_job()
        name = self._trial.name if self._trial is not None and run is None else ""
        first = 1
        if run is not None:
            first += max(EARLIER.last_step(run.run_id), last_step(run.tags))
        return Opening(
            recording=uuid.uuid4().hex,
            pid=os.getpid(),
            process_started=0.0,
            host=socket.gethostname(),
            time=time.time(),
            tracking_uri=None if uri is None else strip_credentials(absolute_uri(uri, str(directory))),
            directory=str(directory),
            run_id=run.run_id if run else None,
            resumed=run is not None and run.resumed,
            experiment_id=experiment_id(),
            first_step=first,
            earlier=[] if run is None else EARLIER.of_run(run.run_id),
            log_every_n_steps=self.settings.log_every_n_steps,
            layer_metrics=_LAYER_METRICS[self.settings.layer_metrics],
            system_metrics=self.settings.system_metrics and not (run is not None and measures_machine(run.run_id)),
            tags=({"mlflow.runName": name} if name else {}) | dict(self.settings.extra_tags),
            world_size=self._rank[1] if self._rank else 1,
            job=job.name if job is not None and job.can_restart else "",
            restarts=0 if job is None else job.restarts,
            interactive=hasattr(sys, "ps1") or "ipykernel" in sys.modules,
        )


def _no_journal(folder: Path, error: OSError) -> JournalError:
    return JournalError(
        f"Cannot write a journal in {folder} ({error.strerror or error}): nothing is recorded. Pass another folder "
        "with autolog(options=Options(journal_dir=...))."
    )


def _address(directory: str) -> str:
    return absolute_uri(tracking_uri() or default_uri(directory), directory)
