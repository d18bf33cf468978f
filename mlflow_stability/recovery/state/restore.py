"""Puts a saved state back into a running training, in place: all of it, or nothing.

In: a copy, the parts of the training, and which of the state to take. Out: what was done. Guarantees: everything is
compared first, and a state that does not fit is refused with the first mismatch named, nothing changed. The training is
copied aside, filled, and on any error filled again from what was set aside, bit for bit; where even that fails, what
was not put back is named. Tensors are filled where they lie, so that compiled optimizers and CUDA graphs keep their
addresses; autograd's version counters stay as they are, so that a graph which is still to be used (a GAN's other half)
does not die of it; state born after the copy is removed; gradients are set to zero.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel

from mlflow_stability.errors import RestoreRefused, StabilityError
from mlflow_stability.recovery.state.host_copy import HostCopies, local_part
from mlflow_stability.recovery.state.optimizer_restore import OptimizerPlan, fill
from mlflow_stability.recovery.state.other_state import restore_scaler, rng_state, scaler_state, set_rng_state
from mlflow_stability.recovery.state.state_copy import StateCopy
from mlflow_stability.recovery.state.training_parts import NamedTensor, TrainingParts, named_tensors, tensors_of_model
from mlflow_stability.recovery.state.value_tree import replaced, restored_value


@dataclass(frozen=True, slots=True)
class RestoreChoice:
    """Which of a state is put back beside weights, buffers, moments and averages."""

    hyper_parameters: bool = False
    """Learning rates, betas, weight decay: False leaves them as the script has them now."""
    schedule: bool = False
    """The schedulers."""
    scaler: bool = True
    """The loss scale; how it grows and falls is restored with the hyper-parameters."""
    rng: bool = False
    """The random numbers: False draws what comes next afresh."""
    restart_averages: bool = False
    """An `AveragedModel` that the state does not know begins anew from its weights; False leaves it as it is."""


EVERYTHING = RestoreChoice(hyper_parameters=True, schedule=True, scaler=True, rng=True)
"""For a new process that goes on where another ended."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore did."""

    step: int
    """The step of the state."""
    tensors: int
    """How many tensors were filled."""
    removed: int
    """How many parameters lost state that was born later."""
    seconds: float


def restore_state(copy: StateCopy, parts: TrainingParts, choice: RestoreChoice = RestoreChoice()) -> Restored:
    """Set the training back to this state; an error leaves it as it was."""
    plan = RestorePlan(copy, parts, choice)
    try:
        restored = plan.apply()
    except Exception as error:
        if plan.left:
            raise StabilityError(f"{plan.torn} ({type(error).__name__}: {error})") from error
        raise
    plan.finish()
    return restored


