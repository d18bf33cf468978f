"""Turn hook calls into one reading for each capture: a backward phase and the optimizer steps that use its gradients.

Nothing of the training is changed or waited for. A capture ends when every optimizer has stepped that stepped in recent
captures (`StepOrder`), or else with the next backward pass.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.nn import Module
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from mlflow_stability.probes.gradient_norm import parameters_of, total_norm, whole_gradients_of
from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.probes.model_discovery import ObjectMemory, ObjectScan
from mlflow_stability.probes.probe import Guard
from mlflow_stability.probes.probe_scheduler import NoProbes, ProbeScheduler
from mlflow_stability.probes.ranks.rank_exchange import RankExchanges
from mlflow_stability.probes.ranks.rank_row import RankTable
from mlflow_stability.probes.ranks.rank_watch import RankWatch
from mlflow_stability.probes.ranks.sharded_norms import whole_scalar
from mlflow_stability.probes.step.capture import (
    MAX_LOSSES,
    Clip,
    ControlFor,
    KnownOptimizer,
    ProbeReading,
    StepCapture,
    StepControl,
    UnscaledLoss,
    current_value,
    reading_of,
    rows_of,
    scalars_of,
    take_losses,
    take_rates,
    take_scale,
)
from mlflow_stability.probes.step.optimizer_tracks import OptimizerTracks
from mlflow_stability.probes.step.readback import Readback, Reader, cpu_value
from mlflow_stability.probes.step.script_gradients import (
    DISCARDED,
    ClippedNorm,
    EngineNorms,
    HeldGradients,
    LateClips,
    Moment,
    SinceLastStep,
    StepCount,
    StepOrder,
    take_engine_norm,
)

_NUMBERS = (float, int)
NORM = "gradient norm"
RANKS_SECONDS = 2.0  # the end of a recording waits this long for the measurements of other processes
OnReading = Callable[[Any, ProbeReading], None]  # receives the result of `owner_for`, and the capture's reading
SchedulerFor = Callable[[Any], ProbeScheduler | None]  # returns the probes for the result of `owner_for`


class StepMeter:
    """Counts captures and measures them."""

    def __init__(
        self,
        guard: Guard,
        owner_for: Callable[[Optimizer | None], Any],
        on_reading: OnReading,
        scheduler_for: SchedulerFor = lambda _: None,
        ranks: RankWatch | None = None,
        objects: ObjectMemory | None = None,
        control_for: ControlFor | None = None,
    ) -> None:
        self._guard, self._control_for = guard, control_for
        self._control: StepControl | None = None
        self._owner_for, self._on_reading, self._scheduler_for = owner_for, on_reading, scheduler_for
        self.ranks = RankWatch(guard, RankExchanges()) if ranks is None else ranks
        self._scheduler: ProbeScheduler | NoProbes = NoProbes()
        self._swallowing = False
        self._since = SinceLastStep()
        self._readback, self._tracks, self.capture = Readback(), OptimizerTracks(self._since.is_new), StepCapture()
        self._last: StepCapture | None = None
        self._owner: Any = None
        self._owner_is_met = False
        self._known: dict[int, KnownOptimizer] = {}  # the optimizers of this training, by identity
        self._order, self._steps = StepOrder(), StepCount()
        self._losses_before = self._evaluating = 0
        self._counted = True  # the newest backward pass; not one from the same loss as the pass before
        self._evaluated = False  # whether the closure of this step was evaluated before: LBFGS asks again and again
        self._unscaled_loss: UnscaledLoss | None = None
        self._ended_at: float | None = None
        self._skips: dict[int, int] = {}
        self._held, self._engines, self._clipped_norm = HeldGradients(guard), EngineNorms(), ClippedNorm()
        self._late_clips = LateClips()
        self._clipped_norm.is_on = control_for is None  # an autopilot skips steps by their real gradients
        self._scan = ObjectScan(Module, Optimizer, LRScheduler, GradScaler, memory=objects)
        self._take_engine = guard("norm before clipping", self._engine_found)
        self._ask_engine = guard("norm before clipping", take_engine_norm)
        self._take_losses = guard("loss", take_losses)
        self._check_discarded = guard(DISCARDED, self._held.set_aside_discarded)
        self._follow = guard(DISCARDED, self._held.before_step)
        self._take_learning_rates = guard("learning rate", take_rates)
        self._take_scale = guard("loss scale", take_scale)

    def optimizer_made(self, optimizer: Optimizer) -> None:
        self._since.optimizer_made(optimizer)
        self.ranks.announce()

    def backward(self, tensors: Any) -> None:
        again = self._evaluating and self._evaluated
        if self._control is not None and not again:
            if self.ranks.is_on and self.ranks.waits and self.capture.stepped and not self._evaluating:
                self._end_capture()  # all processes send their measurements of it before they vote
            self._control.before_backward(tensors)
        self._since.in_backward = True
        if again:
            return
        if self.capture.stepped and not self._evaluating:
            self._end_capture()
        capture = self.capture
        if capture.micro_batches:
            self._check_discarded(capture)
        else:
            self._held.note(Moment.STEP_BEGINS)
            if self.ranks.is_on:
                self.ranks.backward_began()
        self._counted = not (type(tensors) is Tensor and capture.repeats(tensors))
        capture.micro_batches += self._counted
        self._losses_before = len(capture.losses)
        if capture.clips:
            capture.clips.clear()  # the optimizer will get more than the clipped gradients
        plain = capture.scaler is None and self._unscaled_loss is None
        if plain and type(tensors) is Tensor and tensors.is_cpu and tensors.numel() == 1:
            if self._counted:
                capture.losses.append(cpu_value(tensors))  # the usual case on the host
        elif self._counted:
            self._take_losses(capture, tensors, self._unscaled_loss)
        if len(capture.losses) > MAX_LOSSES:
            capture.condense()
        self._scheduler.backward_began(tensors)

    def backward_ended(self) -> None:
        """Runs right after gradients were computed, or failed to be."""
        since = self._since
        since.in_backward, since.nodes = False, torch_api.get_sequence_nr()
        self._held.note(Moment.BACKWARD_ENDED)
        self._scheduler.backward_ended()

    def replayed(self) -> None:
        """Runs right before a CUDA graph is replayed, which may hold a forward and a backward pass."""
        if self.capture.stepped and not self._evaluating:
            self._end_capture()
        self.capture.replays += 1

    def backward_failed(self) -> None:
        """Runs when the backward pass ended in an exception: an interrupted notebook cell, say."""
        capture, again = self.capture, self._evaluating and self._evaluated
        if not capture.stepped and not again and capture.micro_batches:
            capture.micro_batches -= self._counted
            del capture.losses[self._losses_before :]

    def zeroed(self, owner: Optimizer | Module) -> None:
        """Runs after an optimizer or a module set its gradients to zero."""
        if self.capture.micro_batches and not self.capture.stepped:
            self.capture.discard(owner, parameters_of(owner))

    def clip(self, gradients: Sequence[Tensor], order: Any, norm: Tensor) -> None:
        capture = self.capture
        over = capture if capture.micro_batches or self._last is None else self._last
        known_optimizers = map(self._known.get, over.ended)
        stepped = filter(None, [entry.optimizer() for entry in known_optimizers if entry]) if over.ended else ()
        if self._late_clips.is_late(gradients, stepped):
            return
        whole = whole_scalar(norm) if hasattr(norm, "full_tensor") else norm
        if not capture.stepped and whole is not None:
            scaled = capture.scaler is not None and not capture.unscaled
            scale = capture.scaler._scale.clone() if scaled else None
            value = cpu_value(whole) if whole.is_cpu else current_value(whole)
            capture.clips.append(Clip(value, float(order), frozenset(map(id, gradients)), scale))
            self._clipped_norm.times = 0

    def clipped(self, kind: str, limit: Any, parameters: Any = None, norm: Any = None) -> None:
        """Runs after the script clipped gradients; limits on a device and infinite limits are ignored."""
        if not isinstance(limit, _NUMBERS) or not math.isfinite(limit) or self._late_clips.clipped():
            return
        if not self.capture.stepped:
            self.capture.limits[kind] = float(limit)
            is_scaled, counts = self.capture.scaler is not None and not self.capture.unscaled, self._late_clips.counts
            counts.scaled = counts.scaled + 1 if is_scaled else 0
            if self._clipped_norm.is_on:
                self._clipped_norm.clipped(parameters, norm)

    def scaled(self, scaler: Any, original: Any, result: Any) -> None:
        """Runs after a loss scaler multiplied a loss."""
        if self.capture.stepped and not self._evaluating:
            self._end_capture()
        self.capture.scaler = scaler
        if isinstance(original, Tensor):
            self._unscaled_loss = (weakref.ref(result), original.detach().clone())

    def unscaled(self, scaler: Any) -> None:
        """Runs after a loss scaler divided gradients by its scale."""
        if self.capture.scaler is scaler:
            self.capture.unscaled = True

    def step_with_closure(self, optimizer: Optimizer) -> None:
        if self._control is not None:
            self._control.before_closure(optimizer)

    def closure_begins(self, optimizer: Optimizer, first: bool) -> None:
        if self._control is not None:
            self._control.closure_begins(optimizer)
        self._evaluating = 1
        self._evaluated = not first
        if first and self.capture.stepped:
            self._end_capture()

    def closure_ends(self, optimizer: Optimizer, first: bool, failed: bool) -> None:
        """Runs after it; the first evaluation completes the gradients."""
        self._evaluating = 0
        if failed:
            return
        if first:
            self.before_step(optimizer)
        elif self._control is not None:
            self._control.evaluated_again(optimizer)

    def before_step(self, optimizer: Optimizer) -> None:
        """Runs when the gradients are complete and not used yet."""
        known_optimizer = self._known.get(id(optimizer))
        # A new optimizer may have the identity of one that is gone.
        if known_optimizer is not None and known_optimizer.optimizer() is optimizer:
            self._before_step(optimizer)
        else:
            with self._scan.about(optimizer):  # names, models, schedules and parts are all searched now
                self._before_step(optimizer)

    def _before_step(self, optimizer: Optimizer) -> None:
        if self._control is not None and self._control.was_rolled_back():
            self._steps.begin_step()
        stepped = self.capture.stepped
        if stepped and (id(optimizer) in stepped or self._is_another(optimizer, self.capture)):
            self._end_capture()
        capture = self.capture
        is_first = not capture.stepped
        if is_first:
            owner = self._owner_for(optimizer)
            announced = capture.micro_batches or capture.replays
            if owner is self._owner and not announced and self._belongs_to_last_capture(optimizer):
                if self._control is not None and self._last is not None:
                    self._before_update(self._control, optimizer, self._last, None)
                return
            capture.owner = owner
            if owner is not self._owner or not self._owner_is_met:
                self._belongs_to(owner)
            if capture.discards:
                capture.drop_discarded(optimizer)
        known_optimizer, is_new = self._known.get(id(optimizer)), False
        if known_optimizer is None or known_optimizer.optimizer() is not optimizer:
            known_optimizer, is_new = self._meet(optimizer, capture.track), self._since.is_new(optimizer)
        capture.track, capture.place = known_optimizer.track, known_optimizer.place
        if is_first:
            capture.begins_step = self._steps.begins(capture.track, is_new)
        capture.stepped.append(id(optimizer))
        unscale, found_inf = getattr(optimizer, "grad_scale", None), getattr(optimizer, "found_inf", None)
        if capture.scaler is not None or found_inf is not None:
            self._take_scale(capture, optimizer)
        followed = self._held.followed.get(id(optimizer))
        if not known_optimizer.is_settled or followed is None:
            self._follow(optimizer)
            self._take_engine(capture, optimizer, known_optimizer)
        elif known_optimizer.engine is not None:
            capture.engine = known_optimizer.engine() or capture.engine
        norms_before = len(capture.norms)
        if not self.ranks.is_split:  # a split norm is summed over all processes
            self._take_norm(whole_gradients_of(optimizer), unscale)
        groups, places = optimizer.param_groups, known_optimizer.rate_places
        rate = groups[0].get("lr") if len(groups) == len(places) == 1 else None
        if type(rate) is float:
            capture.learning_rates[places[0]] = rate
        else:
            self._take_learning_rates(capture, optimizer, known_optimizer)
        clips = self._late_clips.counts
        if clips.scaled and unscale is None and not capture.unscaled:
            clips.scaled = 0  # the script has divided the gradients by the loss scale itself
        begins = capture.begins_step
        kept_for = self._held.kept_for(optimizer) if followed is not None and followed.kept_for else 0
        place, limits, norms = known_optimizer.place, capture.limits, capture.norms
        discarded = capture.discarded and self._held.discarded_before(optimizer, capture)
        self._scheduler.before_step(optimizer, unscale, place, norms, limits, begins, kept_for, clips, discarded)
        if self.ranks.is_on:
            if self.ranks.waits:  # all processes send their measurements of earlier captures, then vote
                self._readback.drain()
            self.ranks.before_step(capture, optimizer, unscale, 0 if capture.owner is None else self._scheduler.step)
        if self._control is not None:
            norm = capture.norms[-1] if len(capture.norms) > norms_before else None
            self._before_update(self._control, optimizer, capture, norm if isinstance(norm, Tensor) else None)

    def _before_update(
        self, control: StepControl, optimizer: Optimizer, capture: StepCapture, norm: Tensor | None
    ) -> None:
        """Ask the autopilot when everything is measured, before the update."""
        if self._swallowing:
            control.swallowed(optimizer, capture, capture.place)
        else:
            control.before_step(optimizer, capture, capture.place, norm, self._tracks.together(capture.track))

    def swallowed(self, scaler: Any, optimizer: Optimizer) -> None:
        """Runs when a loss scaler skipped the step that it was asked for."""
        self._swallowing = True
        try:
            self.before_step(optimizer)
            found_inf = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
            self.capture.found_inf.extend(flag.clone() for flag in found_inf.values())
            self.step_ended(optimizer)
        finally:
            self._swallowing = False

    def step_ended(self, optimizer: Optimizer) -> None:
        control, skipped = self._control, self._swallowing
        if control is not None:
            skipped = control.step_ending(optimizer) or skipped
        capture, since = self.capture, self._since
        if since.made:
            since.made.clear()
        if not since.in_backward:
            since.nodes = torch_api.get_sequence_nr()
        if capture.stepped:
            capture.ended.add(id(optimizer))
            self._held.note(Moment.STEP_ENDED, optimizer)
            self._scheduler.after_step(optimizer, getattr(optimizer, "grad_scale", None), capture.place, skipped)
            if self.ranks.is_on:
                self.ranks.after_step(optimizer, skipped)
            # An engine knows its norm only when its own step is over.
            if capture.engine is None and self._order.is_complete(capture.track, capture.ended):
                self._end_capture()
        if control is not None:
            capture = self.capture
            is_over = not capture.stepped or self._order.is_complete(capture.track, capture.ended)
            control.step_over(is_over, self._steps.is_whole, self._scan)

    def _engine_found(self, capture: StepCapture, optimizer: Optimizer, known_optimizer: KnownOptimizer) -> None:
        engine = self._engines.engine_of(optimizer)
        capture.engine = capture.engine if engine is None else engine
        reaches = self._held.reaches(optimizer) if capture.micro_batches else None
        capture.copied = capture.copied or reaches is False
        if reaches:  # this does not change any more
            known_optimizer.is_settled = True
            known_optimizer.engine = None if engine is None else weakref.ref(engine)

    def manual_step(self, loss: Any, gradients: Sequence[Tensor], optimizer: Any, rates: dict[str, float]) -> None:
        """Record a whole capture at once, for a loop that no hook can see."""
        capture = self.capture
        self._belongs_to(self._owner_for(optimizer))
        capture.track, capture.micro_batches, capture.begins_step = 0, 1, self._steps.begins(0)
        capture.learning_rates.update(rates)
        if loss is not None:
            self._take_losses(capture, torch.as_tensor(loss), None)
        self._take_norm(gradients, None)
        if optimizer is not None:
            self._take_learning_rates(capture, optimizer, self._meet(optimizer, 0))
            self._scheduler.before_step(optimizer, None, "", capture.norms)
        self._end_capture()

    def forget(self) -> None:
        """Drop an unfinished measurement after Ctrl-C."""
        self._scan.end()
        self._scheduler.forget()

    def drain(self) -> None:
        """End a complete capture, and wait for values from the device."""
        if self.capture.stepped:
            self._end_capture()
        self.settle()

    def close(self) -> None:
        """Emit all readings, and remove everything from the models."""
        self.drain()
        self._scheduler.close()
        self.ranks.close()

    def look_away(self) -> None:
        """Runs when our hooks are removed, for a while or for good."""
        self._scheduler.pass_over()

    def settle(self) -> None:
        """Wait for all values of a recording that is about to end."""
        self._readback.drain()
        self.ranks.poll(RANKS_SECONDS)

    def _belongs_to(self, owner: Any) -> None:
        """Start new tracks, skips and times for a new owner."""
        if self._control_for is not None and (owner is not self._owner or self._control is None):
            self._control = self._control_for(owner)
        self.capture.owner, self._owner_is_met = owner, self._control_for is None or self._control is not None
        if owner is not self._owner:
            self._owner, self._last, self._ended_at = owner, None, None
            self._skips = {}
            self._tracks.begin_training()
            self._known.clear()
            self._order.clear()
            self._steps.begin_training()
            self._scheduler.close()
            self._scheduler = self._scheduler_for(owner) or NoProbes()

    def _meet(self, optimizer: Optimizer, track: int) -> KnownOptimizer:
        """Record an optimizer at its first step in this training."""
        track = self._tracks.join(optimizer, track)
        self._known = {key: other for key, other in self._known.items() if other.optimizer() is not None}
        place, group_place = self._tracks.track_place(track), self._tracks.group_place
        self._known[id(optimizer)] = KnownOptimizer(optimizer, track, place, group_place)
        self.ranks.meet(optimizer)
        return self._known[id(optimizer)]

    def _is_another(self, optimizer: Optimizer, capture: StepCapture) -> bool:
        """Return whether this step belongs to another training than the capture, without a backward pass between."""
        return self._tracks.track_of(optimizer) != capture.track and self._since.anything_new(optimizer)

    def _belongs_to_last_capture(self, optimizer: Optimizer) -> bool:
        """Return whether this step still belongs to the capture that seemed to be over."""
        last = self._last
        if last is None or id(optimizer) in last.stepped or self._is_another(optimizer, last):
            return False
        self._tracks.join(optimizer, last.track)
        last.stepped.append(id(optimizer))
        self._order.stepped_late(last.track, id(optimizer))
        return True

    def _end_capture(self) -> None:
        if self._control is not None:
            self._control.capture_ended()
        capture, self.capture = self.capture, StepCapture()
        self._last = capture
        if capture.engine is not None:
            self._ask_engine(capture)
            capture.engine = None
        self._order.capture_ended(capture.track, capture.stepped)
        ended, when = time.perf_counter(), time.time()
        step_time = None if self._ended_at is None else ended - self._ended_at
        self._ended_at = ended
        place, skips = capture.place, self._skips
        capture.blocks, capture.tables = self._scheduler.end(capture.begins_step)

        def read(values: Sequence[float], rows: Sequence[Sequence[float]]) -> None:
            self._on_reading(capture.owner, reading_of(capture, values, rows, place, step_time, when, skips))

        rows = rows_of(capture) if capture.blocks or capture.tables else ()
        if self.ranks.is_on:
            self._fetch_together(capture, rows, read)
        else:
            self._readback.fetch(scalars_of(capture), read, rows)

    def _fetch_together(self, capture: StepCapture, rows: Sequence[Tensor], read: Reader) -> None:
        """Emit the reading when the other processes have sent their measurements."""
        ranks, share, step = self.ranks, self.ranks.capture_ended(capture), self._scheduler.step
        scalars = scalars_of(capture)

        def read_here(values: Sequence[float], lines: list[list[float]]) -> None:
            own_values, own_rows = values[: len(scalars)], lines[: len(rows)]
            losses = own_values[: len(capture.losses)]

            def read_together(table: RankTable | None) -> None:
                if table is not None:
                    capture.norm_of_all = capture.norm_of_all if table.norm is None else table.norm
                    capture.blocks = [*capture.blocks, *ranks.blocks(table, capture.place, step)]
                read(ranks.with_loss(capture, own_values, table), own_rows)
                if table is not None:
                    ranks.tell(table)

            ranks.take(share, ranks.loss_of(losses), values[len(scalars) :], lines[len(rows) :], read_together)

        self._readback.fetch([*scalars, *share.squares], read_here, [*rows, *share.rows])

    def _take_norm(self, gradients: Sequence[Tensor], grad_scale: Tensor | None) -> None:
        if NORM in self._guard.off:
            return
        capture, clipped = self.capture, self._clipped_norm
        try:
            norm: Tensor | float | None = None
            if clipped.is_on and capture.clips and grad_scale is None:
                norm = clipped.of(capture, gradients)
            if norm is None:
                norm = total_norm(gradients)
            if clipped.expected is not None:
                clipped.compare(norm)
            if norm is not None:
                capture.norms.append(norm if grad_scale is None else norm / grad_scale)
                if capture.clips:
                    capture.gradients.update(map(id, gradients))
        except BaseException as error:
            self._guard.contain(NORM, error)
