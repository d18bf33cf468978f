"""Goes on in a new process where a training ended.

In: freshly built models and optimizers, and where the checkpoints are. Out: what was restored. Guarantees: only what is
whole and verified is used, the next older one where it is not; what does not fit is refused before anything changes;
a loop that draws the same data goes on bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.nn import Module
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from mlflow_stability.errors import CheckpointsRefused
from mlflow_stability.recovery.checkpoints.checkpoint_meta import STATE
from mlflow_stability.recovery.checkpoints.checkpoint_reader import ChosenCheckpoint, Which, find
from mlflow_stability.recovery.checkpoints.sharded_state import read_rank, read_sharded
from mlflow_stability.recovery.checkpoints.state_file import read_state
from mlflow_stability.recovery.state.restore import EVERYTHING, RestoreChoice, restore_state
from mlflow_stability.recovery.state.state_copy import OptimizerCopy, StateCopy
from mlflow_stability.recovery.state.training_parts import TrainingParts, find_parts, named_tensors, tensors_of_model
from mlflow_stability.recovery.state.value_tree import restored_value
from mlflow_stability.vocabulary.argument import Takes, or_list

Fetch = Callable[[str, Which], Path]
"""Brings the checkpoints of a run into a local directory: told the run's id and which one is wanted."""


def _several(kind: type, called: str) -> Takes:
    def read(given: Any) -> tuple[Any, ...]:
        found = (given,) if isinstance(given, kind) else tuple(given)
        if not found or not all(isinstance(each, kind) for each in found):
            raise TypeError
        return found

    return Takes(f"a {called}, or several", read)


def _which(given: Any) -> Which:
    if isinstance(given, bool) or not (isinstance(given, int) or given in _NAMED):
        raise ValueError
    found: Which = given
    return found


_NAMED = ("last_good", "best", "newest")
_MODELS = _several(Module, "torch.nn.Module")
_OPTIMIZERS = _several(Optimizer, "torch.optim.Optimizer")
_WHICH = Takes(or_list([*map(repr, _NAMED), "the number of a step"]), _which, _NAMED)


@dataclass(frozen=True, slots=True)
class Resumed:
    """Where the training goes on."""

    step: int
    """The last step that the restored state has seen."""
    loss: float
    folder: Path
    messages: tuple[str, ...]
    """What the user should know: damaged checkpoints that were passed over, parts that were not restored."""


def restore(
    model: Module | Sequence[Module],
    optimizer: Optimizer | Sequence[Optimizer] | None,
    *,
    schedulers: Sequence[LRScheduler] = (),
    scaler: Any = None,
    run_id: str | None = None,
    directory: Path | str | None = None,
    which: Which = "last_good",
    fetch: Fetch | None = None,
    extra_state: Mapping[str, Any] | None = None,
) -> Resumed:
    """Restore models, optimizers, schedules, loss scale, averages and random numbers from a checkpoint."""
    models: tuple[Module, ...] = _MODELS.checked("model", model)
    optimizers: tuple[Optimizer, ...] = () if optimizer is None else _OPTIMIZERS.checked("optimizer", optimizer)
    _WHICH.checked("which", which)
    found = _found(directory, run_id, which, fetch)
    folder, meta = found.checkpoint.folder, found.checkpoint.meta
    sharded = meta is not None and bool(meta.shards)
    copy = read_rank(folder, *_place()) if sharded else read_state(folder / STATE)
    if optimizer is None:
        return _restore_models(models, copy, found)
    around = find_parts(optimizers, scaler)
    parts = replace(around, models=models, schedulers=tuple(schedulers) or around.schedulers)
    parts = _arranged(copy, parts)
    messages, choice = list(found.messages), EVERYTHING
    if sharded:
        copy = read_sharded(folder, copy, parts)
    if not copy.rng:
        choice = replace(choice, rng=False)
        messages.append("Random numbers were not restored: the checkpoint was written by another number of processes.")
    if len(copy.later.schedulers) != len(parts.schedulers):
        choice = replace(choice, schedule=False)
        messages.append(
            f"The learning rate schedule was not restored: {len(copy.later.schedulers)} schedulers saved, "
            f"{len(parts.schedulers)} given. Pass them as `schedulers`."
        )
    if copy.later.scaler is not None and scaler is None:
        messages.append("The loss scale was not restored: pass the loss scaler as `scaler`.")
    if meta is not None and meta.left_out:
        messages.append(f"Not in the checkpoint, so not restored: {', '.join(meta.left_out)}.")
    extra = dict(extra_state or {})
    missing = sorted(set(extra) - set(copy.extra))
    if missing:
        held = ", ".join(sorted(copy.extra)) or "none"
        raise CheckpointsRefused(f"No extra state {missing[0]!r} in {folder}; it has {held}. Nothing was changed.")
    if left := sorted(set(copy.extra) - set(extra)):
        messages.append(f"Extra state not restored: {', '.join(left)}. Pass it as `extra_state`.")
    restore_state(copy, parts, choice)
    for name, each in extra.items():
        each.load_state_dict(restored_value(copy.extra[name]))
    loss = float("nan") if meta is None else meta.loss
    return Resumed(copy.step, loss, folder, tuple(messages))


