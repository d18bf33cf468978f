"""What a script does with its gradients: discards them, never clears them, clips them; which steps belong together.

``zero_grad()`` has a hook; ``p.grad = None`` and ``p.grad.zero_()`` have none. One parameter of each optimizer is
checked before and after a backward pass; all of them only where its gradient is gone or changed. No gradient is kept
alive, changed or waited for. Where gradients go elsewhere in a backward pass (flat buffers, split parameters) nothing
is reported.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable, Sequence
from enum import Enum
from functools import partial
from math import isclose, isfinite
from operator import attrgetter, is_not
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.weak import TensorWeakRef

from mlflow_stability.probes.gradient_norm import gradients_of, is_split, parameters_of, total_norm
from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.probes.probe import ClipCounts, Guard
from mlflow_stability.probes.step.capture import Clip, StepCapture
from mlflow_stability.probes.step.readback import Parcel, cpu_value, value_on_host

MAX_FOLLOWED = 16  # optimizers that are followed, the newest ones; a script may make one for every sample
MIN_UNREACHED_STEPS = 4  # after this many steps without gradients from a backward pass, none reaches an optimizer
MIN_KEPT_STEPS = 3
"""Steps in a row with the gradients of the step before that are no accident; then their values are read once, because
`p.grad.data.zero_()` leaves no other trace."""


DISCARDED = "discarded gradients"


class Moment(Enum):
    STEP_BEGINS = 0  # right before the first backward pass of a step
    BACKWARD_ENDED = 1  # right after each backward pass
    STEP_ENDED = 2  # right after the step of an optimizer


class HeldGradients:
    """One parameter of each optimizer, and its gradient at the last check."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self.followed: dict[int, _FollowedParameter] = {}  # by the identity of the optimizer

    def before_step(self, optimizer: Optimizer) -> None:
        """Follow this optimizer from now on; runs while it has gradients."""
        entry = self.followed.get(id(optimizer))
        if entry is not None and entry.optimizer() is optimizer:
            return
        parameter = _with_gradient(optimizer)
        if parameter is None or is_split(parameter):
            return
        self.followed.pop(id(optimizer), None)
        self.followed[id(optimizer)] = _FollowedParameter(optimizer, parameter)
        if len(self.followed) > MAX_FOLLOWED:
            del self.followed[next(iter(self.followed))]

    def note(self, moment: Moment, optimizer: Optimizer | None = None) -> None:
        """Compare the gradients of one optimizer, or of all, with the last check, and keep their state."""
        if DISCARDED in self._guard.off:
            return
        try:
            for key, entry in self.followed.items():
                if optimizer is not None and key != id(optimizer):
                    continue
                parameter, before = entry.parameter(), entry.gradient
                gradient = None if parameter is None else parameter.grad
                if gradient is None:
                    touched, entry.gradient = before is not None, None
                else:
                    version = 0 if gradient.is_inference() else gradient._version
                    touched = before is None or before() is not gradient or version != entry.version
                    if touched:
                        entry.gradient, entry.version = TensorWeakRef(gradient), version
                if moment is Moment.STEP_ENDED:
                    entry.kept_for = entry.kept_for + 1 if entry.holds_last else 0
                    entry.holds_last, entry.stepped = False, True
                elif moment is Moment.BACKWARD_ENDED:
                    entry.reached = gradient is not None if touched else entry.reached
                else:
                    entry.reached = False
                    if entry.stepped:
                        entry.holds_last = not touched and gradient is not None
                        entry.stepped = entry.holds_last  # what is there later is not of that step
                        if entry.holds_last and entry.kept_for == MIN_KEPT_STEPS - 1 and entry.values is None:
                            entry.ask_for_values()
        except BaseException as error:
            self._guard.contain(DISCARDED, error)

    def kept_for(self, optimizer: Optimizer) -> int:
        """Return in how many steps in a row the gradients of the step before were added; 0: that is not certain."""
        entry = self.followed.get(id(optimizer))
        return 0 if entry is None or entry.kept_for < MIN_KEPT_STEPS or not entry.is_not_zero() else entry.kept_for

    def discarded_before(self, optimizer: Optimizer, capture: StepCapture) -> int:
        """Return of how many backward passes a step lacks the gradients; 0 where the script may have kept them."""
        entry = self.followed.get(id(optimizer))
        parameter = None if entry is None else entry.parameter()
        gradient = None if parameter is None else parameter.grad
        if entry is None or entry.gradient is None or gradient is not entry.gradient() or not entry.reached:
            return 0
        is_written = gradient is None or _version(gradient) != entry.version + len(capture.limits)  # by clipping
        return 0 if is_written else capture.discarded

    def set_aside_discarded(self, capture: StepCapture) -> None:
        """Set aside losses whose gradients the script has discarded since the backward pass before.

        Runs right before a further backward pass of the same step, and checks all gradients.
        """
        emptied, held, unknown = [], False, False
        for entry in self.followed.values():
            entry.holds_last = entry.holds_last and (entry.reached or entry.is_unchanged())
            optimizer = entry.optimizer()
            if not entry.reached or optimizer is None:
                continue
            holds = entry.is_unchanged() or entry.still_holds(optimizer)
            held, unknown = held or holds is True, unknown or holds is None
            if holds is False:
                emptied.append(optimizer)
                entry.reached = entry.holds_last = False
        if emptied and not held and not unknown:  # all optimizers that the backward passes have reached
            capture.set_aside(len(capture.losses), capture.micro_batches)
            capture.discards.clear()
        else:
            for optimizer in emptied:
                capture.discard(optimizer, parameters_of(optimizer))
        if not held and (unknown or not emptied):  # some gradients cannot be followed
            capture.unsure = len(capture.losses)

    def reaches(self, optimizer: Optimizer) -> bool | None:
        """Return whether backward passes give this optimizer its gradients, uncopied; None while that is unknown."""
        entry = self.followed.get(id(optimizer))
        if entry is None or entry.optimizer() is not optimizer:
            return None
        entry.steps += 1
        entry.ever_reached = entry.ever_reached or entry.reached
        return entry.ever_reached or (None if entry.steps < MIN_UNREACHED_STEPS else False)


