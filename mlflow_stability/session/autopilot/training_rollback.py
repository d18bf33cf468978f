"""Restore an earlier state on all ranks or on none.

Guarantees: ranks agree before anything is changed, and again after it. Where one rank fails, all keep or restore the
state that they had, rollbacks end, and a finding says so.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from threading import get_ident
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from mlflow_stability.errors import RestoreRefused, TrainingDiverged
from mlflow_stability.kinds.reported.rollback import HeldRate
from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.recovery.easing import EasingPlan, held_rates, rates_of, reset_momentum
from mlflow_stability.recovery.rollback_events import give_up_event, not_restored_event, rollback_event
from mlflow_stability.recovery.rollback_state import Decision
from mlflow_stability.recovery.state.training_parts import TrainingParts
from mlflow_stability.session.autopilot.decider import AutopilotContext, Decider
from mlflow_stability.session.autopilot.ranks import Ranks
from mlflow_stability.session.autopilot.states import MissingStateError, States
from mlflow_stability.session.autopilot.step_modifier import AutopilotPart, StepModifier
from mlflow_stability.session.recording.recording import Recording
from mlflow_stability.vocabulary.result import Finding

MAX_CHECKED = 16
"""Backward passes after a restore that are checked, and steps before it that graphs may be from: older graphs are used
up by then, or never."""


class StaleGraphs:
    """Detects backward passes through graphs from before the last restore, such as a GAN's generator.

    The walk through a graph is paid only for the first passes after a restore. Autograd counts the nodes of each thread
    by itself: forward passes in other threads have low numbers, so only those of the last steps before the restore
    count as old.
    """

    def __init__(self) -> None:
        self._began = get_ident(), int(torch_api.get_sequence_nr())
        self._oldest = self._first_new = 0
        self.first_step = 0  # last step before the training started
        self.left = 0  # backward passes still to be checked

    def restored(self, step: int | None = None) -> None:
        """Note a restore, in the training thread, after this step if known."""
        self._first_new = now = int(torch_api.get_sequence_nr())
        self.left, self._oldest = MAX_CHECKED, 0
        thread, began = self._began
        steps = 0 if step is None else step - self.first_step
        if steps > 0 and thread == get_ident():
            self._oldest = now - math.ceil((now - began) / steps) * MAX_CHECKED

    def is_stale(self, losses: Any) -> bool:
        """Whether a part of this graph is older than the restore."""
        if not self.left:
            return False
        self.left -= 1
        tensors = [losses] if isinstance(losses, Tensor) else losses
        waiting = [tensor.grad_fn for tensor in tensors if isinstance(tensor, Tensor) and tensor.grad_fn is not None]
        seen = set(waiting)
        while waiting:
            node = waiting.pop()
            # Leaves, where gradients are accumulated, are numbered beyond all others.
            if self._oldest <= int(node._sequence_nr()) < self._first_new:
                return True
            for inner, _ in node.next_functions:
                if inner is not None and inner not in seen:
                    seen.add(inner)
                    waiting.append(inner)
        return False


ELSEWHERE = "Another process of this training could not restore its previous state."


class TrainingRollback:
    def __init__(
        self,
        decider: Decider,
        states: States,
        modifier: StepModifier,
        ranks: Ranks,
        context: AutopilotContext,
        recording: Recording | None,
        emit: Callable[[Finding], None],
    ) -> None:
        guard, self._policy = context.guard, context.settings.policy
        self._decider, self._states, self._modifier = decider, states, modifier
        self._ranks, self._recording, self._emit = ranks, recording, emit
        self._off, self._settle = guard.off, context.settle
        self.is_running = False  # decisions made meanwhile are void
        self.stale = StaleGraphs()
        self._staged: tuple[float, TrainingParts, EasingPlan] | None = None  # with the time when it began
        self._misfit = "it is refused in another process"  # why the last state did not fit
        self._stage = guard(AutopilotPart.ROLLBACK, self._stage_state)
        self._restore = guard(AutopilotPart.ROLLBACK, self._restore_state)
        self._undo = guard(AutopilotPart.UNDO_ROLLBACK, states.undo)
        self._finish = guard(AutopilotPart.ROLLBACK, self._after_restore)
        self._forgo = guard(AutopilotPart.DECISIONS, self._after_failure)
        self._give_up = guard(AutopilotPart.DECISIONS, self._without_state)

    def run(self, decision: Decision, step: int, parts: TrainingParts | None) -> bool:
        """Roll back; False where that failed. `parts`: None where they are gone, but this rank must vote.

        Raises `TrainingDiverged` where the policy asks for it.
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
            id(optimizer): held_rates(optimizer, rates[id(optimizer)], times, lasting)
            for optimizer in parts.optimizers
            if times is not None and id(optimizer) in rates
        }
        easing = EasingPlan(
            step + 1, decision.easing_factor, decision.easing_steps, lasting, held, policy.hold_doubles_in
        )
        self._staged = began, parts, easing
        return True

    def _restore_state(self) -> bool:
        self._states.restore()
        return True

    def _after_restore(self, decision: Decision, step: int) -> None:
        assert self._staged is not None
        (began, parts, easing), self._staged = self._staged, None
        optimizers = parts.optimizers
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
        # Of several, the one whose learning rate had jumped is named, or the newest.
        jumped = (at for at, optimizer in enumerate(optimizers) if _held_rate(easing, optimizer) is not None)
        number = next(jumped, len(optimizers) - 1)
        event = rollback_event(
            decision,
            step,
            seconds=time.perf_counter() - began,
            rollbacks=max(self._decider.rollbacks, recording.attempt + 1),
            learning_rate=easing.first_rate(optimizers[number]) if optimizers else math.nan,
            copies_left=copies_left,
            held=_held_rate(easing, optimizers[number]) if optimizers else None,
            rate_of=f"optimizer_{number}" if len(optimizers) > 1 else "",
        )
        self._emit(event)
        recording.rolled_back(decision.reason)

    def _without_state(self, decision: Decision, step: int) -> None:
        """Report that no state fits the training."""
        self._decider.nothing_fits(decision)
        reason = f"{decision.reason} No good state fits the training as it is now ({self._misfit})."
        give_up = Decision("give_up", reason, decision.onset)
        self._emit(give_up_event(give_up, step, rollbacks=self._decider.rollbacks))
        self._ranks.forget()

    def _after_failure(self, decision: Decision, step: int, all_whole: bool) -> None:
        """Report a failure: no more rollbacks. `all_whole`: every rank has its training as before."""
        torn = self._states.abandon()
        why = self._off.get(AutopilotPart.ROLLBACK, "it failed in another process of this training")
        left = str(torn) if torn is not None else "" if all_whole else ELSEWHERE
        self._decider.not_restored()
        self._emit(not_restored_event(decision, step, why, rollbacks=self._decider.rollbacks, not_restored=left))
        self._ranks.forget()
        if self._policy.on_give_up == "raise":
            reason = f"the rollback failed ({why})"
            raise TrainingDiverged(f"Training stopped at step {step}: {reason}.", reason)


def _held_rate(easing: EasingPlan, optimizer: Optimizer) -> HeldRate | None:
    """Return the limit of the first group of an optimizer, if any."""
    limit, scheduled = (easing.held.get(id(optimizer)) or (None,))[0], (rates_of(optimizer) or (math.nan,))[0]
    return None if limit is None else HeldRate(scheduled, limit, easing.hold_doubles_in)
