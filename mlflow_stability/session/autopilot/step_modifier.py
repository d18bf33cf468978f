"""Changes to single steps: skip, clip, or reduce the learning rate.

Guarantees: what is hidden or written before a step is restored after it, whatever else is switched off meanwhile;
healthy steps are bit-identical.
"""

from __future__ import annotations

import math
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from math import isfinite
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from mlflow_stability.kinds.reported.autopilot import Smaller, SmallerSteps, SmallerStepsFacts
from mlflow_stability.probes.forward.forward_passes import ForwardObserver
from mlflow_stability.probes.gradient_norm import gradients_of, parameters_of
from mlflow_stability.probes.probe import Guard
from mlflow_stability.probes.step.capture import ProbeReading, StepCapture
from mlflow_stability.recovery.easing import AdaptiveClip, Easing, EasingClip, EasingPlan, reset_moments
from mlflow_stability.recovery.rollback_state import Decision
from mlflow_stability.recovery.skipping.broken_step import GradientLimit
from mlflow_stability.recovery.skipping.skip_count import SkippedBy
from mlflow_stability.recovery.skipping.step_guard import StepGuard, Verdict, Vote
from mlflow_stability.recovery.skipping.step_undo import BufferUndo
from mlflow_stability.recovery.state.training_parts import TrainingParts
from mlflow_stability.recovery.stop_conditions import Stop
from mlflow_stability.vocabulary.measured.signal import Signal, StepReading, shared_layout
from mlflow_stability.vocabulary.measured.signal_type import SignalType
from mlflow_stability.vocabulary.result import Finding, Severity
from mlflow_stability.vocabulary.settings import Settings


class AutopilotPart(str, Enum):
    """Parts of the autopilot that are switched off alone; the value is the name in messages."""

    AUTOPILOT = "the autopilot"
    AUTOPILOT_END = "the autopilot's end"
    CHECKPOINTS = "checkpoints"
    CLIPPING_AND_EASING = "clipping and easing"
    DECISIONS = "decisions"
    FORWARD_PASSES = "forward passes"
    GUARD = "the guard"
    LOSS_SCALE = "the loss scale"
    PUTTING_BACK = "putting back"
    RANKS = "agreement of processes"
    ROLLBACK = "rollback"
    SMALLER_STEPS = "smaller steps"
    SNAPSHOTS = "snapshots"
    STOP_CONDITIONS = "stop conditions"
    TRAINING_PARTS = "the training's parts"
    UNDO_ROLLBACK = "undoing a rollback"

    __str__ = str.__str__


WARM_UP_FROM = 0.01  # learning rate factor at which the warm-up after a reset starts, as published (arXiv 2501.06842)


class BufferWatch(ForwardObserver):
    """Tells the guard when a forward pass starts: until then, buffers are changed by the script."""

    def __init__(self, guard: Guard, step_guard: StepGuard) -> None:
        self._step_guard = step_guard
        self.forward_began: Callable[..., Any] = guard(AutopilotPart.GUARD, self._began)

    @property
    def observes(self) -> bool:  # type: ignore[override] # there it never changes
        """Whether a step was taken since the last forward pass of a model with buffers."""
        return self._step_guard.awaits_forward

    def _began(self, *_: Any) -> bool:
        self._step_guard.forward_began()
        return False