class _FollowedParameter:
    def __init__(self, optimizer: Optimizer, parameter: Tensor) -> None:
        self.optimizer = weakref.ref(optimizer)
        self.parameter = TensorWeakRef(parameter)
        self.gradient: TensorWeakRef | None = None
        """Its gradient at the last check; an address would not do, as memory is reused."""
        self.version = 0  # the version of that gradient: the number of in-place writes
        self.reached = False  # whether a backward pass of this step has given it a gradient
        self.ever_reached = False
        self.steps = 0
        self.stepped = False  # whether its gradient was checked at the end of a step
        self.holds_last = False  # whether the gradients of this step were added to those of the step before
        self.kept_for = 0  # the number of such steps in a row
        self.values: Parcel | None = None  # the largest value of such a gradient, on its way to the host

    def ask_for_values(self) -> None:
        """Start copying the largest value of its gradient to the host."""
        gradient = None if self.gradient is None else self.gradient()
        if gradient is not None and gradient.layout is torch.strided:
            with torch.no_grad():
                self.values = Parcel([gradient.detach().abs().amax().float()])

    def is_not_zero(self) -> bool:
        """Return whether its gradient was kept, not set to zero without a trace; False while that is unknown."""
        return self.values is not None and self.values.arrived and float(self.values.opened()[0]) != 0.0

    def is_unchanged(self) -> bool:
        """Return whether its gradient is as it was at the last check."""
        parameter = self.parameter()
        gradient = None if parameter is None else parameter.grad
        if gradient is None or self.gradient is None:
            return gradient is self.gradient
        return self.gradient() is gradient and _version(gradient) == self.version

    def still_holds(self, optimizer: Optimizer) -> bool | None:
        """Return whether any gradient of its optimizer is not zero; None where they are on a device."""
        parameter = _with_gradient(optimizer)
        if parameter is None:
            return False
        followed = self.parameter()
        if followed is None or followed.grad is None:  # the script dropped only this gradient
            self.parameter = TensorWeakRef(parameter)
            if parameter.grad is not None:
                self.gradient, self.version = TensorWeakRef(parameter.grad), _version(parameter.grad)
            return True
        norm = total_norm(gradients_of(optimizer))
        value = None if norm is None else value_on_host(norm)
        return None if value is None else value != 0


