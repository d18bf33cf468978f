"""Decides on rollbacks and carries them out, in all processes of a training or in none.

In: findings and numbers of each step. Out: the training at an earlier state, eased back in; an event; another attempt
in the curves. Guarantees: nothing is restored while a step is in progress; processes agree before anything is changed
and again after it. Where one process fails, all keep or restore the state that they had, rollbacks end, and an event
says so.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable

import torch
from torch.nn import Module
from torch.optim import Optimizer

from mlflow_stability.detectors.finding_type import Instability
from mlflow_stability.errors import RestoreRefused, TrainingDiverged
from mlflow_stability.kinds.catalog import of_instability
from mlflow_stability.kinds.reported.rollback import HeldRate
from mlflow_stability.recovery.easing import EasingPlan, held_rates, rates_of, reset_momentum
from mlflow_stability.recovery.restored_losses import LossHistory
from mlflow_stability.recovery.rollback_decisions import carried_out, decide
from mlflow_stability.recovery.rollback_events import (
    OF_SCALE,
    data_changed_event,
    give_up_event,
    level_ignored_event,
    not_restored_event,
    rollback_event,
    what_to_change,
)
from mlflow_stability.recovery.rollback_policy import RollbackPolicy
from mlflow_stability.recovery.rollback_state import Decision, GoodState, RollbackHistory, Situation
from mlflow_stability.recovery.rollback_target import next_older_target, preferred_state
from mlflow_stability.recovery.state import StaleGraphs, TrainingParts, is_finite
from mlflow_stability.session.autopilot.autopilot_config import AutopilotContext
from mlflow_stability.session.autopilot.autopilot_part import AutopilotPart
from mlflow_stability.session.autopilot.known_parts import KnownParts
from mlflow_stability.session.autopilot.ranks import Orders, Ranks
from mlflow_stability.session.autopilot.states import MissingStateError, States
from mlflow_stability.session.autopilot.step_modifier import StepModifier
from mlflow_stability.session.autopilot.step_record import StepRecord
from mlflow_stability.session.recording import Recording
from mlflow_stability.vocabulary.result import Finding, Severity

OR_GO_ON = 'To continue all the same: rollback=RollbackPolicy(on_give_up="continue").'
HARMFUL = of_instability(Instability.HARMFUL)
"""Findings after which a state that has not proved itself may carry what led to them; a slow step is none."""


class RollbackController:
    """The decisions about one training, and what they do."""

    def __init__(
        self,
        policy: RollbackPolicy,
        modifier: StepModifier,
        states: States,
        emit: Callable[[Finding], None],
        has_level: Callable[[], bool] = lambda: True,
    ) -> None:
        self._policy = policy
        self._modifier = modifier
        self._states = states
        self._emit = emit
        self._has_level = has_level
        self._past = self._before = RollbackHistory()
        """What was done so far, and what that was before the last decision to go back."""
        self._losses = LossHistory()
        self._ordered: Decision | None = None
        """The rollback that was decided last."""
        self._staged: tuple[float, TrainingParts, EasingPlan] | None = None
        """Of the one that is being made: when it began, the parts, and how it is eased back in."""
        self.stale = StaleGraphs()
        self.origin: Finding | None = None
        """Where the last number that is not finite was born, where that was found."""

    @property
    def ends_training(self) -> bool:
        """Whether the training is to be ended where it could not be rolled back for a reason of ours."""
        return self._policy.on_give_up == "raise"

    @property
    def rollbacks(self) -> int:
        """How many times the training was rolled back."""
        return len(self._past.rollbacks)

    def orders_after(self, record: StepRecord, known: KnownParts) -> Orders:
        """Decide what to do after a step, and tell of it where we give up."""
        orders = Orders()
        # The loss of a step that the script skips may be of weights that are no more, that of a broken batch is none.
        loss = math.nan if record.asked_for or record.was_skipped_by else record.loss
        self._losses.take(record.step, loss, record.place)
        suspicious = bool(record.findings or record.was_skipped_by or record.broken_taken or record.skips_in_a_row)
        past = self._past
        if not suspicious and past.waiting is None and past.limit is None and past.suspected is None:
            orders.healthy = not record.asked_for  # there is nothing to be decided
            return orders
        parts = known.alive()
        broken = record.is_broken
        late = record.broken_taken and self._policy.guard is not True
        situation = Situation(
            record.step,
            record.findings,
            math.nan if record.asked_for else record.loss,
            record.skips_in_a_row,
            late,
            not (broken and self._policy.rollback and parts is not None) or weights_finite(parts),
            self._good(_place_of(record)),
            record.place,
            self._losses.last(record.step, self._policy.recovery_patience, _place_of(record)),
            None if self._states.untracked is None else self._states.untracked.step,
            self._has_level(),
        )
        before = self._past
        self._past, decision = decide(self._policy, before, situation)
        if decision.action == "rollback":
            self._before = before
            orders.rollback = self._ordered = decision
        elif decision.action in ("data_changed", "undo"):
            self._undo_rollback(decision, before, record.step, orders)
        elif decision.action == "give_up":
            overflowed_in_half = record.was_skipped_by == "scaler" or (broken and _in_half(parts))
            self._give_up(decision, record.step, orders, overflowed_in_half)
        harmed = any(each.kind in HARMFUL and each.severity >= Severity.WARNING for each in record.findings)
        orders.trouble = harmed or broken or decision.action != "nothing"
        orders.healthy = not orders.trouble and not record.was_skipped_by and not record.asked_for
        if orders.healthy and self._past.on_trial:
            orders.healthy = False  # so that all processes keep the state that may be wanted back
        return orders

    def _good(self, place: str) -> tuple[GoodState, ...]:
        """The states that can be gone back to, with the losses that they gave."""
        proven_by = self._policy.healthy_after
        return tuple(
            dataclasses.replace(each, around=self._losses.around(each.step, place, proven_by))
            for each in self._states.candidates(with_disk=self._policy.rollback)
        )

    def _undo_rollback(self, decision: Decision, before: RollbackHistory, step: int, orders: Orders) -> None:
        """The weights were not to blame for the last rollback: undo it where those from before are wanted back."""
        last = before.rollbacks[-1]
        self._losses.changed(last.at, last.to, self._losses.last(step, step - last.at, before.place))
        if decision.action == "data_changed":
            self._emit(data_changed_event(decision, step, rollbacks=self.rollbacks))
        if decision.ignores_level:
            self._emit(level_ignored_event(decision, step, rollbacks=self.rollbacks))
        if decision.undoes:
            orders.rollback = Decision(
                "rollback",
                decision.reason,
                decision.onset,
                target=decision.target,
                easing_steps=1,
                undoes=decision.undoes,
            )
        else:
            orders.release = True

    def by_hand(self, step: int) -> Decision | None:
        """The decision of a script that asks for a rollback; None where there is no good state."""
        good: tuple[GoodState, ...] = self._states.candidates(with_disk=True)
        if not good:
            return None
        policy = self._policy
        return Decision(
            "rollback",
            "The script called rollback().",
            step,
            preferred_state(policy, good).step,
            policy.easing_factor,
            policy.easing_steps,
        )

    def prepare(self, decision: Decision, step: int, parts: TrainingParts) -> None:
        """Find the state, compare it with the training, and copy that aside; nothing is changed."""
        began = time.perf_counter()
        self._states.stage(decision.target, parts, step)
        self._staged = began, parts, self._easing(decision, step, parts)

    def next_target(self, decision: Decision) -> int:
        """The state of this decision does not fit: forget it, and return the step of the next older one, or -1."""
        self._states.abandon()
        self._states.drop(decision.target)
        return next_older_target(self._past, self._states.candidates(with_disk=True), decision.target)

    def retarget(self, decision: Decision, target: int) -> Decision:
        """The decision for another state."""
        other = dataclasses.replace(decision, target=target)
        if decision is self._ordered:
            *others, last = self._past.rollbacks
            returns = (*others, dataclasses.replace(last, to=target))
            # What the first state gave is no measure of what this one should give.
            self._past, self._ordered = dataclasses.replace(self._past, rollbacks=returns, given=()), other
        return other

    def nothing_fits(self, decision: Decision, step: int, why: str) -> Finding:
        """No state fits the training as it is now; those that come will, and so this trouble alone is not answered."""
        self._states.abandon()
        if decision is self._ordered:
            before = self._before
            self._past = dataclasses.replace(before, waiting=None, unanswered=before.unanswered + 1)
        reason = f"{decision.reason} No good state fits the training as it is now ({why})."
        told = Decision("give_up", reason, decision.onset)
        return give_up_event(told, step, attempt=0, rollbacks=self.rollbacks)

    def apply(self) -> None:
        """Restore the state, between two steps; where that breaks off, the training is what it was before."""
        self._states.restore()

    def undo(self) -> bool:
        """It did not work everywhere: make the training what it was before; whether it is that now."""
        return self._states.undo()

    def rolled_back(self, decision: Decision, step: int, attempt: int) -> Finding:
        """It worked, in every process: gives the event that says so."""
        assert self._staged is not None
        (began, parts, easing), self._staged = self._staged, None
        optimizers, copies_left = parts.optimizers, self._states.finish(decision.target)
        if self._policy.reset_momentum:
            for optimizer in optimizers:
                reset_momentum(optimizer)
        self.stale.restored(step)
        self._losses.rolled_back(step)
        if decision is self._ordered:
            self._past, self._ordered = carried_out(self._past, step), None
        self._modifier.rolled_back(easing)
        # Of several, the one whose learning rate had jumped is named.
        number = next((at for at, each in enumerate(optimizers) if _held_rate(easing, each) is not None), 0)
        return rollback_event(
            decision,
            step,
            seconds=time.perf_counter() - began,
            attempt=attempt,
            rollbacks=max(self.rollbacks, attempt),
            learning_rate=easing.first_rate(optimizers[number]) if optimizers else math.nan,
            copies_left=copies_left,
            held=_held_rate(easing, optimizers[number]) if optimizers else None,
            rate_of=f"optimizer_{number}" if len(optimizers) > 1 else "",
        )

    def forgo(self, decision: Decision, step: int, why: str, all_whole: bool) -> Finding:
        """It did not: nothing is rolled back any more; gives the event that says so.

        `all_whole`: whether every process has its training as it was before.
        """
        torn = self._states.abandon()
        if not torn and not all_whole:
            torn = "Another process of this training could not restore its previous state."
        self._past = dataclasses.replace(self._past, gave_up=True)
        return not_restored_event(decision, step, why, rollbacks=self.rollbacks, torn=torn)

    def _easing(self, decision: Decision, step: int, parts: TrainingParts) -> EasingPlan:
        lasting = min(decision.lasting_share, self._modifier.lasting)
        rates, times = self._states.rates_at(decision.target), self._policy.hold_learning_rate_above
        held = {
            id(each): held_rates(each, rates[id(each)], times, lasting)
            for each in parts.optimizers
            if times is not None and id(each) in rates
        }
        return EasingPlan(
            step + 1, decision.easing_factor, decision.easing_steps, lasting, held, self._policy.hold_doubles_in
        )

    def _give_up(self, decision: Decision, step: int, orders: Orders, overflowed_in_half: bool) -> None:
        wanted = self._policy.on_give_up
        ends = decision.nothing_left if wanted is None else decision.final and self.ends_training
        origin = self.origin if self.origin is not None and self.origin.step >= decision.onset else None
        none_taken = not self._losses.has_taken
        remedies = what_to_change(origin, overflowed_in_half=overflowed_in_half, no_step_taken=none_taken)
        remedies = OF_SCALE if decision.is_no_better else remedies
        told = give_up_event(decision, step, attempt=0, rollbacks=self.rollbacks, ends=ends, remedies=remedies)
        self._emit(told)
        if self._states.untracked is not None and self._states.untracked.step == decision.target:
            abandoned = self._past.rollbacks[-1].to
            reason = f"The rollback to step {abandoned} did not help; restored the weights from before that rollback."
            orders.rollback = Decision("rollback", reason, decision.onset, target=decision.target, easing_steps=1)
        if ends:
            said = " ".join((decision.reason, *map(str, remedies), OR_GO_ON))
            orders.ending = TrainingDiverged(f"Training stopped at step {step}: {said}", decision.reason.rstrip("."))


def _place_of(record: StepRecord) -> str:
    """Of which part of the training the losses are that tell of this step: where something was found, of that part."""
    return next((each.place for each in record.findings if each.severity >= Severity.CRITICAL), record.place)


def _held_rate(easing: EasingPlan, optimizer: Optimizer) -> HeldRate | None:
    """What the first group of an optimizer is held down to, if it is."""
    limit, scheduled = (easing.held.get(id(optimizer)) or (None,))[0], (rates_of(optimizer) or (math.nan,))[0]
    return None if limit is None else HeldRate(scheduled, limit, easing.hold_doubles_in)


def _in_half(parts: TrainingParts | None) -> bool:
    """Whether a training computes in fp16: its weights are, or its loss is scaled, which nothing else needs."""
    if parts is None:
        return False
    if parts.scaler is not None and parts.scaler.is_enabled():
        return True
    return any(each.dtype == torch.float16 for model in parts.models for each in Module.parameters(model))


def weights_finite(parts: TrainingParts) -> bool:
    """Whether every weight is a finite number; waits for the device, so only where something is wrong already.

    A frozen one may be infinite, as masks are.
    """
    with torch.no_grad():
        return all(
            is_finite(each, may_be_infinite=not each.requires_grad)
            for model in parts.models
            for each in Module.parameters(model)
        )


class RollbackExecutor:
    """The way back of one training."""

    def __init__(
        self,
        controller: RollbackController,
        ranks: Ranks,
        context: AutopilotContext,
        recording: Recording | None,
        emit: Callable[[Finding], None],
    ) -> None:
        guard = context.guard
        self._controller = controller
        self._ranks = ranks
        self._off = guard.off
        self._recording = recording
        self._emit = emit
        self._settle = context.settle
        self.is_running = False
        """What is decided meanwhile is void."""
        self._prepare = guard(AutopilotPart.ROLLBACK, self._prepared)
        self._apply = guard(AutopilotPart.ROLLBACK, self._applied)
        self._undo = guard(AutopilotPart.UNDO_ROLLBACK, controller.undo)
        self._finish = guard(AutopilotPart.ROLLBACK, self._rolled_back)
        self._forgo = guard(AutopilotPart.DECISIONS, self._forgone)
        self._give_up = guard(AutopilotPart.DECISIONS, self._nothing_fits)
        self._misfit = "it is refused in another process"
        """Why the last state did not fit."""

    def run(self, decision: Decision, step: int, parts: TrainingParts | None) -> bool:
        """Go back; False where nothing came of it. `parts`: None where they are gone, which is no reason not to vote.

        Raises `TrainingDiverged` where that is what the user wants when we can do no more.
        """
        self.is_running = True
        try:
            while not self._ranks.agree(bool(self._prepare(decision, step, parts))):
                if not self._ranks.agree(AutopilotPart.ROLLBACK not in self._off):
                    self._forgo(decision, step, True)
                    return False
                target = self._ranks.told_by_first(self._controller.next_target(decision))
                if target < 0:
                    self._give_up(decision, step)
                    return False
                decision = self._controller.retarget(decision, target)
            if not self._ranks.agree(bool(self._apply())):
                self._forgo(decision, step, self._ranks.agree(bool(self._undo())))
            else:
                self._finish(decision, step)
                return True
            return False
        finally:
            self.is_running = False

    def _prepared(self, decision: Decision, step: int, parts: TrainingParts | None) -> bool:
        if parts is None:
            raise LookupError("the model or the optimizer no longer exists")
        self._settle()
        try:
            self._controller.prepare(decision, step, parts)
        except (RestoreRefused, MissingStateError) as error:
            self._misfit = str(error).partition(" Nothing was changed")[0].rstrip(".")
            return False
        return True

    def _applied(self) -> bool:
        self._controller.apply()
        return True

    def _rolled_back(self, decision: Decision, step: int) -> None:
        recording = self._recording
        event = self._controller.rolled_back(decision, step, 1 if recording is None else recording.attempt + 1)
        self._ranks.forget()
        if recording is not None:
            self._emit(event)
            recording.rolled_back(decision.reason)

    def _nothing_fits(self, decision: Decision, step: int) -> None:
        self._emit(self._controller.nothing_fits(decision, step, self._misfit))
        self._ranks.forget()

    def _forgone(self, decision: Decision, step: int, all_whole: bool) -> None:
        why = self._off.get(AutopilotPart.ROLLBACK, "it failed in another process of this training")
        self._emit(self._controller.forgo(decision, step, why, all_whole))
        self._ranks.forget()
        if self._controller.ends_training:
            said = f"the rollback failed ({why})"
            raise TrainingDiverged(f"Training stopped at step {step}: {said}.", said)