class StepModifier:
    def __init__(self, settings: Settings, emit: Callable[[Finding], None], vote: Vote | None = None) -> None:
        self._policy, self._emit = settings.policy, emit
        self.guards = settings.guards is True
        self.guard = StepGuard(None, vote)
        self._adaptive = AdaptiveClip() if settings.adaptive_clip else None
        self.clips = settings.adaptive_clip
        self._limits: dict[str, GradientLimit] = {}
        self._easing_clips: dict[str, EasingClip] = {}
        self.easing: Easing | None = None
        self._skip_next = self.is_asked_to_skip = False
        """Whether the next capture is to be skipped, and whether the current one may be."""
        self._skipping: StepCapture | None = None

    def skip_next(self) -> None:
        """Skip the next capture, broken or not."""
        self._skip_next = self.is_asked_to_skip = True
        self.guard.skip_next()

    def parts_changed(self, parts: TrainingParts) -> None:
        self.guard.buffers = BufferUndo(parts.models) if self.guards else None

    @property
    def has_buffers(self) -> bool:
        """Whether the models have buffers that a skipped step must not change."""
        return self.guard.buffers is not None and self.guard.buffers.has_buffers

    def judge(
        self,
        optimizer: Optimizer,
        capture: StepCapture,
        record: StepRecord,
        norm: Tensor | None,
        companions: Sequence[Optimizer],
    ) -> None:
        """Skip this step if it is broken, or if asked to."""
        limits = self._limits
        if self.guards and record.place in limits and not capture.unsure:
            largest = limits[record.place].largest
            if self.guard.sound_at_once(optimizer, capture, capture.losses, norm, companions, largest):
                return
        if self._skip_next:
            self._skip_next, self._skipping = False, capture
            self.is_asked_to_skip = True
        if not self.guards and capture is not self._skipping:
            self.is_asked_to_skip = False
            return
        losses = capture.sure_losses if self.guards else []
        largest_here = self._limit(record.place).largest_for(losses) if self.guards else None
        verdict = self.guard.before_step(optimizer, capture, losses, norm, companions, largest_here)
        if verdict.broken is not False:
            self._take_note(verdict, optimizer, capture, record)

    def shape(self, optimizer: Optimizer, record: StepRecord, norm: Tensor | None) -> None:
        """Clip and ease a step that is taken."""
        if norm is not None and (self._adaptive is not None or self.easing is not None):
            gradients = gradients_of(optimizer)
            if self._adaptive is not None:
                self._adaptive.before_step(optimizer, gradients, norm)
            easing, clip = self.easing, self._easing_clips.get(record.place)
            if clip is not None and easing is not None and easing.plan.clips and not easing.is_over(record.step):
                clip.before_step(gradients, norm)
        if self.easing is not None:
            self.easing.before_step(optimizer, record.step)
            record.eased = True

    def ease(self, optimizer: Optimizer, step: int) -> None:
        """Reduce the learning rate outside of a closure."""
        if self.easing is not None:
            self.easing.before_step(optimizer, step)

    def show_rate(self, optimizer: Optimizer) -> None:
        """Restore the script's learning rate while its closure runs."""
        if self.easing is not None:
            self.easing.step_ended(optimizer)

    def swallowed(self, optimizer: Optimizer, capture: StepCapture, record: StepRecord) -> None:
        """Stop the other optimizers of a capture after a loss scaler skipped a step."""
        if self.guards:
            self.guard.swallowed(optimizer, capture)
            record.buffers_lost = self.guard.buffers_lost

    def step_ending(self, optimizer: Optimizer) -> bool:
        """Restore everything; True where the step is undone only now."""
        if self.easing is not None:
            self.easing.step_ended(optimizer)
        return self.guard.step_ended(optimizer)

    def read(self, record: StepRecord) -> None:
        """Learn the gradient norms of a recorded step, and end an easing that is over."""
        skipped_by, place = record.was_skipped_by, record.place
        self._limit(place).step(record.norm, skipped=skipped_by == "guard", loss=record.loss)
        easing, clips = self.easing, self._easing_clips
        may_clip = easing is not None and easing.plan.clips and not easing.is_over(record.step)
        if skipped_by is None and not may_clip and place in clips:
            clips[place].take(record.given)
        if easing is not None and easing.is_over(record.step):
            self.easing = None

    @property
    def lasting(self) -> float:
        """Learning rate factor for the rest of the training."""
        return 1.0 if self.easing is None else self.easing.plan.lasting

    def ease_in(self, start: int, factor: float, steps: int, *, linear: bool = False) -> bool:
        """Reduce the learning rate for some steps; False where it is reduced already."""
        old = self.easing
        if old is not None and start < old.plan.start + old.plan.steps:
            return False
        held, clips = ({}, False) if old is None else (old.held, old.plan.clips)
        self.easing = Easing(EasingPlan(start, factor, steps, self.lasting, held, linear=linear, clips=clips))
        return True

    def adjust(self, decision: Decision, step: int, parts: TrainingParts | None, write: Callable[[], str]) -> None:
        """Make the decided changes of the learning rate, and report them.

        `write` writes a checkpoint and returns a sentence about it; empty where it could not.
        """
        policy = self._policy
        if decision.cut:
            assert policy.cut_learning_rate is not None
            self.cut(step + 1, policy.cut_learning_rate)
            self._tell(step, SmallerStepsFacts(Smaller.CUT, policy.cut_learning_rate))
        if decision.reset and parts is not None:
            steps = policy.reset_warm_up
            if self.ease_in(step + 1, WARM_UP_FROM, steps, linear=True):  # else it is reduced already
                count = sum(reset_moments(optimizer) for optimizer in parts.optimizers)
                self._tell(step, SmallerStepsFacts(Smaller.RESET, WARM_UP_FROM, steps, count))
        if decision.ahead:
            facts = SmallerStepsFacts(Smaller.AHEAD, checkpoint=write(), value=str(policy.act_ahead))
            factor, steps = policy.easing_factor, policy.easing_steps
            if policy.act_ahead == "ease" and self.ease_in(step + 1, factor, steps):
                facts = replace(facts, factor=factor, steps=steps)
            if facts.checkpoint or facts.factor is not None:
                self._tell(step, facts)

    def _tell(self, step: int, facts: SmallerStepsFacts) -> None:
        self._emit(Finding.at(facts, step, Severity.INFO, remedies=SmallerSteps.remedies))

    def cut(self, start: int, share: float) -> None:
        """Reduce the learning rate for the rest of the training."""
        old, lasting = self.easing, min(share, self.lasting)
        plan = EasingPlan(start, 1.0, 1, clips=False) if old is None else replace(old.plan, held=old.held)
        self.easing = Easing(replace(plan, lasting=lasting))

    def end_easing(self) -> None:
        """End the reduction of the learning rate, except a lasting one."""
        if self.easing is not None:
            lasting = self.lasting
            self.easing = None if lasting >= 1 else Easing(EasingPlan(0, 1.0, 1, lasting, clips=False))

    def rolled_back(self, plan: EasingPlan) -> None:
        """Forget the norms after a rollback, and start easing."""
        for limit in self._limits.values():
            limit.forget()
        if self._adaptive is not None:
            self._adaptive.forget()
        if self.guard.buffers is not None:
            self.guard.buffers.keep()  # those of before must not come back with the next skipped step
        self.easing = Easing(plan) if plan.factor < 1 or plan.held or plan.lasting < 1 else None

    def _take_note(self, verdict: Verdict, optimizer: Optimizer, capture: StepCapture, record: StepRecord) -> None:
        """Give the capture the guard's flag beside that of the loss scaler, so that skipped steps are counted."""
        flag = verdict.flag
        if verdict.broken:
            record.asked_for, record.buffers_lost = verdict.asked_for, self.guard.buffers_lost
            scaler_flag = getattr(optimizer, "found_inf", None)
            by_scaler = (
                scaler_flag is not None and scaler_flag.item() > 0
            )  # the host has waited for our own flag anyway
            record.skipped_by = None if verdict.asked_for else "scaler" if by_scaler else "guard"
            if verdict.asked_for or flag is None:
                flag = torch.ones((), dtype=torch.float32, device=parameters_of(optimizer)[0].device)
            if record.flag is not None and verdict.asked_for:
                return
        if flag is not None and flag is not record.flag and not record.is_ended:
            record.flag = flag
            capture.found_inf.append(flag)

    def _limit(self, place: str) -> GradientLimit:
        if place not in self._limits:
            self._limits[place] = GradientLimit(self._policy.skip_gradients_above)
            if self._policy.easing_clip is not None:
                self._easing_clips[place] = EasingClip(self._policy.easing_clip)
        return self._limits[place]


