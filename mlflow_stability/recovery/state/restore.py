"""Restore a saved state in a running training, in place: all of it, or nothing.

Guarantees: a state that does not fit is refused with the first mismatch, before anything changes. The training is
copied aside, filled, and on any error filled again from that copy; where even that fails, what was not restored is
named. Tensors are filled in place, so that compiled optimizers and CUDA graphs keep their addresses; autograd versions
stay, so that a pending graph (a GAN's other half) remains usable; state made after the copy is removed; gradients are
set to zero.
"""

from __future__ import annotations

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
from mlflow_stability.probes.gradient_norm import local_part
from mlflow_stability.recovery.state.host_copy import HostCopies
from mlflow_stability.recovery.state.optimizer_restore import OptimizerPlan, fill
from mlflow_stability.recovery.state.state_copy import StateCopy, restore_scaler, rng_state, scaler_state, set_rng_state
from mlflow_stability.recovery.state.training_parts import NamedTensor, TrainingParts, named_tensors, tensors_of_model
from mlflow_stability.recovery.state.value_tree import copy_for_training, map_tensors


@dataclass(frozen=True, slots=True)
class RestoreChoice:
    """What is restored beside weights, buffers, moments and averages."""

    hyper_parameters: bool = False  # learning rates, betas, weight decay
    schedule: bool = False
    scaler: bool = True  # the loss scale; its growth settings are restored with the hyper-parameters
    rng: bool = False  # random number generators
    restart_averages: bool = False  # whether an `AveragedModel` that the state lacks, or a lost twin, restarts from it


EVERYTHING = RestoreChoice(hyper_parameters=True, schedule=True, scaler=True, rng=True)
"""For a new process that continues a training."""


def restore_state(copy: StateCopy, parts: TrainingParts, choice: RestoreChoice = RestoreChoice()) -> None:
    """Restore a state; an error leaves the training as it was."""
    plan = RestorePlan(copy, parts, choice)
    try:
        plan.apply()
    except Exception as error:
        if plan.left:
            raise StabilityError(f"{plan.torn} ({type(error).__name__}: {error})") from error
        raise
    plan.finish()


@dataclass(frozen=True, slots=True)
class TornState:
    """What a failed restore could not undo."""

    step: int  # the state that was to be restored
    parts: tuple[str, ...]

    def __str__(self) -> str:
        return f"Incomplete: these may now be of step {self.step}, or a mixture: {', '.join(self.parts)}."


@dataclass(frozen=True, slots=True)
class _Part:
    name: str
    apply: Callable[[], None]
    undo: Callable[[], None]


