"""Restores an earlier state, in all processes of a training or in none.

In: the decision to roll back, between two steps. Out: the training at that state, eased back in, with an event; another
attempt in the curves. Guarantees: processes agree before anything is changed and again after it. Where one process
fails, all keep or restore the state that they had, rollbacks end, and an event says so.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from torch.optim import Optimizer

from mlflow_stability.errors import RestoreRefused, TrainingDiverged
from mlflow_stability.kinds.reported.rollback import HeldRate
from mlflow_stability.recovery.easing import EasingPlan, held_rates, rates_of, reset_momentum
from mlflow_stability.recovery.rollback_events import give_up_event, not_restored_event, rollback_event
from mlflow_stability.recovery.rollback_policy import RollbackPolicy
from mlflow_stability.recovery.rollback_state import Decision
from mlflow_stability.recovery.state import StaleGraphs, TrainingParts
from mlflow_stability.session.autopilot.autopilot_config import AutopilotContext
from mlflow_stability.session.autopilot.autopilot_part import AutopilotPart
from mlflow_stability.session.autopilot.decider import Decider
from mlflow_stability.session.autopilot.ranks import Ranks
from mlflow_stability.session.autopilot.states import MissingStateError, States
from mlflow_stability.session.autopilot.step_modifier import StepModifier
from mlflow_stability.session.recording import Recording
from mlflow_stability.vocabulary.result import Finding

ELSEWHERE = "Another process of this training could not restore its previous state."


@dataclass(frozen=True, slots=True)
class _Staged:
    """What is known of a rollback before anything is changed."""

    began: float
    parts: TrainingParts
    easing: EasingPlan


class TrainingRollback:
    """The rollbacks of one training."""

    def __init__(
        self,
        policy: RollbackPolicy,
        decider: Decider,
        states: States,
        modifier: StepModifier,
        ranks: Ranks,
        context: AutopilotContext,
        recording: Recording | None,
        emit: Callable[[Finding], None],
    ) -> None:
        guard = context.guard
        self._policy, self._decider, self._states, self._modifier = policy, decider, states, modifier
        self._ranks, self._recording, self._emit = ranks, recording, emit
        self._off, self._settle = guard.off, context.settle
        self.is_running = False
        """What is decided meanwhile is void."""
        self.stale = StaleGraphs()
        self._staged: _Staged | None = None
        self._misfit = "it is refused in another process"
        """Why the last state did not fit."""
        self._stage = guard(AutopilotPart.ROLLBACK, self._stage_state)
        self._restore = guard(AutopilotPart.ROLLBACK, self._restore_state)
        self._undo = guard(AutopilotPart.UNDO_ROLLBACK, states.undo)
        self._finish = guard(AutopilotPart.ROLLBACK, self._after_restore)
        self._forgo = guard(AutopilotPart.DECISIONS, self._after_failure)
        self._give_up = guard(AutopilotPart.DECISIONS, self._without_state)

    def run(self, decision: Decision, step: int, parts: TrainingParts | None) -> bool:
        """Roll back; False where nothing came of it. `parts`: None where they are gone, which is no reason not to vote.

        Raises `TrainingDiverged` where that is what the user wants when we can do no more.
        """
        self.is_running = True
        try:
            while not self._ranks.agree(bool(self._stage(decision, step, parts))):
                if not self._ranks.agree(AutopilotPart.ROLLBACK not in self._off):
                    self._forgo(decision, step, True)
                    return False
                self._states.abandon()
                self._states.drop(decision.target)
                target = self._ranks.target_of_first(self._decider.next_target(decision))
                if target < 0:
                    self._give_up(decision, step)
                    return False
                decision = self._decider.retarget(decision, target)
            if not self._ranks.agree(bool(self._restore())):
                self._forgo(decision, step, self._ranks.agree(bool(self._undo())))
                return False
            self._finish(decision, step)
            return True
        finally:
            self.is_running = False

    def _stage_state(self, decision: Decision, step: int, parts: TrainingParts | None) -> bool:
        """Find the state, compare it with the training, and copy that aside; nothing is changed."""
        if parts is None:
            raise LookupError("the model or the optimizer no longer exists")
        self._settle()
        began = time.perf_counter()
        try:
            self._states.stage(decision.target, parts, step)
        except (RestoreRefused, MissingStateError) as error:
            self._misfit = str(error).partition(" Nothing was changed")[0].rstrip(".")
            return False
        policy, lasting = self._policy, min(decision.lasting_share, self._modifier.lasting)
        rates, times = self._states.rates_at(decision.target), policy.hold_learning_rate_above
        held = {
            id(each): held_rates(each, rates[id(each)], times, lasting)
            for each in parts.optimizers
            if times is not None and id(each) in rates
        }
        easing = EasingPlan(
            step + 1, decision.easing_factor, decision.easing_steps, lasting, held, policy.hold_doubles_in
        )
        self._staged = _Staged(began, parts, easing)
        return True

    def _restore_state(self) -> bool:
        self._states.restore()
        return True

    def _after_restore(self, decision: Decision, step: int) -> None:
        """It worked, in every process."""
        assert self._staged is not None
        staged, self._staged = self._staged, None
        optimizers, easing = staged.parts.optimizers, staged.easing
        copies_left = self._states.finish(decision.target)
        if self._policy.reset_momentum:
            for optimizer in optimizers:
                reset_momentum(optimizer)
        self.stale.restored(step)
        self._decider.rolled_back(decision, step)
        self._modifier.rolled_back(easing)
        self._ranks.forget()
        recording = self._recording
        if recording is None:
            return
        # Of several, the one whose learning rate had jumped is named.
        number = next((at for at, each in enumerate(optimizers) if _held_rate(easing, each) is not None), 0)
        event = rollback_event(
            decision,
            step,
            seconds=time.perf_counter() - staged.began,
            attempt=recording.attempt + 1,
            rollbacks=max(self._decider.rollbacks, recording.attempt + 1),
            learning_rate=easing.first_rate(optimizers[number]) if optimizers else math.nan,
            copies_left=copies_left,
            held=_held_rate(easing, optimizers[number]) if optimizers else None,
            rate_of=f"optimizer_{number}" if len(optimizers) > 1 else "",
        )
        self._emit(event)
        recording.rolled_back(decision.reason)

    def _without_state(self, decision: Decision, step: int) -> None:
        """No state fits the training as it is now."""
        self._decider.nothing_fits(decision)
        reason = f"{decision.reason} No good state fits the training as it is now ({self._misfit})."
        told = Decision("give_up", reason, decision.onset)
        self._emit(give_up_event(told, step, attempt=0, rollbacks=self._decider.rollbacks))
        self._ranks.forget()

    def _after_failure(self, decision: Decision, step: int, all_whole: bool) -> None:
        """It failed: there are no more rollbacks. `all_whole`: every process has its training as it was before."""
        torn = self._states.abandon()
        why = self._off.get(AutopilotPart.ROLLBACK, "it failed in another process of this training")
        left = str(torn) if torn is not None else "" if all_whole else ELSEWHERE
        self._decider.not_restored()
        self._emit(not_restored_event(decision, step, why, rollbacks=self._decider.rollbacks, not_restored=left))
        self._ranks.forget()
        if self._decider.ends_training:
            said = f"the rollback failed ({why})"
            raise TrainingDiverged(f"Training stopped at step {step}: {said}.", said)


def _held_rate(easing: EasingPlan, optimizer: Optimizer) -> HeldRate | None:
    """What the first group of an optimizer is held down to, if it is."""
    limit, scheduled = (easing.held.get(id(optimizer)) or (None,))[0], (rates_of(optimizer) or (math.nan,))[0]
    return None if limit is None else HeldRate(scheduled, limit, easing.hold_doubles_in)