def _with_gradient(optimizer: Optimizer) -> Tensor | None:
    return next((parameter for parameter in parameters_of(optimizer) if parameter.grad is not None), None)


def _version(gradient: Tensor) -> int:
    return 0 if gradient.is_inference() else gradient._version


class SinceLastStep:
    """Tells the first step of a training without ``backward()`` from a late step of the previous capture."""

    def __init__(self) -> None:
        self.made: dict[int, weakref.ref[Optimizer]] = {}  # new optimizers by identity
        self.nodes = 0  # number of autograd nodes when the last step or backward pass ended
        self.in_backward = False  # an optimizer may step inside a backward pass, where checkpoints compute again

    def optimizer_made(self, optimizer: Optimizer) -> None:
        # One for gradients that are there joins the step in which they were computed: Pyro makes an optimizer for each
        # parameter between the steps of others.
        if _with_gradient(optimizer) is None:
            self.made[id(optimizer)] = weakref.ref(optimizer)

    def is_new(self, optimizer: Optimizer) -> bool:
        """Return whether this optimizer was made since the last step of any, before its gradients."""
        made = self.made.get(id(optimizer)) if self.made else None
        return made is not None and made() is optimizer

    def anything_new(self, optimizer: Optimizer) -> bool:
        """Return whether this optimizer is new, or anything with gradients was computed since the last step."""
        if self.in_backward:
            return False
        return torch_api.get_sequence_nr() != self.nodes or self.is_new(optimizer)


# C functions, because these run over all gradients at every step.
_writes, _gradient, _is_not_none = attrgetter("_version"), attrgetter("grad"), partial(is_not, None)
MEASURED_EVERY = 10
RELATIVE_TOLERANCE = 1e-5  # allowed difference between a computed norm and a measured one
MAX_FRAMES = 40  # frames above the hook that are searched for an engine
_ENGINE_NORM = "get_global_grad_norm"


class LateClips:
    """Counts clippings in a row of gradients that the optimizers had used already, and of none."""

    def __init__(self) -> None:
        self.counts = ClipCounts()
        self._had_gradients = True
        self._is_late = False  # the norm that was taken last was that of gradients that have been used, or of none

    def is_late(self, gradients: Sequence[Tensor], stepped: Iterable[Optimizer]) -> bool:
        """Runs when the script takes a norm; `stepped`: optimizers that have used their gradients.

        Return whether these are the gradients that have been used, or none.
        """
        used: set[int] = set()
        for optimizer in stepped:
            used.update(id(parameter.grad) for parameter in parameters_of(optimizer))
        self._had_gradients = bool(gradients)
        self._is_late = used.issuperset(map(id, gradients))
        return self._is_late

    def clipped(self) -> bool:
        """Count the step of a clipping by that norm; return whether it was late."""
        counts = self.counts
        counts.late = counts.late + 1 if self._is_late and self._had_gradients else 0
        counts.empty = 0 if self._had_gradients else counts.empty + 1
        return self._is_late