class RestorePlan:
    """A state that was compared with a training and fits; RestoreRefused where it does not.

    `aside`: a copy of the training as it is now, if there is one. After `apply` the plan is either undone or finished;
    the training must not run in between.
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
        pairs = _match_tensors(copy, {**copy.tensors, **copy.later.averaged}, named)
        restarted, self.copies_left = _find_restarted_averages(copy, parts)
        """Frozen copies of the models that this state does not have: they stay as they are."""
        self._optimizers = _match_optimizers(copy, parts, {id(tensor.tensor): tensor.name for tensor in named})
        if choice.schedule and len(copy.later.schedulers) != len(parts.schedulers):
            counts = f"{len(copy.later.schedulers)} schedulers, and there are {len(parts.schedulers)} here"
            raise _refusal(copy, f"it has the state of {counts}")
        copy.wait()
        self.left: tuple[str, ...] = ()  # what could not be undone: the training is in neither state
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
        return TornState(self._copy.step, tuple(self.left)) if self.left else None

    @torch.no_grad()
    def apply(self) -> None:
        try:
            for part in self._parts:
                self._begun.append(part)
                part.apply()
        except BaseException:
            self.undo()
            raise

    @torch.no_grad()
    def undo(self) -> tuple[str, ...]:
        """Restore the training from before `apply`; return what could not be restored."""
        left, again = [], []
        for part in reversed(self._begun):
            try:
                part.undo()
            except Exception as error:
                left.append(f"{part.name} ({type(error).__name__}: {error})")
                again.append(part)
        self._begun = again[::-1]
        self.left = tuple(left)
        return self.left

    def finish(self) -> None:
        """Zero old gradients, once all ranks have restored: scripts read them, and CUDA graphs write there."""
        models, optimizers = self._trained.models, self._trained.optimizers
        parameters = [parameter for model in models for parameter in Module.parameters(model)]
        parameters += [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
        for parameter in {id(parameter): parameter for parameter in parameters}.values():
            gradient = parameter.grad
            if gradient is None:
                continue
            try:
                if gradient.layout is not torch.strided:
                    parameter.grad = None
                else:
                    local_part(gradient).data.zero_()
            except Exception:  # old gradients must not change the restored weights
                parameter.grad = None

    def _other_parts(self, choice: RestoreChoice) -> list[_Part]:
        """Return all parts in order; what is small is copied for undoing."""
        copy, parts = self._copy, self._trained
        done = [_Part("weights, buffers and optimizer state", self._tensors.apply, self._tensors.undo)]
        for number, plan in enumerate(self._optimizers):
            done.append(_Part(f"settings and counters of optimizer {number}", plan.apply, plan.undo))
        if choice.schedule:
            for scheduler, (_, state) in zip(parts.schedulers, copy.later.schedulers, strict=True):
                done.append(_scheduler_part(scheduler, copy_for_training(state)))
        if choice.scaler and copy.later.scaler is not None and parts.scaler is not None and parts.scaler.is_enabled():
            before = map_tensors(scaler_state(parts.scaler), Tensor.clone)
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
    """Tensors to fill, and copies of their former values."""

    def __init__(self, pairs: Sequence[tuple[Tensor, Tensor]], aside: StateCopy | None) -> None:
        copies = () if aside is None else aside.copies
        missing = [live for live, _ in pairs if not any(live in copy for copy in copies)]
        self._copies = (*copies, HostCopies(missing, 0))
        self._pairs = pairs
        self._begun = 0

    def apply(self) -> None:
        for pair in self._pairs:
            self._begun += 1
            fill([pair])

    def undo(self) -> None:
        """Restore what they held; RuntimeError says how many could not be filled."""
        failed = 0
        for copy in self._copies:
            copy.wait()
        for live, _ in reversed(self._pairs[: self._begun]):  # reversed, as tensors may share memory
            try:
                fill([(live, next(copy.of(live) for copy in self._copies if live in copy))])
            except Exception:
                failed += 1
        if failed:
            raise RuntimeError(f"{failed} of {len(self._pairs)} tensors")


def misfit(copy: StateCopy, parts: TrainingParts) -> str:
    """Return why this state does not fit this training; empty where it does."""
    try:
        named = named_tensors(parts)
        _match_tensors(copy, {**copy.tensors, **copy.later.averaged}, named)
        _match_optimizers(copy, parts, {id(tensor.tensor): tensor.name for tensor in named})
    except RestoreRefused as refused:
        return str(refused)
    return ""


def _scheduler_part(scheduler: LRScheduler, state: dict[str, Any]) -> _Part:
    before, keys = copy_for_training(map_tensors(scheduler.state_dict(), Tensor.clone)), set(vars(scheduler))

    def undo() -> None:
        scheduler.load_state_dict(before)
        for key in set(vars(scheduler)) - keys:
            delattr(scheduler, key)

    return _Part(type(scheduler).__name__, partial(scheduler.load_state_dict, state), undo)


def _match_optimizers(copy: StateCopy, parts: TrainingParts, names: Mapping[int, str]) -> list[OptimizerPlan]:
    if len(copy.optimizers) != len(parts.optimizers):
        counts = f"{len(copy.optimizers)} optimizers, and there are {len(parts.optimizers)} here"
        raise _refusal(copy, f"it has the state of {counts}")
    plans = []
    for number, (saved, optimizer) in enumerate(zip(copy.optimizers, parts.optimizers, strict=True)):
        plan = OptimizerPlan(saved, optimizer, names)
        if plan.mismatch:
            raise _refusal(copy, f"optimizer {number} ({type(optimizer).__name__}) {plan.mismatch}")
        plans.append(plan)
    return plans


def _match_tensors(
    copy: StateCopy, saved: Mapping[str, Tensor], named: Sequence[NamedTensor]
) -> list[tuple[Tensor, Tensor]]:
    """Pair each tensor of the training with its saved value."""
    pairs = []
    for named_tensor in named:
        source = saved.get(named_tensor.name)
        if source is None:
            if named_tensor.is_cache or named_tensor.is_average:  # an average that started later
                continue
            raise _refusal(copy, f"{named_tensor.name} is missing in it")
        target = local_part(named_tensor.tensor)
        if target.shape != source.shape:
            if named_tensor.is_cache or named_tensor.name in copy.caches:
                continue
            raise _refusal(copy, f"{named_tensor.name} is {tuple(source.shape)} in it and {tuple(target.shape)} here")
        if target.dtype is not source.dtype:
            raise _refusal(copy, f"{named_tensor.name} is {source.dtype} in it and {target.dtype} here")
        pairs.append((target, source))
    here = {named_tensor.name for named_tensor in named}
    for name in copy.tensors:
        if name not in here and name not in copy.caches:
            raise _refusal(copy, f"{name} is only in it")
    return pairs


def _find_restarted_averages(
    copy: StateCopy, parts: TrainingParts
) -> tuple[Callable[[], list[tuple[Tensor, Tensor]]], int]:
    """Find averages that started after the state, and twins that were lost: torch's own and twins restart from it.

    Return a function that makes their pairs, and the number of other copies, which stay as they are: whether they
    follow the weights is unknown.
    """
    restarting: list[tuple[Module, str]] = []
    left = 0
    prefixes = [""] if len(parts.models) == 1 else [f"model_{number}/" for number in range(len(parts.models))]
    started_later = [
        model
        for number, model in enumerate(parts.averaged)
        if not any(name.startswith(f"average_{number}/") for name in copy.later.averaged)
    ]
    lost = {id(twin): twin for norm in copy.twins if (twin := norm.lost()) is not None}
    for model in (*started_later, *lost.values()):
        shapes = {named.name: named.tensor.shape for named in tensors_of_model(model) if not named.is_buffer}
        fitting = [
            prefix
            for prefix in prefixes
            if all(
                prefix + name in copy.tensors and copy.tensors[prefix + name].shape == shapes[name] for name in shapes
            )
        ]
        if fitting and (id(model) in lost or isinstance(model, AveragedModel)):
            restarting.append((model, fitting[0]))
        elif id(model) not in lost:
            left += 1

    def pairs() -> list[tuple[Tensor, Tensor]]:
        made = []
        for model, before in restarting:
            for named in tensors_of_model(model):
                target = local_part(named.tensor)
                source = copy.tensors.get(before + named.name)
                if isinstance(model, AveragedModel) and named.tensor is model.n_averaged:
                    made.append((target, torch.zeros_like(target, device="cpu")))
                elif source is not None and source.shape == target.shape:
                    made.append((target, source.to(target.dtype, copy=True)))
        return made

    return pairs, left


def _refusal(copy: StateCopy, reason: str) -> RestoreRefused:
    return RestoreRefused(
        f"The state of step {copy.step} does not fit this training: {reason}. Nothing was changed. Build "
        "models and optimizers as they were when it was saved."
    )
