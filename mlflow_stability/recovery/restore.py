"""Puts a saved state back into a running training, in place.

In: a copy, the parts of the training, and which of the state to take. Out: what was done. Promised: everything is
compared first, and a state that does not fit is refused with the first mismatch named, nothing changed; tensors are
filled where they lie, so that compiled optimizers and CUDA graphs keep their addresses; autograd's version counters
stay as they are, so that a graph which is still to be used (a GAN's other half) does not die of it; state born after
the copy is removed; gradients are set to zero.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mlflow_stability.errors import RestoreRefused
from mlflow_stability.recovery.host_copy import local_part
from mlflow_stability.recovery.optimizer_restore import OptimizerPlan, set_hyper_parameters
from mlflow_stability.recovery.rng_state import set_rng_state
from mlflow_stability.recovery.scaler_state import restore_scaler
from mlflow_stability.recovery.state_copy import StateCopy
from mlflow_stability.recovery.tensor_fill import fill
from mlflow_stability.recovery.tensor_names import NamedTensor, named_tensors
from mlflow_stability.recovery.training_parts import TrainingParts
from mlflow_stability.recovery.value_tree import restored_value


@dataclass(frozen=True, slots=True)
class RestoreChoice:
    """Which of a state is put back beside weights, buffers, moments and averages."""

    hyper_parameters: bool = False
    """Learning rates, betas, weight decay: False leaves them as the script has them now."""
    schedule: bool = False
    """The schedulers."""
    scaler: bool = True
    """The loss scale; how it grows and falls is set back with the hyper-parameters."""
    rng: bool = False
    """The random numbers: False draws what comes next afresh."""


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
    """Set the training back to this state."""
    return RestorePlan(copy, parts, choice).apply()


class RestorePlan:
    """A state, and a training that it was compared with and fits; RestoreRefused where it does not."""

    def __init__(self, copy: StateCopy, parts: TrainingParts, choice: RestoreChoice = RestoreChoice()) -> None:
        self._copy = copy
        self._parts = parts
        self._choice = choice
        named = named_tensors(parts)
        self._pairs = _matched(copy, {**copy.tensors, **copy.later.averaged}, named)
        self._optimizers = _matched_optimizers(copy, parts, {id(each.tensor): each.name for each in named})
        if choice.schedule and len(copy.later.schedulers) != len(parts.schedulers):
            counts = f"{len(copy.later.schedulers)} schedulers, and there are {len(parts.schedulers)} here"
            raise _refused(copy, f"it has the state of {counts}")
        copy.wait()

    def apply(self) -> Restored:
        """Do it."""
        began = time.perf_counter()
        copy, parts, choice = self._copy, self._parts, self._choice
        with torch.no_grad():
            fill(self._pairs)
            for plan in self._optimizers:
                plan.apply()
            _drop_gradients(parts)
        for optimizer, saved_groups in zip(parts.optimizers, copy.later.hyper_parameters, strict=True):
            set_hyper_parameters(optimizer, saved_groups, everything=choice.hyper_parameters)
        if choice.schedule:
            for scheduler, (_, state) in zip(parts.schedulers, copy.later.schedulers, strict=True):
                scheduler.load_state_dict(restored_value(state))
        if choice.scaler and copy.later.scaler is not None and parts.scaler is not None and parts.scaler.is_enabled():
            restore_scaler(parts.scaler, copy.later.scaler, choice.hyper_parameters)
        if choice.rng:
            set_rng_state(copy.rng)
        return Restored(
            step=copy.step,
            tensors=len(self._pairs) + sum(plan.filled for plan in self._optimizers),
            removed=sum(plan.removed for plan in self._optimizers),
            seconds=time.perf_counter() - began,
        )


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
            raise _refused(copy, f"{each.name} is not in it")
        target = local_part(each.tensor)
        if target.shape != source.shape:
            if each.is_cache or each.name in copy.caches:
                continue
            raise _refused(copy, f"{each.name} is {tuple(source.shape)} there and {tuple(target.shape)} here")
        if target.dtype is not source.dtype:
            raise _refused(copy, f"{each.name} is {source.dtype} there and {target.dtype} here")
        pairs.append((target, source))
    here = {each.name for each in named}
    for name in copy.tensors:
        if name not in here and name not in copy.caches:
            raise _refused(copy, f"{name} is in it and not here")
    return pairs


def _refused(copy: StateCopy, reason: str) -> RestoreRefused:
    return RestoreRefused(
        f"The state of step {copy.step} does not fit this training: {reason}. Nothing was changed. "
        "Build models and optimizers as they were when it was saved."
    )


def _drop_gradients(parts: TrainingParts) -> None:
    """Gradients of the weights that were: zero, and not None, for scripts read them and CUDA graphs write there."""
    dense = []
    for parameter in _parameters(parts):
        gradient = parameter.grad
        if gradient is None:
            continue
        if gradient.layout is torch.strided:
            dense.append(local_part(gradient).data)
        else:
            parameter.grad = None
    if dense:
        torch._foreach_zero_(dense)


def _parameters(parts: TrainingParts) -> list[Tensor]:
    found = {id(each): each for model in parts.models for each in model.parameters()}
    for optimizer in parts.optimizers:
        found.update((id(each), each) for group in optimizer.param_groups for each in group["params"])
    return list(found.values())