class ClippedNorm:
    """Computes the norm after clipping from the norm before it and the limit, without reading all gradients.

    This works only on the host, where an optimizer gets the very tensors that were clipped once, and they were not
    written to since, by torch's own count. Writes through ``.data`` are not counted, and half precision rounds: one
    norm in `MEASURED_EVERY` is measured too, and where it differs, all are measured from then on.
    """

    def __init__(self) -> None:
        self._clipped: tuple[list[int], list[int]] | None = None
        """Identities and versions of the gradients right after clipping; none is kept alive."""
        self._norm: float | None = None  # the norm that the script clipped by; it may combine several processes
        self.times = 0  # number of clippings since the script took a norm
        self.is_on = True
        """Whether norms may be computed: not where steps are skipped for them, nor where a measured norm differed."""
        self._until_measured = 0  # number of norms that may be computed before the next is measured
        self.expected: float | None = None  # the computed value of the norm that is being measured

    def clipped(self, parameters: object, norm: object) -> None:
        self.times += 1
        self._norm = cpu_value(norm) if isinstance(norm, Tensor) and norm.is_cpu else None
        self._clipped = None
        if self.times == 1 and type(parameters) is list:
            gradients = list(filter(_is_not_none, map(_gradient, parameters)))
            if gradients and not gradients[0].is_inference():  # torch counts no versions of these
                self._clipped = list(map(id, gradients)), list(map(_writes, gradients))

    def of(self, capture: StepCapture, gradients: Sequence[Tensor]) -> float | None:
        """Return the norm of the gradients that an optimizer is about to use; None where it has to be measured."""
        limit = capture.limits.get("max_norm")
        if self.times != 1 or limit is None or len(capture.limits) > 1 or len(capture.clips) != 1:
            return None
        clip = capture.clips[0]
        if clip.order != 2.0 or clip.scale is not None or self._norm is None or self._norm != clip.norm:
            return None
        if self._clipped is None or not isfinite(self._norm) or self._clipped[0] != list(map(id, gradients)):
            return None
        if self._clipped[1] != list(map(_writes, gradients)):
            return None
        computed = self._norm * min(1.0, limit / (self._norm + 1e-6))  # as `clip_grads_with_norm_` does
        self._until_measured -= 1
        if self._until_measured >= 0:
            return computed
        self.expected = computed
        return None

    def compare(self, measured: Tensor | float | None) -> None:
        """Compare a measured norm with the computed one; where they differ, all are measured from now on."""
        expected, self.expected = self.expected, None
        norm = value_on_host(measured) if isinstance(measured, Tensor) else measured
        self.is_on = norm is not None and expected is not None and isclose(norm, expected, rel_tol=RELATIVE_TOLERANCE)
        self._until_measured = MEASURED_EVERY - 1


class EngineNorms:
    """Finds the engine that steps an optimizer, such as DeepSpeed's.

    An engine copies gradients into flat buffers, clips them there and then steps an optimizer of its own; no hook sees
    that. An object on the call stack of the step that has ``get_global_grad_norm`` is asked after its step. The stack
    is searched once for each optimizer; neither engines nor variables of the script are kept alive.
    """

    def __init__(self) -> None:
        self._engines: dict[int, tuple[weakref.ref[Optimizer], weakref.ref[Any] | None]] = {}

    def engine_of(self, optimizer: Optimizer) -> Any:
        """Return the engine that steps this optimizer now, or None."""
        entry = self._engines.get(id(optimizer))
        if entry is None or entry[0]() is not optimizer:
            self._engines = {key: other for key, other in self._engines.items() if other[0]() is not None}
            engine = _engine_on_stack()
            entry = weakref.ref(optimizer), None if engine is None else weakref.ref(engine)
            self._engines[id(optimizer)] = entry
        return None if entry[1] is None else entry[1]()


def take_engine_norm(capture: StepCapture) -> None:
    """Add the norm of the engine to a capture whose step is over, unless the script took one itself."""
    if not capture.clips:
        norm = getattr(capture.engine, _ENGINE_NORM)()
        if isinstance(norm, Tensor):
            norm = norm.detach().clone() if norm.numel() == 1 and not hasattr(norm, "full_tensor") else None
        elif not isinstance(norm, int | float) or norm < 0:
            norm = None
        if norm is not None:
            whole = norm if isinstance(norm, Tensor) else float(norm)
            capture.clips.append(Clip(whole, 2.0, frozenset(capture.gradients), None))
    capture.copied = capture.copied or not capture.clips


def _engine_on_stack() -> Any:
    frame: FrameType | None = sys._getframe(2)
    for _ in range(MAX_FRAMES):
        if frame is None:
            return None
        if _may_be_method_of_engine(frame):
            owner = frame.f_locals.get("self")
            if callable(getattr(type(owner), _ENGINE_NORM, None)):
                return owner
        frame = frame.f_back
    return None


