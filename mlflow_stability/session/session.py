"""Wire hooks, meter, run binding, courier and the end of a training.

`install` puts hooks into torch; everything else begins at the first optimizer step. `stop` removes everything.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from threading import get_ident
from typing import Any

from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

import mlflow_stability
from mlflow_stability.alerts.callback_thread import CallbackAlerts
from mlflow_stability.alerts.message import RunLink
from mlflow_stability.alerts.router import ending_event
from mlflow_stability.errors import ChangingPartsError, SettingsError
from mlflow_stability.journal.journal import SLOW_SHARE
from mlflow_stability.journal.layout import RankProcess, write_ranks
from mlflow_stability.journal.process_identity import ProcessIdentity, launched_job, own_identity
from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.probes.hooks.guarded_hooks import PartGuard
from mlflow_stability.probes.hooks.torch_hooks import TorchWatch
from mlflow_stability.probes.model_discovery import ObjectMemory
from mlflow_stability.probes.probe_scheduler import ProbeScheduler
from mlflow_stability.probes.ranks.rank_exchange import RankExchanges
from mlflow_stability.probes.ranks.rank_watch import RankWatch
from mlflow_stability.probes.step.capture import ProbeReading
from mlflow_stability.probes.step.step_meter import StepMeter
from mlflow_stability.session.courier_link import DeliveringCourier, wait_for_delivery
from mlflow_stability.session.probe_plan import probe_scheduler_of
from mlflow_stability.session.process_end import CellEnd, EndingWatch, ThreadEnd, process_exit
from mlflow_stability.session.rank_comparison import RankComparison, rank_and_world_size
from mlflow_stability.session.recording.recording import Recording
from mlflow_stability.session.recording.unseen_training import UnseenTraining
from mlflow_stability.session.run_binding import RUN_ID_WAIT, RunBinding
from mlflow_stability.session.training_output import TrainingOutput
from mlflow_stability.tracking.in_process import announce, end_fluent_run, fluent_run_id
from mlflow_stability.vocabulary.measured.signal import StepReading
from mlflow_stability.vocabulary.result import Finding
from mlflow_stability.vocabulary.run import RUN_STATUS, Closing
from mlflow_stability.vocabulary.settings import Settings

ALERT_SECONDS = 2.0  # how long the end of a session waits for alert callbacks
SHOWN_WITHIN = 10.0  # how long a notebook that shows a session waits for delivery
LOOK_SECONDS = 0.5  # interval of looks at the couriers


class Session:
    """Watching, from ``autolog()`` or ``attach()`` until it is removed or the process ends."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._pid = os.getpid()
        self._guard = PartGuard(settings.strict, self._part_failed)
        self._lifecycle: Any = None  # the `AutopilotLifecycle`; imported only if an autopilot was asked for
        self._alerts = CallbackAlerts(settings.alerts, self._run_link, self._warn)
        self._output = TrainingOutput(settings.silent, rolls_back=settings.policy.rolls_back)
        self._binding = RunBinding(settings, self._guard, self._emit, self._warn, self._settle, self._announce)
        self._objects = ObjectMemory()
        self._meter = self._new_meter()
        self._ending = EndingWatch()
        self._unseen = UnseenTraining(
            lambda message: self._warn("%s", message),
            self._ending.install,
            lambda: self._ending.closing.outcome != "finished",
        )
        self._watch = self._new_watch()
        self._exit_number = 0  # handle of our exit callback; 0 until the first step registers it
        self._thread_end = ThreadEnd(self._guard("the end of the training's thread", self._returned))
        self._cell_end = CellEnd(self._guard("the end of a cell", self._cell_ended))
        self._of_thread: Closing | None = None  # how the training thread ended; None while one trains
        self._is_full_disk_reported = False
        self._reported_recording: Recording | None = None  # the recording whose beginning was reported
        self._looked_after = 0.0
        lacking = torch_api.missing()
        if lacking:
            self._warn(
                "torch %s lacks %s. Switched off without it: %s. Training continues unchanged.",
                torch_api.torch_version(),
                ", ".join(lacking),
                "; ".join(dict.fromkeys(lacking.values())),
            )
        self._offer_to_restore()

    @property
    def is_inherited(self) -> bool:
        """Whether this process is a fork of the process that began the session."""
        return os.getpid() != self._pid

    @property
    def run_id(self) -> str | None:
        """The MLflow run that is recorded into, once known; after a recording it is waited for."""
        run_id = self._binding.current_run_id()
        if run_id is None and self._binding.recording is None:
            run_id = self._binding.current_run_id(RUN_ID_WAIT)
        return run_id

    def __repr__(self) -> str:
        recording = self._binding.recording
        if recording is None:
            run_id = self._binding.current_run_id()
            before = f"the run before is {run_id}" if run_id else "no run is known yet"
            return f"<Session: not recording; {before}>"
        return f"<Session: step {recording.step:,} of run {self._binding.current_run_id() or '(being made)'}>"

    def _repr_html_(self) -> str | None:
        """Return the report so far for a notebook; None: show the `repr`."""
        deliver = self._binding.delivery(self._output, self._bring_all_in)
        state = None if deliver is None else deliver(SHOWN_WITHIN)
        if state is None:
            return None
        page: str | None = mlflow_stability.diagnose(state.run_id, state.tracking_uri)._repr_html_()
        return page

    @property
    def recording(self) -> Recording | None:
        """The recording in progress; None before the first step."""
        return self._binding.recording

    @property
    def step(self) -> int:
        """The last step that was recorded."""
        recording = self._binding.recording
        return 0 if recording is None else recording.step

    @property
    def parts_off(self) -> dict[str, str]:
        """Internal parts that failed and were switched off, with the reason."""
        return dict(self._guard.off)

    @property
    def good_steps(self) -> tuple[int, ...]:
        """Steps whose state can be restored; empty without an autopilot."""
        return () if self._lifecycle is None else tuple(self._lifecycle.control.good_steps)

    def install(self) -> None:
        """Start watching torch."""
        self._watch.install()
        self._unseen.install()

    def reconfigure(self, settings: Settings) -> None:
        """Use these settings from now on; a recording in progress keeps its own."""
        before, self.settings = self.settings, settings
        self._binding.settings, self._binding.modules = settings, 0
        self._output.silent = settings.silent
        self._guard.strict = settings.strict
        outlets = [(asked.alerts, asked.prometheus_port, asked.mirrors) for asked in (before, settings)]
        if outlets[0] != outlets[1] and self._binding.links:
            self._warn("Alerts by URL, prometheus_port and mirrors stay as they were until this process ends.")
        if before.alerts != settings.alerts:
            self._alerts.close(ALERT_SECONDS)
            self._alerts = CallbackAlerts(settings.alerts, self._run_link, self._warn)
        if before.autopilot == settings.autopilot:
            return
        was_on = self._watch.is_installed
        self._watch.remove()
        self._guard("the last readings", self._meter.close)()
        if self._lifecycle is not None:
            self._lifecycle.close()
        self._meter = self._new_meter()
        self._watch = self._new_watch()
        if was_on:
            self._watch.install()

    def checkpoint_now(self) -> bool:
        """Write the state of the training to disk; False while the last checkpoint is being written."""
        return bool(self._control().checkpoint_now())

    def rollback(self) -> bool:
        """Restore the newest good state; False without one."""
        return bool(self._control().roll_back())

    def skip_next(self) -> None:
        """Skip the next step, leaving the training unchanged."""
        self._control().skip_next()

    def record_step(self, loss: Any, model: Module, optimizer: Any, gradients: Any, learning_rate: Any) -> None:
        """Record one step of a loop that hooks do not see."""
        self._unseen.recorded_by_hand()
        if gradients is None:
            gradients = [parameter.grad for parameter in model.parameters()]
        given = gradients.values() if isinstance(gradients, Mapping) else gradients
        rates = {} if learning_rate is None else {"": float(learning_rate)}
        by_hand = self._guard("step hooks", self._meter.manual_step)
        tensors = [gradient for gradient in given if isinstance(gradient, Tensor)]
        by_hand(loss, tensors, optimizer if isinstance(optimizer, Optimizer) else None, rates)

    def pause(self) -> None:
        """Remove the hooks while the script records by hand."""
        self._watch.remove()
        self._unseen.recorded_by_hand()

    def resume(self) -> None:
        """Install the hooks again."""
        self._watch.install()

    def stop(self, closing: Closing | None = None) -> None:
        """Remove everything; delivery continues, and is waited for at the end of the process."""
        self._watch.remove()
        self._guard("unseen training", self._unseen.remove)()
        self._finish(closing or Closing("finished", run_was_active=False))
        self._ending.remove()
        self._cell_end.remove()
        links = self._binding.links.values()
        for link in links:
            self._guard("release of the courier", link.release)()
            link.warn = self._output.warn  # nothing that it says needs us
        process_exit.over(
            self._exit_number, [DeliveringCourier(link, self.settings.exit_wait, self._output) for link in links]
        )

    def wait(self, seconds: float) -> bool:
        """Wait until everything recorded so far is in MLflow; False if it takes longer."""
        self._bring_all_in()
        links = self._binding.links.values()
        late = wait_for_delivery([DeliveringCourier(link, seconds, self._output, seconds) for link in links])
        if not late:
            self._guard("the run's id", self._binding.current_run_id)(RUN_ID_WAIT)
        return not late

    def _bring_all_in(self) -> None:
        """Write everything measured so far to the journal."""
        self._guard("the last readings", self._meter.drain)()
        self._output.all_done()
        self._guard("the end of the recording", self._binding.leave_ended_run)()
        if self._binding.recording is not None:
            self._binding.recording.settle()

    def _announce(self) -> None:
        self._binding.tell_beginning(self._output)
        announce(self._binding.delivery(self._output, self._bring_all_in))

    def _cell_ended(self, closing: Closing) -> None:
        """End our own run with the notebook's cell that trained, unless another thread trains."""
        if self._thread_end.ident == get_ident():
            self._bring_all_in()
            steps = self._binding.cell_ended(closing)
            if steps:
                self._output.cell_ended(steps, closing, self._binding.delivered_run())

    def _recording_for(self, optimizer: Any) -> Recording | None:
        """Runs at every step: fast where optimizer, thread and MLflow's run are unchanged."""
        binding, runs = self._binding, self._binding.runs
        if (
            binding.newest() is optimizer
            and (runs[-1] if runs else None) is binding.bound_to
            and len(sys.modules) == binding.modules
            and not binding.heard.waiting
            and get_ident() == self._thread_end.ident
            and self._of_thread is None
            and self._ending.closing.outcome == "finished"
        ):
            return binding.recording
        if not self._exit_number:
            self._ending.install()
            self._cell_end.install()
            self._exit_number = process_exit.begin(self._at_exit)
        if get_ident() != self._thread_end.ident:
            self._thread_end.watch()
        self._of_thread = None
        if self._ending.closing.outcome != "finished":
            self._ending.still_running()
        return self._binding.recording_for(optimizer)

    def _new_meter(self) -> StepMeter:
        """Import the autopilot only if it was asked for."""
        self._lifecycle = None
        exchanges = RankExchanges(self.settings.uses_autopilot, own_identity)
        if self.settings.uses_autopilot:
            from mlflow_stability.session.autopilot.autopilot_lifecycle import AutopilotLifecycle

            self._lifecycle = AutopilotLifecycle(
                self.settings,
                self._guard,
                exchanges,
                self._settle,
                self._binding.current_run_id,
                self._output.warn_early,
            )
        return StepMeter(
            self._guard,
            self._recording_for,
            self._on_reading,
            self._scheduler_for,
            RankWatch(
                self._guard,
                exchanges,
                self.settings.layers_every_n_steps,
                self.settings.memory_budget,
                self._ranks_ended,
                RankComparison(lambda: self._binding.recording).take,
                self._ranks_met,
            ),
            self._objects,
            None if self._lifecycle is None else self._lifecycle.control_for,
        )

    def _ranks_met(self, names: Sequence[str], processes: Sequence[ProcessIdentity]) -> None:
        """Tell the courier which processes train together."""
        recording = self._binding.recording
        if recording is not None:
            pairs = zip(names, processes, strict=True)
            write_ranks(recording.folder.parent, [RankProcess(name, process) for name, process in pairs])

    def _ranks_ended(self, why: str) -> None:
        """Warn once that ranks are no longer compared."""
        recording = self._binding.recording
        if recording is not None:
            lost = " The gradient norm and layers are missing from here on." if self._meter.ranks.is_split else ""
            self._warn(
                "Ranks are no longer compared since step %d: %s.%s Training continues unchanged.",
                recording.step,
                why,
                lost,
            )
            recording.note("ranks", f"rank 0 alone since step {recording.step}: {why}"[:1000])

    def _new_watch(self) -> TorchWatch:
        return TorchWatch(self._guard, self._meter, self._foreign_thread, self._unseen.counts, self._unseen.look)

    def _scheduler_for(self, recording: Recording | None) -> ProbeScheduler | None:
        if recording is None:
            return None
        self._guard.restart()
        return probe_scheduler_of(self.settings, self._guard, recording, self._objects)

    def _settle(self) -> None:
        self._meter.settle()

    def _control(self) -> Any:
        if self._lifecycle is None:
            raise SettingsError("No autopilot in this session. Call autolog(rollback=True) first.")
        return self._lifecycle.control

    def _on_reading(self, recording: Recording | None, reading: ProbeReading) -> None:
        if recording is not None and recording.closed:
            return
        control = None
        if self._lifecycle is not None:
            self._output.readings += 1
            if self._output.held:
                self._output.step_done()
            if self._lifecycle.recording is recording:
                control = self._lifecycle.current
        if recording is None:
            if control is not None:
                control.on_reading(StepReading(0, reading.signals, reading.values, 0, reading.time), ())
            return
        if control is not None and control.has_eased:
            reading = control.with_used_rate(reading)
        step, findings = recording.record(reading)
        if control is not None:
            control.on_reading(step, findings)
        if self._alerts.needs_readings:
            self._alerts.see(recording.last)
        if not 0 <= reading.time - self._looked_after < LOOK_SECONDS:  # the clock may be changed
            self._looked_after = reading.time
            for link in self._binding.links.values():
                link.look_after()
            if self._reported_recording is not recording and self._output.begins(self._binding.delivered_run()):
                self._reported_recording = recording
            slow = recording.slow_writes()
            if slow is not None:
                self._warn(
                    "Each step waits %.3g ms for its journal line at step %d, %.0f %% of the training time (threshold "
                    "%.0f %%): %s is on a slow file system. Training continues, slower. Set "
                    "MLFLOW_STABILITY_JOURNAL_DIR or autolog(options=Options(journal_dir=...)) to a folder on a local "
                    "disk.",
                    1000 * slow.seconds,
                    recording.step,
                    100 * slow.share,
                    100 * SLOW_SHARE,
                    recording.folder.parent.parent,
                )
        failure = recording.failure
        if failure and not self._is_full_disk_reported:
            self._warn(
                "Recording stopped at step %d (%s). Training continues; later steps are not recorded until "
                "space is available in %s.",
                recording.step,
                failure,
                recording.folder.parent.parent,
                if_silent=True,
            )
        self._is_full_disk_reported = bool(failure)

    def _finish(self, closing: Closing) -> None:
        self._guard("the last readings", self._meter.close)()
        if self._lifecycle is not None:
            self._lifecycle.close()
        self._output.all_done()
        self._guard("the end of the recording", self._binding.close)(closing)
        event = ending_event(closing, self.step, time.time())
        if event is not None:
            self._alerts.tell(event)
        self._alerts.close(ALERT_SECONDS)

    def _at_exit(self, closing: Closing | None) -> Callable[[], None]:
        """End the session with the process; return what is left to do after the delivery."""
        if closing is None:
            closing = self._ending.closing
        if closing.outcome == "finished" and self._of_thread is not None:
            closing = self._of_thread
        run_id = self._guard("the run's id", self._binding.current_run_id)()
        self.stop(closing)
        return partial(self._guard("the run's status", self._end_run), run_id, closing.outcome)

    def _end_run(self, run_id: str | None, outcome: str) -> None:
        """Set the status of a run in progress before MLflow's own exit calls it finished."""
        if outcome != "finished" and run_id is not None and fluent_run_id() == run_id:
            end_fluent_run(RUN_STATUS[outcome])

    def _returned(self, error: BaseException | None) -> None:
        """The training thread has ended: the process may be killed now."""
        self._of_thread = self._ending.of_thread(error)
        self._meter.drain()
        self._binding.returned(self._of_thread)
        for link in self._binding.links.values():
            link.detach()

    def _foreign_thread(self) -> None:
        self._warn(
            "Two threads train at the same time, and their steps cannot be separated. Only those of the "
            "first are recorded. Train in separate processes to record both."
        )

    def _part_failed(self, part: str, error: Exception) -> None:
        failed = (
            "Part '%s' of mlflow-stability failed at step %d (%s: %s) and is switched off. Training "
            "continues unchanged without it. Pass strict=True to see the traceback."
        )
        if isinstance(error, ChangingPartsError):  # no failure: there is no training to restore
            self._warn("No rollbacks from step %d on: %s. Steps are recorded as before.", self.step, error)
        else:
            self._warn(failed, part, self.step, type(error).__name__, error)
        if part == "step hooks":
            self._meter.ranks.leave()
            if self._lifecycle is not None:
                self._lifecycle.release()
        recording = self._binding.recording
        if recording is not None and not recording.closed:
            recording.note("degraded", f"{part}: {type(error).__name__}: {error} (step {recording.step})"[:1000])

    def _offer_to_restore(self) -> None:
        """Warn that a job was restarted, and say how to continue."""
        job = launched_job()
        if job is None or not job.restarts or rank_and_world_size()[0] != 0:
            return
        offer = ""
        if self._lifecycle is not None:
            offer = self._lifecycle.offer_to_restore()
        self._warn(
            "Attempt %d of this job (torchrun has restarted it %d of %d times): it is recorded into the run of the "
            "attempt before.%s",
            job.restarts + 1,
            job.restarts,
            job.max_restarts,
            offer,
        )

    def _run_link(self) -> RunLink | None:
        run_id, recording = self._binding.current_run_id(), self._binding.recording
        if run_id is None:
            return None
        opening = None if recording is None else recording.opening
        uri = "" if opening is None else opening.tracking_uri or ""
        is_server = opening is not None and uri.startswith(("http://", "https://"))
        experiment = "0" if opening is None else opening.experiment_id or "0"
        page = f"{uri.rstrip('/')}/#/experiments/{experiment}/runs/{run_id}?workflowType=machine_learning"
        return RunLink(run_id, url=page if is_server else "")

    def _emit(self, event: Finding) -> None:
        self._alerts.tell(event)
        self._output.found(event, may_act=self._lifecycle is not None)

    def _warn(self, message: str, *args: Any, if_silent: bool = False) -> None:
        self._output.warn(message, *args, if_silent=if_silent)