@dataclass(frozen=True, slots=True)
class TornState:
    """What a restore that failed could not undo."""

    step: int
    """That of the state that was to be restored."""
    parts: tuple[str, ...]

    def __str__(self) -> str:
        return f"Incomplete: these may now be of step {self.step}, or a mixture: {', '.join(self.parts)}."


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of what is to be done, and how it is undone."""

    name: str
    apply: Callable[[], None]
    undo: Callable[[], None]


class RestorePlan:
    """A state, and a training that it was compared with and fits; RestoreRefused where it does not.

    `aside`: a copy of the training as it is now, where there is one already. After `apply` the plan is either undone or
    finished; nothing may happen to the training in between.
    """

    def __init__(
        self,
        copy: StateCopy,
        parts: TrainingParts,
        choice: RestoreChoice = RestoreChoice(),
        aside: Callable[[], StateCopy] | None = None,
    ) -> None:
        self._copy = copy
        self._trained = parts
        named = named_tensors(parts)
        pairs = _matched(copy, {**copy.tensors, **copy.later.averaged}, named)
        restarted, self.copies_left = _restarted_averages(copy, parts)
        """How many frozen copies of the models this state knows nothing of, so that they stay as they are."""
        self._optimizers = _matched_optimizers(copy, parts, {id(each.tensor): each.name for each in named})
        if choice.schedule and len(copy.later.schedulers) != len(parts.schedulers):
            counts = f"{len(copy.later.schedulers)} schedulers, and there are {len(parts.schedulers)} here"
            raise _refused(copy, f"it has the state of {counts}")
        copy.wait()
        self.left: tuple[str, ...] = ()
        """What could not be put back when it was undone: the training is neither what it was nor the saved state."""
        with torch.no_grad():
            for plan, groups in zip(self._optimizers, copy.later.hyper_parameters, strict=True):
                plan.stage(groups, choice.hyper_parameters)
            pairs += restarted() if choice.restart_averages else []
            pairs += [pair for plan in self._optimizers for pair in plan.pairs]
            self._tensors = _Tensors(pairs, None if aside is None else aside())
            self._parts = self._other_parts(choice)
        self._begun: list[_Part] = []

    @property
    def torn(self) -> TornState | None:
        """What could not be undone, if anything could not."""
        return TornState(self._copy.step, tuple(self.left)) if self.left else None

    def apply(self) -> Restored:
        """Do it; an error undoes what was done, and is raised."""
        began = time.perf_counter()
        try:
            with torch.no_grad():
                for each in self._parts:
                    self._begun.append(each)
                    each.apply()
            removed = sum(plan.removed for plan in self._optimizers)
            return Restored(self._copy.step, self._tensors.count, removed, time.perf_counter() - began)
        except BaseException:
            self.undo()
            raise

    def undo(self) -> tuple[str, ...]:
        """Make the training what it was before `apply`; gives what could not be put back."""
        left, again = [], []
        with torch.no_grad():
            for each in reversed(self._begun):
                try:
                    each.undo()
                except Exception as error:
                    left.append(f"{each.name} ({type(error).__name__}: {error})")
                    again.append(each)
        self._begun = again[::-1]
        self.left = tuple(left)
        return self.left

    def finish(self) -> None:
        """It is done, in every process: clear the gradients of the weights that were."""
        _drop_gradients(self._trained)

    def _other_parts(self, choice: RestoreChoice) -> list[_Part]:
        """All that is to be done, in order; what it is now is kept where that is not much."""
        copy, parts = self._copy, self._trained
        done = [_Part("weights, buffers and optimizer state", self._tensors.apply, self._tensors.undo)]
        for number, plan in enumerate(self._optimizers):
            done.append(_Part(f"settings and counters of optimizer {number}", plan.apply, plan.undo))
        if choice.schedule:
            for scheduler, (_, state) in zip(parts.schedulers, copy.later.schedulers, strict=True):
                done.append(_scheduler_part(scheduler, restored_value(state)))
        if choice.scaler and copy.later.scaler is not None and parts.scaler is not None and parts.scaler.is_enabled():
            before = replaced(scaler_state(parts.scaler), Tensor.clone)
            put = partial(restore_scaler, parts.scaler)
            saved = copy.later.scaler
            done.append(
                _Part("the loss scale", partial(put, saved, choice.hyper_parameters), partial(put, before, True))
            )
        if choice.rng:
            now = rng_state()
            done.append(_Part("random numbers", partial(set_rng_state, copy.rng), partial(set_rng_state, now)))
        return done


class _Tensors:
    """Tensors of a training with the ones that fill them, and copies of what they held."""

    def __init__(self, pairs: Sequence[tuple[Tensor, Tensor]], aside: StateCopy | None) -> None:
        copies = () if aside is None else aside.copies
        missing = [live for live, _ in pairs if not any(live in each for each in copies)]
        self._copies = (*copies, HostCopies(missing, 0))
        self._pairs = pairs
        self._begun = 0
        self.count = len(pairs)

    def apply(self) -> None:
        """Fill them."""
        for pair in self._pairs:
            self._begun += 1
            fill([pair])

    def undo(self) -> None:
        """Give them what they held; RuntimeError says how many could not be filled."""
        failed = 0
        for each in self._copies:
            each.wait()
        for live, _ in reversed(self._pairs[: self._begun]):  # of tensors that share memory the last one goes first
            try:
                fill([(live, next(each.of(live) for each in self._copies if live in each))])
            except Exception:
                failed += 1
        if failed:
            raise RuntimeError(f"{failed} of {self.count} tensors")


def misfit(copy: StateCopy, parts: TrainingParts) -> str:
    """Why this state does not fit this training; empty where it does. Nothing is copied."""
    try:
        named = named_tensors(parts)
        _matched(copy, {**copy.tensors, **copy.later.averaged}, named)
        _matched_optimizers(copy, parts, {id(each.tensor): each.name for each in named})
    except RestoreRefused as refused:
        return str(refused)
    return ""


def _scheduler_part(scheduler: LRScheduler, state: dict[str, Any]) -> _Part:
    before, keys = restored_value(replaced(scheduler.state_dict(), Tensor.clone)), set(vars(scheduler))

    def undo() -> None:
        scheduler.load_state_dict(before)
        for key in set(vars(scheduler)) - keys:
            delattr(scheduler, key)

    return _Part(type(scheduler).__name__, partial(scheduler.load_state_dict, state), undo)


def _matched_optimizers(copy: StateCopy, parts: TrainingParts, names: Mapping[int, str]) -> list[OptimizerPlan]:
    if len(copy.optimizers) != len(parts.optimizers):
        counts = f"{len(copy.optimizers)} optimizers, and there are {len(parts.optimizers)} here"
        raise _refused(copy, f"it has the state of {counts}")
    plans = []
    for number, (each, optimizer) in enumerate(zip(copy.optimizers, parts.optimizers, strict=True)):
        plan = OptimizerPlan(each, optimizer, names)
        if plan.mismatch:
            raise _refused(copy, f"optimizer {number} ({type(optimizer).__name__}) {plan.mismatch}")
        plans.append(plan)
    return plans


def _matched(copy: StateCopy, saved: Mapping[str, Tensor], named: Sequence[NamedTensor]) -> list[tuple[Tensor, Tensor]]:
    """Each tensor of the training with the one to fill it from."""
    pairs = []
    for each in named:
        source = saved.get(each.name)
        if source is None:
            if each.is_cache or each.is_average:  # an average that was begun later has nothing to go back to
                continue
            raise _refused(copy, f"{each.name} is missing in it")
        target = local_part(each.tensor)
        if target.shape != source.shape:
            if each.is_cache or each.name in copy.caches:
                continue
            raise _refused(copy, f"{each.name} is {tuple(source.shape)} in it and {tuple(target.shape)} here")
        if target.dtype is not source.dtype:
            raise _refused(copy, f"{each.name} is {source.dtype} in it and {target.dtype} here")
        pairs.append((target, source))
    here = {each.name for each in named}
    for name in copy.tensors:
        if name not in here and name not in copy.caches:
            raise _refused(copy, f"{name} is only in it")
    return pairs


def _restarted_averages(copy: StateCopy, parts: TrainingParts) -> tuple[Callable[[], list[tuple[Tensor, Tensor]]], int]:
    """Averages that were begun after the state: those of torch begin anew with its weights, as they are made.

    Gives what makes the pairs to fill them from, and how many other copies are left as they are: nobody knows whether
    they follow the weights.
    """
    found: list[tuple[AveragedModel, str]] = []
    left = 0
    prefixes = [""] if len(parts.models) == 1 else [f"model_{number}/" for number in range(len(parts.models))]
    for number, model in enumerate(parts.averaged):
        if any(name.startswith(f"average_{number}/") for name in copy.later.averaged):
            continue
        shapes = {each.name: each.tensor.shape for each in tensors_of_model(model) if not each.is_buffer}
        fitting = [
            each
            for each in prefixes
            if all(each + name in copy.tensors and copy.tensors[each + name].shape == shapes[name] for name in shapes)
        ]
        if isinstance(model, AveragedModel) and fitting:
            found.append((model, fitting[0]))
        else:
            left += 1

    def pairs() -> list[tuple[Tensor, Tensor]]:
        made = []
        for model, before in found:
            for each in tensors_of_model(model):
                target = local_part(each.tensor)
                source = copy.tensors.get(before + each.name)
                if each.tensor is model.n_averaged:
                    made.append((target, torch.zeros_like(target, device="cpu")))
                elif source is not None and source.shape == target.shape:
                    made.append((target, source.to(target.dtype, copy=True)))
        return made

    return pairs, left


def _refused(copy: StateCopy, reason: str) -> RestoreRefused:
    return RestoreRefused(
        f"The state of step {copy.step} does not fit this training: {reason}. Nothing was changed. Build "
        "models and optimizers as they were when it was saved."
    )


def _drop_gradients(parts: TrainingParts) -> None:
    """Gradients of the weights that were: zero, and not None, for scripts read them and CUDA graphs write there."""
    for parameter in _parameters(parts):
        gradient = parameter.grad
        if gradient is None:
            continue
        try:
            if gradient.layout is not torch.strided:
                parameter.grad = None
            else:
                local_part(gradient).data.zero_()
        except Exception:  # it must not go into the restored weights, whatever reads it
            parameter.grad = None


def _parameters(parts: TrainingParts) -> list[Tensor]:
    found = {id(each): each for model in parts.models for each in Module.parameters(model)}
    for optimizer in parts.optimizers:
        found.update((id(each), each) for group in optimizer.param_groups for each in group["params"])
    return list(found.values())