@dataclass(slots=True, eq=False)
class StepRecord:
    """One capture and the optimizer steps that use its gradients."""

    step: int
    place: str = ""
    skipped_by: SkippedBy | None = None  # none: taken, as far as the host knew when it was over
    asked_for: bool = False  # not broken: the script asked to skip it, or its gradients were those of replaced weights
    buffers_lost: bool = False  # skipped, but buffers could not be restored
    has_scaler: bool = False
    is_ended: bool = False  # the capture is over, and its reading was requested
    flag: Tensor | None = None  # the guard's flag that the capture has already
    stop: Stop | None = None  # ends the training before this step
    stopped_together: bool = False  # all ranks have agreed to end before this step
    batch_number: int = -1  # identifies its batch
    rates: dict[int, tuple[float, ...]] = field(default_factory=dict)  # learning rates that each optimizer really used
    eased: bool = False  # whether `rates` may differ from the script's own

    findings: tuple[Finding, ...] = ()
    loss: float = math.nan
    norm: float = math.nan  # gradient norm before clipping
    given: float = math.nan  # gradient norm as the optimizers got it
    loss_scale: float | None = None
    was_skipped_by: SkippedBy | None = None
    """`skipped_by`, or what only the device knew; unlike `skipped_by` not known on all ranks at once."""
    broken_taken: bool = False  # taken with non-finite loss or gradients
    skips_in_a_row: int = 0

    @property
    def is_broken(self) -> bool:
        """Skipped by the guard, or taken broken; skips of a loss scaler are part of its search."""
        return self.was_skipped_by == "guard" or self.broken_taken

    def read(self, reading: StepReading, skipped_before: MutableMapping[str, float]) -> None:
        """Fill in the values; updates `skipped_before`, the skipped steps by place."""
        values: dict[str, float] = {}
        for signal, value in zip(reading.signals, reading.values, strict=True):
            if (signal.place == self.place or signal.quantity == "loss_scale") and signal.quantity not in values:
                values[signal.quantity] = value
        self.step = reading.step
        self.loss, self.norm = values.get("loss", math.nan), values.get("grad_norm", math.nan)
        self.given, self.loss_scale = values.get("grad_norm_clipped", self.norm), values.get("loss_scale")
        self.was_skipped_by = self.skipped_by
        count = values.get("skipped_steps", 0.0)
        if count > skipped_before.get(self.place, 0.0) and not self.skipped_by and not self.asked_for:
            # Only the device knew. Where a loss scaler is at work, its flag and ours are one.
            self.was_skipped_by = "scaler" if self.has_scaler else "guard"
        skipped_before[self.place] = count
        finite = isfinite(values.get("loss", 0.0)) and isfinite(values.get("grad_norm", 0.0))
        self.broken_taken = not (finite or self.was_skipped_by or self.asked_for)


SIGNALS = (
    SignalType(
        "learning_rate_used",
        "learning rate that the step was taken with, of the first parameter group; only while it is reduced after a "
        "rollback or a spike",
        "optimizer",
        interval="every step",
    ),
)


def with_used_rate(reading: ProbeReading, record: StepRecord) -> ProbeReading:
    """Add the used rate of the first group beside the rate set by the script."""
    named = zip(reading.signals, reading.values, strict=True)
    script = next(((signal.place, rate) for signal, rate in named if signal.quantity == "learning_rate"), None)
    used = next((rates[0] for rates in record.rates.values() if rates), math.nan)
    if script is None or not math.isfinite(used) or math.isclose(used, script[1], rel_tol=1e-6):
        return reading
    signals = shared_layout((*reading.signals, Signal(SIGNALS[0].quantity, script[0])))
    return reading._replace(signals=signals, values=(*reading.values, used))
