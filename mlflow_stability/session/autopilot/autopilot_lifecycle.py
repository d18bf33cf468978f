"""Gives each recording an autopilot, and passes on calls of the script.

Guarantees: one autopilot at a time; what it hid or wrote is restored before the next one takes over. A new run is
another training: its autopilot starts without states.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from mlflow_stability.errors import StabilityError
from mlflow_stability.journal.layout import make_root
from mlflow_stability.journal.process_identity import launched_job, mark_folder
from mlflow_stability.probes.hooks.guarded_hooks import PartGuard
from mlflow_stability.probes.ranks.rank_exchange import RankExchanges
from mlflow_stability.recovery.checkpoints.checkpoint_store import CheckpointRanks
from mlflow_stability.recovery.checkpoints.stored_checkpoints import folder_of_job, listing
from mlflow_stability.recovery.state.training_parts import any_shards
from mlflow_stability.recovery.stop_conditions import stop_conditions
from mlflow_stability.session.autopilot.autopilot import Autopilot
from mlflow_stability.session.autopilot.decider import AutopilotContext
from mlflow_stability.session.autopilot.ranks import Ranks, ranks_of_training
from mlflow_stability.session.autopilot.step_modifier import AutopilotPart
from mlflow_stability.session.probe_plan import report_of
from mlflow_stability.session.rank_comparison import rank_and_world_size
from mlflow_stability.session.recording.recording import Recording
from mlflow_stability.vocabulary.settings import CHECKPOINTS_FOLDER, Settings

CLOSE_SECONDS = 30.0  # how long the end of a recording waits for the checkpoint that is being written


class AutopilotLifecycle:
    def __init__(
        self,
        settings: Settings,
        guard: PartGuard,
        exchanges: RankExchanges,
        settle: Callable[[], None],
        run_id: Callable[[], str | None],
        warn: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._stop_on = stop_conditions(settings.stop_on)
        self._guard = guard
        self._exchanges = exchanges
        self._settle = settle
        self._run_id = run_id
        self._warn = warn
        self._ranks: Ranks | None = None
        self._checkpoint_ranks: CheckpointRanks | None = None
        self._is_refused = False  # no autopilot, because other ranks have none
        self.current: Autopilot | None = None
        self.recording: Recording | None = None
        self._make = guard(AutopilotPart.AUTOPILOT, self._new_control)
        self._close = guard(AutopilotPart.AUTOPILOT_END, self._close_control)

    @property
    def control(self) -> Autopilot:
        """The autopilot of the current recording; StabilityError before the first step."""
        if self.current is None:
            raise StabilityError(
                "No step was recorded yet, so this call has no effect on a training. Call it after "
                "the first optimizer step."
            )
        return self.current

    def control_for(self, recording: Recording | None) -> Any:
        """End the autopilot of the last recording, and make that of a new one."""
        self._end_control()
        control = self._make(recording)
        if control is None and not self._is_refused:
            self._exchanges.leave()  # the others would wait for the votes of this process
        return control

    def offer_to_restore(self) -> str:
        """Return a sentence about the checkpoints of an earlier attempt of this job."""
        folder = folder_of_job(self._root())
        steps = [stored.step for stored in listing(folder) if stored.meta is not None] if folder is not None else []
        if not steps:
            return " It left no checkpoint."
        where = "" if self._root() == Settings().journal_root() else f", directory={str(folder)!r}"
        return f" restore(model, optimizer{where}) on every rank continues from its checkpoint of step {max(steps)}."

    def release(self) -> None:
        if self.current is not None:
            self.current.release()

    def close(self) -> None:
        self._end_control()
        writers, self._ranks, self._checkpoint_ranks = self._checkpoint_ranks, None, None
        if writers is not None:
            self._guard(AutopilotPart.AUTOPILOT_END, writers.leave)()

    def _end_control(self) -> None:
        self._close()
        self.current = self.recording = None

    def _new_control(self, recording: Recording | None) -> Autopilot | None:
        if self._is_refused:
            return None
        if self._ranks is None:
            self._is_refused = True  # unless it is not
            self._ranks = ranks_of_training(self._exchanges, self._guard(AutopilotPart.RANKS, self._settle))
            # All processes come to the same answer: a group that only some of them make is never made.
            if not self._ranks.is_alone and self._ranks.agree(any_shards()):
                self._checkpoint_ranks = CheckpointRanks()
            self._is_refused = False
        settings, batches = self._settings, None
        if recording is not None and settings.capture_batch and settings.guards is True:
            batches = report_of(settings, self._guard, recording)
        context = AutopilotContext(
            settings,
            self._stop_on,
            self._guard,
            self._settle,
            lambda: self._directory(recording),
            batches,
            self._ranks,
            self._warn,
            self._checkpoint_ranks,
        )
        self.current, self.recording = Autopilot(recording, context), recording
        return self.current

    def _close_control(self) -> None:
        if self.current is not None:
            self.current.close(CLOSE_SECONDS)

    def _directory(self, recording: Recording | None) -> tuple[Path, str]:
        """Return a folder named after the run, or after the recording while the run is not known yet."""
        if recording is None:
            name = f"rank-{rank_and_world_size()[0]}"
        else:
            name = self._run_id() or recording.opening.run_id or recording.opening.recording
        make_root(self._root())
        directory = self._root() / CHECKPOINTS_FOLDER / Path(name).name  # the server chooses the id of a run
        job = launched_job()
        if job is not None and job.can_restart:
            mark_folder(directory, job)
        if recording is not None:
            recording.note(CHECKPOINTS_FOLDER, str(directory))
        return directory, name

    def _root(self) -> Path:
        return self._settings.journal_root()
