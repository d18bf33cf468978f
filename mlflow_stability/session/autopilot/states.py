"""States of one training, in memory and on the disk, and how it is restored to one of them.

In: the training at the end of steps and before backward passes, and whether steps were healthy. Out: good states.
Guarantees: training waits for the copy and never for the disk, except in a rollback to a state that is being written;
a state is good only if it is finite and healthy steps followed; an unwritable directory ends checkpoints and nothing
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
from mlflow_stability.recovery.checkpoints import STATE, find, listing
from mlflow_stability.recovery.checkpoints.checkpoint_store import CheckpointStore
from mlflow_stability.recovery.checkpoints.checkpoint_writer import CheckpointCadence, CheckpointWriter
from mlflow_stability.recovery.checkpoints.rank_store import CheckpointRanks, RankStore
from mlflow_stability.recovery.checkpoints.sharded_state import Layouts, layouts_of, read_sharded
from mlflow_stability.recovery.checkpoints.state_file import read_state
from mlflow_stability.recovery.rollback_events import no_checkpoints_event
from mlflow_stability.recovery.rollback_policy import RollbackPolicy
from mlflow_stability.recovery.rollback_state import Decision, GoodState
from mlflow_stability.recovery.state import (
    RestoreChoice,
    RestorePlan,
    SnapshotRing,
    StateCopy,
    StateSplit,
    TornState,
    TrainingParts,
    bytes_of_state,
    copy_state,
    free_memory,
    holds_shards,
    misfit,
    replaced,
    what_splits,
    with_new_optimizer,
    with_what_followed,
)
from mlflow_stability.session.autopilot.autopilot_part import AutopilotPart
from mlflow_stability.session.autopilot.known_parts import KnownParts
from mlflow_stability.session.guard import PartGuard
from mlflow_stability.session.recording import ScriptMetric
from mlflow_stability.vocabulary.result import Finding

ROOM = 2
"""So many times the size of a state must be free for one to wait until another is written."""
MOST_RATES = 64
"""The learning rates of so many states are remembered: of more than are kept in memory and on the disk."""
WRITE_SECONDS = 60.0
"""For how long going back waits for the state to be written, where it is on its way to the disk."""
NEVER = 1 << 62
"""A step that no training reaches."""
Rates = Mapping[int, tuple[float, ...]]
"""For each optimizer, by identity, the learning rates of its groups."""
OpenDirectory = Callable[[], tuple[Path, str]]
"""Gives the directory for checkpoints, and the name of the run that they belong to."""


class MissingStateError(LookupError):
    """A state that should be there is not."""


class BestValue:
    """The best value so far of the metric that says which state is the best."""

    def __init__(self, metric: str | None, mode: str) -> None:
        self._metric = metric
        self._sign = -1.0 if mode == "max" else 1.0
        self._best = self._before = math.inf

    def is_new(self, heard: ScriptMetric) -> bool:
        """Whether this is that metric, at a better value than before."""
        if self._metric is None or heard.name != self._metric:
            return False
        value = self._sign * heard.values[0]
        if not value < self._best:
            return False
        self._best, self._before = value, self._best
        return True

    def forget(self) -> None:
        """That state could not be written: the next one need only be better than the one before."""
        self._best = self._before


@dataclass(frozen=True, slots=True)
class IncompleteState:
    """A copy that waits for what follows its step."""

    copy: StateCopy
    loss: float
    value: float | None
    """The metric that makes it the best state."""
    ring: bool
    disk: bool
    """Where it is to be kept."""


class States:
    """The states of one training."""

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
        self._alone = alone
        """Whether no other process trains with this one: only the first writes to the disk, and all must go back."""
        self._open_directory = open_directory
        self._extra = extra
        self._ranks = ranks
        self._layouts: Layouts = MappingProxyType({})
        self.writes_together = False
        """Whether each process writes its shards of a checkpoint."""
        self.ring = SnapshotRing(policy, ranks_here=ranks_here)
        self._ranks_here = ranks_here
        """How many processes of the training share this machine's memory, and ask for it at once."""
        self.directory: Path | None = None
        """Where the checkpoints are; None before the first is due."""
        self.untracked: StateCopy | None = None
        """What the training was before the rollback, until a step is healthy again."""
        self._plan: RestorePlan | None = None
        """The state that is being restored."""
        self._rates: dict[int, Rates] = {}
        self.incomplete: IncompleteState | None = None
        """A copy that waits for what the script does after its step."""
        self.quiet_until = 0
        """Before this step, a healthy step changes nothing here, and no state is due."""
        self._nbytes: int | None = None
        self._split: StateSplit | None = None
        """What splits the state over processes: of such a state only the others together have the rest."""
        self._wanted: float | None = None
        """The metric of a checkpoint that is to be written as soon as none is on its way; NaN: without one."""
        self._told: list[Finding] = []
        self._unfit: set[int] = set()
        """The steps of states, on the disk too, that do not fit the training."""
        self._due_from = first_step - 1 + policy.checkpoint_every
        self._writer: CheckpointWriter | None = None
        self._cadence: CheckpointCadence | None = None
        self._off = guard.off
        self._cadence_is_due = guard(AutopilotPart.CHECKPOINTS, CheckpointCadence.is_due)
        self._begin_checkpoints = guard(AutopilotPart.CHECKPOINTS, self._begin)

    def parts_changed(self, parts: TrainingParts) -> None:
        """It is another training: nothing of before fits."""
        self._look_what_splits(parts)
        self.forget()

    def forget(self) -> None:
        """Keep no state of before."""
        self.ring.clear()
        self._rates.clear()
        self.incomplete = self._nbytes = self.untracked = None
        self.quiet_until = 0

    def parts_joined(self, parts: TrainingParts) -> None:
        """The training has grown: states of before are kept where they fit."""
        self._look_what_splits(parts)
        self.ring.adapt(lambda copy: None if misfit(copy, parts) else copy)
        if self.untracked is not None and misfit(self.untracked, parts):
            self.untracked = None
        self.incomplete = self._nbytes = None
        self.quiet_until = 0

    def optimizer_joined(self, parts: TrainingParts) -> None:
        """Another optimizer of the same models is about to make its first step: in states of before it has none."""
        self.ring.adapt(lambda copy: with_new_optimizer(copy, parts))
        self.incomplete = self._nbytes = self.untracked = None
        self.quiet_until = 0

    def drop(self, step: int) -> None:
        """The state of this step does not fit the training as it is now."""
        self._unfit.add(step)
        self.quiet_until = 0
        self.ring.drop(step)

    def take_initial(self, parts: TrainingParts, step: int) -> None:
        """Copy the state as it is before the first step: the last resort."""
        if self._policy.rollback and self.ring.has_room_for_initial(bytes_of_state(parts)):
            self.ring.add_initial(copy_state(parts, step, self._device_budget))

    @property
    def step_set_aside(self) -> int | None:
        """The step of the state from before the last rollback, where that is still there."""
        return None if self.untracked is None else self.untracked.step

    def is_due(self, known: KnownParts, step: int) -> tuple[bool, bool]:
        """Whether the ring and the disk want this step's state."""
        if self.incomplete is not None:
            return False, False
        if self._nbytes is None:
            parts = known.alive()
            if parts is None:
                return False, False
            self._nbytes = bytes_of_state(parts)
        wanted = self._wanted is not None
        if self._cadence is None:
            disk = (wanted or step >= self._due_from) and AutopilotPart.CHECKPOINTS not in self._off
        else:
            disk = bool(self._cadence_is_due(self._cadence, step, wanted))
        if disk and self._split is not None:
            self._due_from = NEVER
            self._told.append(no_checkpoints_event(self._split, step))
        elif disk and self.writes_together:  # before the others are told to: what fails here is no news to them
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
        """Copy the state as it is right after a step."""
        copy = self._with_extra(copy_state(parts, step, self._device_budget))
        if disk and self.writes_together:  # now, for between a forward and a backward pass FSDP2 shows whole parameters
            self._layouts = layouts_of(parts)
        self._nbytes = copy.nbytes
        if disk and self._wanted is not None:
            value, self._wanted = (None if math.isnan(self._wanted) else self._wanted), None
        self.incomplete = IncompleteState(copy, loss, value, ring, disk)
        self.quiet_until = 0
        self._rates[step] = dict(rates)
        while len(self._rates) > MOST_RATES:
            del self._rates[min(self._rates)]

    def complete(self, parts: TrainingParts | None) -> bool:
        """Runs before the next backward pass: take in what the script did after the step. False: none was waiting."""
        if self.incomplete is None or parts is None:
            return False
        waiting, self.incomplete = self.incomplete, None
        self.quiet_until = 0
        copy = with_what_followed(waiting.copy, parts)
        if waiting.ring:
            self.ring.add(copy, waiting.loss)
        if waiting.disk and self._split is None:
            self._begin_checkpoints()
            if self._cadence is not None and AutopilotPart.CHECKPOINTS not in self._off:
                return self._cadence.take(copy, waiting.loss, waiting.value)
        return True

    def write_now(self, parts: TrainingParts, step: int, loss: float, rates: Rates, value: float | None = None) -> bool:
        """Have the state written as it is between two steps; False where another is on its way.

        `value`: the metric that makes it the best state. A checkpoint of this step that is there already, or on its
        way, gets it; otherwise the state is written behind the one that is on its way, where there is room for both.
        A state that several processes write together is written after the next step.
        """
        if self._split is not None:
            self._told.append(no_checkpoints_event(self._split, step))
            return False
        if value is not None and self._is_written_as_best(parts, step, value):
            return True
        if self._writer is not None and self._writer.is_busy and not self._may_wait(parts, value):
            return False
        if self.writes_together and not self._alone:
            self._wanted = math.nan if value is None else value
            self.quiet_until = 0
            return AutopilotPart.CHECKPOINTS not in self._off
        self.complete(parts)
        self.take(parts, step, loss, rates, ring=False, disk=True, value=value)
        return self.complete(parts)

    def _is_written_as_best(self, parts: TrainingParts, step: int, value: float) -> bool:
        """Give the checkpoint of this step its metric; False where there is none, nor a copy that becomes one."""
        waiting = self.incomplete
        if waiting is not None and waiting.copy.step == step and waiting.disk:
            self.incomplete = dataclasses.replace(waiting, value=value)
            return self.complete(parts)
        if self._cadence is None or self._writer is None or not self._cadence.has(step):
            return False
        self._writer.set_value(step, value)
        return True

    def _may_wait(self, parts: TrainingParts, value: float | None) -> bool:
        """Whether one more state may wait until the disk is free: one of the best, where there is room for it."""
        if self.writes_together and not self._alone:
            return True
        return value is not None and free_memory() > ROOM * bytes_of_state(parts)

    @property
    def has_checkpoints(self) -> bool:
        """Whether any was written, or is about to be."""
        return self._cadence is not None

    @property
    def is_wanted(self) -> bool:
        """Whether a checkpoint was asked for that is written after the next step."""
        return self._wanted is not None

    def prove(self, decision: Decision, step: int, rejects: bool = True) -> None:
        """Runs when a step is over: states prove themselves by healthy steps, and are dropped where trouble comes.

        `rejects`: whether checkpoints are removed then.
        """
        if decision.trouble:
            self.incomplete = None
            self.ring.trouble()
            if self._cadence is not None:
                self._cadence.trouble(rejects=rejects)
        elif decision.healthy:
            self.untracked = None
            self.ring.healthy(step)
            if self._cadence is not None:
                self._cadence.healthy(step)

    def find_next_change(self, keeps: bool) -> None:
        """Set `quiet_until`, once all that this step changes is done; `keeps`: whether states are kept at all."""
        self.quiet_until = 0
        if self.incomplete is not None or self.untracked is not None or self._wanted is not None:
            return
        cadence = self._cadence
        if keeps:
            disk = self._due_from if cadence is None else cadence.next_change
            self.quiet_until = min(self.ring.next_change, disk)
        elif cadence is None:
            self.quiet_until = NEVER

    def candidates(self, with_disk: bool) -> tuple[GoodState, ...]:
        """The states that can be gone back to, oldest first."""
        by_loss = self._policy.best_by is None
        near = [
            GoodState(each.step, each.loss if by_loss else math.nan, each.step == self.ring.initial_step)
            for each in self.ring.good
        ]
        if not with_disk or self.directory is None or not self._alone:
            return tuple(near)
        there = {each.step for each in near}
        far = [
            GoodState(each.step, math.nan if each.meta is None else each.meta.rank)
            for each in listing(self.directory)
            if each.is_good and each.step not in there and each.step not in self._unfit
        ]
        return tuple(sorted((*near, *far), key=lambda each: each.step))

    def _look_what_splits(self, parts: TrainingParts) -> None:
        self.writes_together = holds_shards(parts) and (self._ranks is not None or self._alone)
        self._split = None if self.writes_together else what_splits(parts)

    def set_aside(self, parts: TrainingParts, step: int, target: int) -> StateCopy:
        """Keep what the training is now, for going back may fail, or not help.

        Where memory is short, other states than the target leave; MemoryError where even that is too little.
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
        """Find the state of step `target`, compare it with the training, and copy that aside; nothing is changed yet.

        RestoreRefused: it does not fit. MissingStateError: it is not there. MemoryError: there is no room for the copy.
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
        """Another process could not restore: copy back; whether the training is what it was before."""
        return self._plan is None or not self._plan.undo()

    def finish(self, target: int) -> int:
        """All processes have restored; returns how many frozen copies of the model the state knows nothing of."""
        assert self._plan is not None
        plan, self._plan = self._plan, None
        self.rolled_back(target)
        plan.finish()
        return plan.copies_left

    def abandon(self) -> TornState | None:
        """Forget the staged state; returns what could not be copied back, if anything could not."""
        plan, self._plan = self._plan, None
        return None if plan is None else plan.torn

    def state_of(self, step: int, parts: TrainingParts) -> StateCopy:
        """The state of a step, from memory or else from the disk; nobody else reads it now."""
        if self.untracked is not None and self.untracked.step == step:
            return self.untracked
        if self._writer is not None and self._writer.holds(step) and not self._writer.drain(WRITE_SECONDS):
            raise TimeoutError(f"the state of step {step} is still being written after {WRITE_SECONDS:g} s")
        for each in self.ring.good:
            if each.step == step:
                return each.copy
        if self.directory is None:
            raise MissingStateError(f"there is no state of step {step}")
        try:
            folder = find(self.directory, step).checkpoint.folder
        except CheckpointsRefused as refused:
            raise MissingStateError(str(refused)) from refused
        copy = read_state(folder / STATE)
        return read_sharded(folder, copy, parts) if self.writes_together else copy

    def rates_at(self, step: int) -> Rates:
        """At which learning rates the state of a step was trained."""
        return self._rates.get(step, {})

    def rolled_back(self, step: int) -> None:
        """The training was rolled back to this step."""
        self.incomplete = None
        self.quiet_until = 0
        self.ring.rolled_back(step)
        if self._cadence is not None:
            self._cadence.trouble()

    @property
    def may_tell(self) -> bool:
        """Whether there may be events of the writing of checkpoints."""
        return bool(self._told) or self._writer is not None

    def events(self) -> list[Finding]:
        """What the writing of checkpoints has to tell."""
        told, self._told = self._told, []
        return told if self._writer is None else told + self._writer.events()

    def save_last_good(self, seconds: float, loss_of: Callable[[int], float]) -> Path | None:
        """Make sure that the newest good state is on the disk; gives the directory.

        `loss_of` gives the loss of its step, which was not read yet when the state of the first step was copied.
        """
        good = [each for each in self.ring.good if each.step != self.ring.initial_step]
        if good and self._split is None:
            self._begin()
            if self._writer is not None and self._writer.drain(seconds):
                step, loss = good[-1].step, good[-1].loss
                self._writer.submit(good[-1].copy, loss if math.isfinite(loss) else loss_of(step))
                self._writer.promote(good[-1].step)
                self._writer.drain(seconds)
        return self.directory

    def close(self, seconds: float) -> None:
        """Let what is on its way arrive."""
        if self._writer is not None:
            self._writer.close(seconds)

    def _with_extra(self, copy: StateCopy) -> StateCopy:
        """With the state of the script's own objects."""
        if not self._extra:
            return copy
        states = {name: replaced(each.state_dict(), on_host) for name, each in self._extra.items()}
        return dataclasses.replace(copy, extra=states)

    def _begin(self) -> None:
        if self._cadence is None:
            self._writer = CheckpointWriter(self._new_store(), self.ring.is_finite)
            self._cadence = CheckpointCadence(self._policy, self._writer)

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
    """A copy of a tensor on the host."""
    return tensor.detach().to("cpu", copy=True)
