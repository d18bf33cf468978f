"""States of one training, in memory and on disk, and the restore of one of them.

Guarantees: training waits for copies and never for the disk, except for a rollback to a state that is being written; a
state is good only if it is finite and healthy steps followed; an unwritable directory ends checkpoints and nothing
else.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch import Tensor

from mlflow_stability.errors import CheckpointsRefused
from mlflow_stability.probes.hooks.guarded_hooks import PartGuard
from mlflow_stability.recovery.checkpoints.checkpoint_store import CheckpointRanks, CheckpointStore, RankStore
from mlflow_stability.recovery.checkpoints.checkpoint_writer import CheckpointCadence, CheckpointWriter
from mlflow_stability.recovery.checkpoints.state_file import Layouts, layouts_of, read_sharded, read_state
from mlflow_stability.recovery.checkpoints.stored_checkpoints import STATE, find, listing
from mlflow_stability.recovery.rollback_events import no_checkpoints_event
from mlflow_stability.recovery.rollback_state import Decision, GoodState
from mlflow_stability.recovery.state.host_copy import free_memory
from mlflow_stability.recovery.state.restore import RestoreChoice, RestorePlan, TornState, misfit
from mlflow_stability.recovery.state.snapshot_ring import SnapshotRing
from mlflow_stability.recovery.state.state_copy import (
    StateCopy,
    bytes_of_state,
    copy_state,
    with_new_optimizer,
    with_what_followed,
)
from mlflow_stability.recovery.state.training_parts import SplitBy, StateSplit, TrainingParts, what_splits
from mlflow_stability.recovery.state.value_tree import map_tensors
from mlflow_stability.session.autopilot.known_parts import KnownParts
from mlflow_stability.session.autopilot.step_modifier import AutopilotPart
from mlflow_stability.session.recording.script_metrics import ScriptMetric
from mlflow_stability.vocabulary.result import Finding
from mlflow_stability.vocabulary.rollback_policy import RollbackPolicy

ROOM = 2  # multiple of a state's size that must be free for one to wait until another is written
MOST_RATES = 64  # states whose learning rates are remembered: more than are kept
WRITE_SECONDS = 60.0  # how long a rollback waits for its state to be written
NEVER = 1 << 62
Rates = Mapping[int, tuple[float, ...]]  # learning rates of the groups of each optimizer, by its id
OpenDirectory = Callable[[], tuple[Path, str]]  # returns the directory for checkpoints, and the run that it belongs to


class MissingStateError(LookupError):
    """A state that should be there is not."""


class BestValue:
    """Best value so far of the metric `best_by`."""

    def __init__(self, metric: str | None, mode: str) -> None:
        self._metric = metric
        self._sign = -1.0 if mode == "max" else 1.0
        self._best = self._before = math.inf

    def is_new(self, metric: ScriptMetric) -> bool:
        if self._metric is None or metric.name != self._metric:
            return False
        value = self._sign * metric.values[0]
        if not value < self._best:
            return False
        self._best, self._before = value, self._best
        return True

    def forget(self) -> None:
        """Its state could not be written: the next one need only be better than the one before."""
        self._best = self._before


@dataclass(frozen=True, slots=True)
class IncompleteState:
    """A copy that waits for what the loop changes after the step."""

    copy: StateCopy
    loss: float
    value: float | None  # the metric that makes it the best state
    ring: bool
    disk: bool


class States:
    def __init__(
        self,
        policy: RollbackPolicy,
        guard: PartGuard,
        open_directory: OpenDirectory,
        first_step: int,
        alone: bool = True,
        extra: Mapping[str, Any] = MappingProxyType({}),
        ranks: CheckpointRanks | None = None,
        device_budget: int | None = None,
        ranks_here: int = 1,
    ) -> None:
        self._policy = policy
        self._device_budget = device_budget
        self._alone = alone  # with several ranks only rank 0 writes to disk, and all must be able to restore
        self._open_directory = open_directory
        self._extra = extra
        self._ranks = ranks
        self._layouts: Layouts = MappingProxyType({})
        self.writes_together = False  # each rank writes its shards of a checkpoint
        self.ring = SnapshotRing(policy, ranks_here=ranks_here)
        self._ranks_here = ranks_here  # ranks that share this machine's memory, and ask for it at once
        self.directory: Path | None = None  # where checkpoints are; None before the first is due
        self.untracked: StateCopy | None = None  # the state before the last rollback, until a step is healthy again
        self._plan: RestorePlan | None = None  # the restore in progress
        self._rates: dict[int, Rates] = {}
        self.incomplete: IncompleteState | None = None  # the copy that waits for what the script does after its step
        self.quiet_until = 0  # before this step, a healthy step changes nothing here, and no state is due
        self._nbytes: int | None = None
        self._split: StateSplit | None = None  # what splits the state over ranks, so that it has no checkpoints
        self.wanted: float | None = None  # metric of a requested checkpoint that is not written yet; NaN: without one
        self.findings: list[Finding] = []
        self._unfit: set[int] = set()  # steps of states, also on disk, that do not fit the training
        self._due_from = first_step - 1 + policy.rollback_checkpoint_interval
        self.writer: CheckpointWriter | None = None
        self.cadence: CheckpointCadence | None = None
        self._off = guard.off
        self._cadence_is_due = guard(AutopilotPart.CHECKPOINTS, CheckpointCadence.is_due)
        self._begin_checkpoints = guard(AutopilotPart.CHECKPOINTS, self._begin)

    def parts_changed(self, parts: TrainingParts) -> None:
        self._look_what_splits(parts)
        self.forget()

    def forget(self) -> None:
        self.ring.clear()
        self._rates.clear()
        self.incomplete = self._nbytes = self.untracked = None
        self.quiet_until = 0

    def parts_joined(self, parts: TrainingParts) -> None:
        """Keep the states that fit a training that has grown."""
        self._look_what_splits(parts)
        self.ring.adapt(lambda copy: None if misfit(copy, parts) else copy)
        if self.untracked is not None and misfit(self.untracked, parts):
            self.untracked = None
        self.incomplete = self._nbytes = None
        self.quiet_until = 0

    def optimizer_joined(self, parts: TrainingParts) -> None:
        """Add an optimizer without state to the states."""
        self.ring.adapt(lambda copy: with_new_optimizer(copy, parts))
        self.incomplete = self._nbytes = self.untracked = None
        self.quiet_until = 0

    def drop(self, step: int) -> None:
        """Drop a state that does not fit the training."""
        self._unfit.add(step)
        self.quiet_until = 0
        self.ring.drop(step)

    def take_initial(self, parts: TrainingParts, step: int) -> None:
        """Copy the state before the first step, as a last resort."""
        if self._policy.rolls_back and self.ring.has_room_for_initial(bytes_of_state(parts)):
            self.ring.add_initial(copy_state(parts, step, self._device_budget))

    @property
    def step_set_aside(self) -> int | None:
        """Step of the state from before the last rollback, if it is still there."""
        return None if self.untracked is None else self.untracked.step

    def is_due(self, known_parts: KnownParts, step: int) -> tuple[bool, bool]:
        """Whether memory and disk want this step's state."""
        if self.incomplete is not None:
            return False, False
        if self._nbytes is None:
            parts = known_parts.alive()
            if parts is None:
                return False, False
            self._nbytes = bytes_of_state(parts)
        wanted = self.wanted is not None
        if self.cadence is None:
            disk = (wanted or step >= self._due_from) and AutopilotPart.CHECKPOINTS not in self._off
        else:
            disk = bool(self._cadence_is_due(self.cadence, step, wanted))
        if disk and self._split is not None:
            self._due_from = NEVER
            self.findings.append(no_checkpoints_event(self._split, step))
        elif disk and self.writes_together:  # before the other ranks begin: an error here must not reach them
            self._begin_checkpoints()
            disk = AutopilotPart.CHECKPOINTS not in self._off
        return self.ring.is_due(step, self._nbytes), disk and self._split is None

    def take(
        self,
        parts: TrainingParts,
        step: int,
        loss: float,
        rates: Rates,
        *,
        ring: bool,
        disk: bool,
        value: float | None = None,
    ) -> None:
        copy = copy_state(parts, step, self._device_budget)
        if self._extra:
            extra = {name: map_tensors(item.state_dict(), on_host) for name, item in self._extra.items()}
            copy = dataclasses.replace(copy, extra=extra)
        if disk and self.writes_together:  # now, for between a forward and a backward pass FSDP2 shows whole parameters
            self._layouts = layouts_of(parts)
        self._nbytes = copy.nbytes
        if disk and self.wanted is not None:
            value, self.wanted = (None if math.isnan(self.wanted) else self.wanted), None
        self.incomplete = IncompleteState(copy, loss, value, ring, disk)
        self.quiet_until = 0
        self._rates[step] = dict(rates)
        while len(self._rates) > MOST_RATES:
            del self._rates[min(self._rates)]

    def complete(self, parts: TrainingParts | None) -> bool:
        """Add what the script did after the step, before the next backward pass; False: nothing was waiting."""
        if self.incomplete is None or parts is None:
            return False
        waiting, self.incomplete = self.incomplete, None
        self.quiet_until = 0
        copy = with_what_followed(waiting.copy, parts)
        if waiting.ring:
            self.ring.add(copy, waiting.loss)
        if waiting.disk and self._split is None:
            self._begin_checkpoints()
            if self.cadence is not None and AutopilotPart.CHECKPOINTS not in self._off:
                return self.cadence.take(copy, waiting.loss, waiting.value)
        return True

    def write_now(self, parts: TrainingParts, step: int, loss: float, rates: Rates, value: float | None = None) -> bool:
        """Write the state between two steps; False while another is being written.

        `value`: the metric that makes it the best state. A checkpoint of this step gets it; otherwise the state is
        written after the one in progress, if there is memory for both. A sharded state is written after the next step.
        """
        if self._split is not None:
            self.findings.append(no_checkpoints_event(self._split, step))
            return False
        if value is not None and self._is_written_as_best(parts, step, value):
            return True
        if self.writer is not None and self.writer.is_busy and not self._may_wait(parts, value):
            return False
        if self.writes_together and not self._alone:
            self.wanted = math.nan if value is None else value
            self.quiet_until = 0
            return AutopilotPart.CHECKPOINTS not in self._off
        self.complete(parts)
        self.take(parts, step, loss, rates, ring=False, disk=True, value=value)
        return self.complete(parts)

    def _is_written_as_best(self, parts: TrainingParts, step: int, value: float) -> bool:
        """Give the checkpoint of this step its metric; False without one."""
        waiting = self.incomplete
        if waiting is not None and waiting.copy.step == step and waiting.disk:
            self.incomplete = dataclasses.replace(waiting, value=value)
            return self.complete(parts)
        if self.cadence is None or self.writer is None or not self.cadence.has(step):
            return False
        self.writer.set_value(step, value)
        return True

    def _may_wait(self, parts: TrainingParts, value: float | None) -> bool:
        """Whether a state may wait for the disk: one of the best, where memory is free."""
        if self.writes_together and not self._alone:
            return True
        return value is not None and free_memory() > ROOM * bytes_of_state(parts)

    def prove(self, decision: Decision, step: int, rejects: bool = True) -> None:
        """Note the end of a step: healthy steps verify states, trouble drops them.

        `rejects`: whether checkpoints are deleted then.
        """
        if decision.trouble:
            self.incomplete = None
            self.ring.trouble()
            if self.cadence is not None:
                self.cadence.trouble(rejects=rejects)
        elif decision.healthy:
            self.untracked = None
            self.ring.healthy(step)
            if self.cadence is not None:
                self.cadence.healthy(step)

    def find_next_change(self, keeps: bool) -> None:
        """Update `quiet_until`; `keeps`: whether states are kept at all."""
        self.quiet_until = 0
        if self.incomplete is not None or self.untracked is not None or self.wanted is not None:
            return
        cadence = self.cadence
        if keeps:
            disk = self._due_from if cadence is None else cadence.next_change
            self.quiet_until = min(self.ring.next_change, disk)
        elif cadence is None:
            self.quiet_until = NEVER

    def candidates(self, with_disk: bool) -> tuple[GoodState, ...]:
        """Return the states that can be restored, oldest first."""
        by_loss = self._policy.best_by is None
        near = [
            GoodState(snapshot.step, snapshot.loss if by_loss else math.nan, snapshot.step == self.ring.initial_step)
            for snapshot in self.ring.good
        ]
        if not with_disk or self.directory is None or not self._alone:
            return tuple(near)
        there = {state.step for state in near}
        far = [
            GoodState(stored.step, math.nan if stored.meta is None else stored.meta.rank)
            for stored in listing(self.directory)
            if stored.is_good and stored.step not in there and stored.step not in self._unfit
        ]
        return tuple(sorted((*near, *far), key=lambda state: state.step))

    def _look_what_splits(self, parts: TrainingParts) -> None:
        split = what_splits(parts)
        # Sharded parameters know their layout.
        together = split is not None and split.by is SplitBy.SHARDS and (self._ranks is not None or self._alone)
        self.writes_together, self._split = together, None if together else split

    def set_aside(self, parts: TrainingParts, step: int, target: int) -> StateCopy:
        """Keep the current state, because a rollback may fail or not help.

        Where memory is short, all states but the target are dropped; MemoryError where that is not enough.
        """
        self.untracked, self.quiet_until = None, 0
        needed = bytes_of_state(parts) * self._ranks_here
        if free_memory() < needed:
            self.ring.keep_only(target)
            if free_memory() < needed:
                raise MemoryError("no memory to set the present state aside")
        self.untracked = copy_state(parts, step, self._device_budget)
        return self.untracked

    def stage(self, target: int, parts: TrainingParts, step: int) -> None:
        """Compare the state of step `target` with the training and copy the training aside, without changing anything.

        Raises RestoreRefused, MissingStateError, or MemoryError.
        """
        copy = self.state_of(target, parts)
        schedule = self._policy.restore_schedule
        choice = RestoreChoice(schedule, schedule, rng=self._policy.restore_rng, restart_averages=True)
        self._plan = RestorePlan(copy, parts, choice, lambda: self.set_aside(parts, step, target))

    def restore(self) -> None:
        """Restore the staged state, between two steps; an error leaves the training as it was."""
        assert self._plan is not None
        self._plan.apply()

    def undo(self) -> bool:
        """Undo a restore that failed on another rank; whether the training is as before."""
        return self._plan is None or not self._plan.undo()

    def finish(self, target: int) -> int:
        """Finish the restore; return the number of frozen copies of the model that the state does not have."""
        assert self._plan is not None
        plan, self._plan = self._plan, None
        self.rolled_back(target)
        plan.finish()
        return plan.copies_left

    def abandon(self) -> TornState | None:
        """Drop the staged state; return what could not be undone."""
        plan, self._plan = self._plan, None
        return None if plan is None else plan.torn

    def state_of(self, step: int, parts: TrainingParts) -> StateCopy:
        """Return the state of a step, from memory or disk."""
        if self.untracked is not None and self.untracked.step == step:
            return self.untracked
        if self.writer is not None and self.writer.holds(step) and not self.writer.drain(WRITE_SECONDS):
            raise TimeoutError(f"the state of step {step} is still being written after {WRITE_SECONDS:g} s")
        for snapshot in self.ring.good:
            if snapshot.step == step:
                return snapshot.copy
        if self.directory is None:
            raise MissingStateError(f"there is no state of step {step}")
        try:
            folder = find(self.directory, step).checkpoint.folder
        except CheckpointsRefused as refused:
            raise MissingStateError(str(refused)) from refused
        copy = read_state(folder / STATE)
        return read_sharded(folder, copy, parts) if self.writes_together else copy

    def rates_at(self, step: int) -> Rates:
        return self._rates.get(step, {})

    def rolled_back(self, step: int) -> None:
        self.incomplete = None
        self.quiet_until = 0
        self.ring.rolled_back(step)
        if self.cadence is not None:
            self.cadence.trouble()

    def events(self) -> list[Finding]:
        """Return findings about checkpoints since the last call."""
        findings, self.findings = self.findings, []
        return findings if self.writer is None else findings + self.writer.events()

    def save_last_good(self, seconds: float, loss_of: Callable[[int], float]) -> Path | None:
        """Write the newest good state to disk; return the directory.

        `loss_of` gives its loss where that was not read yet when it was copied.
        """
        good = [snapshot for snapshot in self.ring.good if snapshot.step != self.ring.initial_step]
        if good and self._split is None:
            self._begin()
            if self.writer is not None and self.writer.drain(seconds):
                step, loss = good[-1].step, good[-1].loss
                self.writer.submit(good[-1].copy, loss if math.isfinite(loss) else loss_of(step))
                self.writer.promote(good[-1].step)
                self.writer.drain(seconds)
        return self.directory

    def close(self, seconds: float) -> None:
        if self.writer is not None:
            self.writer.close(seconds)

    def _begin(self) -> None:
        if self.cadence is None:
            self.writer = CheckpointWriter(self._new_store(), self.ring.is_finite)
            self.cadence = CheckpointCadence(self._policy, self.writer)

    def _new_store(self) -> CheckpointStore | RankStore:
        together, policy = self.writes_together, self._policy
        ranks = (self._ranks or CheckpointRanks(alone=True)) if together else None
        if ranks is not None and not ranks.is_first:
            return RankStore(ranks, lambda: self._layouts)
        directory, run = self._open_directory()
        store = CheckpointStore(directory, run, policy.max_checkpoints, policy.best_by or "", policy.best_mode)
        self.directory = directory
        return store if ranks is None else RankStore(ranks, lambda: self._layouts, store)


def on_host(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True)