def _restore_models(models: tuple[Module, ...], copy: StateCopy, found: ChosenCheckpoint) -> Resumed:
    """Restore weights and buffers alone, to evaluate the model; random numbers and learning rates stay as they are."""
    meta, folder = found.checkpoint.meta, found.checkpoint.folder
    if meta is not None and meta.shards:
        raise CheckpointsRefused(f"The state in {folder} is sharded: pass the optimizer as well. Nothing was changed.")
    later = replace(copy.later, averaged={}, hyper_parameters=(), schedulers=(), scaler=None)
    weights = replace(copy, optimizers=(), later=later)
    restore_state(weights, _arranged(weights, TrainingParts((), models=models)), RestoreChoice(scaler=False))
    loss = float("nan") if meta is None else meta.loss
    return Resumed(copy.step, loss, folder, found.messages)


def _place() -> tuple[int, int]:
    """The rank of this process, and how many there are."""
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()


def _found(directory: Path | str | None, run_id: str | None, which: Which, fetch: Fetch | None) -> ChosenCheckpoint:
    """The checkpoint: of the local directory first, then of what can be fetched of the run."""
    fetched = fetch if run_id is not None else None
    if directory is not None:
        try:
            return find(Path(directory), which)
        except CheckpointsRefused as refusal:
            if fetched is None or run_id is None:
                raise
            found = find(fetched(run_id, which), which)
            return replace(found, messages=(f"{refusal} Using the uploaded checkpoint instead.", *found.messages))
    if fetched is None or run_id is None:
        raise CheckpointsRefused(
            "Nothing to restore from: pass `directory` or `run_id`. Without them, checkpoints of earlier "
            "attempts of this job are taken, and there are none."
        )
    return find(fetched(run_id, which), which)


def _arranged(copy: StateCopy, parts: TrainingParts) -> TrainingParts:
    """Models, optimizers and schedulers in the order in which they were saved, as names, shapes and types tell."""
    if len(parts.models) > 1:
        prefixes = [f"model_{number}/" for number in range(len(parts.models))]
        wanted = [
            {
                name.removeprefix(prefix): tuple(each.shape)
                for name, each in copy.tensors.items()
                if name.startswith(prefix)
            }
            for prefix in prefixes
        ]
        parts = replace(parts, models=_in_order(parts.models, wanted, _shapes))
    names = {id(each.tensor): each.name for each in named_tensors(parts)}
    members = [(each.kind, _members(each)) for each in copy.optimizers]
    optimizers = _in_order(
        parts.optimizers,
        members,
        lambda each: (
            type(each).__name__,
            frozenset(names[id(one)] for group in each.param_groups for one in group["params"]),
        ),
    )
    kinds = [kind for kind, _ in copy.later.schedulers]
    schedulers = _in_order(parts.schedulers, kinds, lambda each: type(each).__name__)
    return replace(parts, optimizers=optimizers, schedulers=schedulers)


def _in_order(given: Sequence[Any], wanted: Sequence[Any], is_like: Callable[[Any], Any]) -> tuple[Any, ...]:
    """What was given, each where the first like it was wanted; what is like nothing fills the gaps in its order."""
    left = list(given)
    placed: list[Any] = []
    for each in wanted:
        match = next((one for one in left if is_like(one) == each), None)
        if match is not None:
            left.remove(match)
        placed.append(match)
    filled = [left.pop(0) if each is None and left else each for each in placed]
    return tuple(each for each in (*filled, *left) if each is not None)


def _shapes(model: Module) -> dict[str, tuple[int, ...]]:
    return {each.name: tuple(each.tensor.shape) for each in tensors_of_model(model)}


def _members(copy: OptimizerCopy) -> frozenset[str]:
    return frozenset(name for members in copy.members for name in members)