def _may_be_method_of_engine(frame: FrameType) -> bool:
    """Return whether this is a method in a module that has a class of engines.

    Checked first, because until Python 3.13 reading a frame's variables keeps them alive until it ends, and writes into
    what the script has from ``locals()``: https://peps.python.org/pep-0667/
    """
    if frame.f_code.co_varnames[:1] != ("self",):
        return False
    kinds = [value for value in list(frame.f_globals.values()) if isinstance(value, type)]
    return any(_ENGINE_NORM in vars(base) for kind in kinds for base in kind.__mro__)


EXPECTED_INTERVALS = 2
"""A track is expected for this many times the steps between its last two captures; later it has ended."""
MAX_EXPECTED_STEPS = 16  # ... and for at most this many steps.
REMEMBERED_CAPTURES = 16  # an optimizer that has not stepped for this many captures is not waited for


class StepCount:
    """Counts the steps of trainings side by side as one: the two halves of a GAN make one step an iteration.

    A track has at most one capture in a step, so that its own steps only rise; a training alone begins a step with each
    capture. The steps are those of the track that steps most often: five captures of a critic for one of its generator
    are five steps.

    A new track joins the current step, because the halves of a GAN are made before either of them steps. A track whose
    optimizer was made after a step is another training, such as the next fold, and begins a step of its own.
    """

    def __init__(self) -> None:
        self._step = 0
        self._current: set[int] = set()  # the tracks that have had a capture in this step
        self._intervals: dict[int, tuple[int, int]] = {}
        """For each track, the step of its last capture, and the number of steps between its last two."""

    @property
    def is_whole(self) -> bool:
        """Whether every track that has not ended had its capture in this step, as both halves of a GAN."""
        if len(self._intervals) == len(self._current):
            return True
        return not any(
            self._step - last <= min(EXPECTED_INTERVALS * interval, MAX_EXPECTED_STEPS)
            for track, (last, interval) in self._intervals.items()
            if track not in self._current
        )

    def begins(self, track: int, is_new: bool = False) -> bool:
        """Count a capture and return whether it begins a step; `is_new`: its optimizer was made after a step."""
        begins = not self._current or track in self._current or (is_new and track not in self._intervals)
        if begins:
            self._step += 1
            self._current = set()
        last, _ = self._intervals.get(track, (0, 0))
        self._current.add(track)
        self._intervals[track] = self._step, self._step - last
        return begins

    def begin_step(self) -> None:
        """Let the next capture begin a step, whatever its track: the training was rolled back."""
        self._current = set()

    def begin_training(self) -> None:
        """Forget the tracks of another recording."""
        self._step, self._current, self._intervals = 0, set(), {}


class StepOrder:
    """Which optimizers step together, by identity, and so when a capture is over."""

    def __init__(self) -> None:
        self._captures_ended = 0
        self._last_stepped: dict[int, dict[int, int]] = {}  # for each track, the capture of each optimizer's last step

    def is_complete(self, track: int, ended: set[int]) -> bool:
        """Return whether every optimizer has ended its step that stepped in recent captures."""
        last_stepped = self._last_stepped.get(track)
        if last_stepped is None:
            return False
        recent = self._captures_ended - REMEMBERED_CAPTURES
        # A plain loop: `all` with a generator takes twice as long, at every step.
        for optimizer, capture in last_stepped.items():
            if capture > recent and optimizer not in ended:
                break
        else:
            return True
        return False

    def capture_ended(self, track: int, stepped: Iterable[int]) -> None:
        """Note which optimizers stepped in the capture that is over."""
        self._captures_ended += 1
        last_stepped = self._last_stepped.get(track)
        if last_stepped is None:
            last_stepped = self._last_stepped[track] = {}
        for optimizer in stepped:
            last_stepped[optimizer] = self._captures_ended

    def stepped_late(self, track: int, optimizer: int) -> None:
        """Note an optimizer that stepped after its capture seemed to be over."""
        self._last_stepped[track][optimizer] = self._captures_ended

    def clear(self) -> None:
        self._last_stepped.clear()
