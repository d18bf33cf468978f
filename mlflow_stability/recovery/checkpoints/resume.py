"""Continue a training from its checkpoints in a new process.

Checkpoints of a run are in the journal's folder under its id, otherwise among the run's artifacts. Guarantees: only
complete and verified checkpoints are used, else the next older one; what does not fit is refused before anything
changes; a loop that draws the same data continues bit for bit. All ranks use the checkpoints that rank 0 finds.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch.nn import Module
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from mlflow_stability.errors import CheckpointsRefused
from mlflow_stability.journal.layout import make_root
from mlflow_stability.journal.process_identity import launched_job
from mlflow_stability.probes.gradient_norm import rank_and_world_size, world_size
from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.recovery.checkpoints.state_file import read_rank, read_sharded, read_state
from mlflow_stability.recovery.checkpoints.stored_checkpoints import (
    STATE,
    ChosenCheckpoint,
    StoredCheckpoint,
    Which,
    damage_of,
    find,
    folder_of_job,
    read_meta,
)
from mlflow_stability.recovery.state.restore import EVERYTHING, RestoreChoice, restore_state
from mlflow_stability.recovery.state.state_copy import StateCopy
from mlflow_stability.recovery.state.training_parts import TrainingParts, find_parts, named_tensors, tensors_of_model
from mlflow_stability.recovery.state.value_tree import copy_for_training
from mlflow_stability.vocabulary.argument import Accepts, check_arguments, or_list
from mlflow_stability.vocabulary.settings import CHECKPOINTS_FOLDER, Settings

Fetch = Callable[[str, Which], Path]
"""Downloads checkpoints of a run into a local directory, given the run's id and which one is wanted."""
AGREE_SECONDS = 60.0  # how long a rank waits for rank 0 to say where the checkpoints are
_restore_calls = count()  # numbers the calls of `restore` in this process, so that each asks rank 0 again
_NAMED = ("last_good", "best", "newest")


def _read_several(kind: type, given: Any) -> tuple[Any, ...]:
    values = (given,) if isinstance(given, kind) else tuple(given)
    if not values or not all(isinstance(value, kind) for value in values):
        raise TypeError
    return values


def _read_which(given: Any) -> Which:
    if isinstance(given, bool) or not (isinstance(given, int) or given in _NAMED):
        raise ValueError
    which: Which = given
    return which


_MODELS = Accepts("a torch.nn.Module, or several", partial(_read_several, Module))
_OPTIMIZERS = Accepts("a torch.optim.Optimizer, or several", partial(_read_several, Optimizer))
_WHICH = Accepts(or_list([*map(repr, _NAMED), "the number of a step"]), _read_which, _NAMED)


@dataclass(frozen=True, slots=True)
class Resumed:
    step: int  # the last step that the restored state has seen
    loss: float
    folder: Path
    messages: tuple[str, ...]  # for the user: damaged checkpoints that were passed over, parts that were not restored


@check_arguments
def restore(
    model: Module | Sequence[Module],
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    *,
    schedulers: Sequence[LRScheduler] = (),
    scaler: Any = None,
    run_id: str | None = None,
    directory: Path | str | None = None,
    which: Which = "last_good",
    fetch: Fetch | None = None,
    extra_state: Mapping[str, Any] | None = None,
) -> Resumed:
    """Restore models, optimizers, schedules, loss scale, averages and random numbers of an earlier training.

    Args:
        model: The model or models, built as they were then.
        optimizer: Their optimizer or optimizers. None: to evaluate the model, weights and buffers alone are restored.
        schedulers: Learning rate schedulers; found by themselves where they hold one of the optimizers.
        scaler: The loss scaler, if there is one.
        run_id: The run whose checkpoints are wanted. Without it and `directory`: those of earlier attempts of this job,
            where `torchrun --max-restarts` has started it again.
        directory: The folder that holds them; that of the run in the journal's folder if not given.
        which: "last_good", "best", "newest", or a step.
        fetch: Brings the checkpoints of a run from elsewhere where the folder has none; from the run's artifacts if
            not given.
        extra_state: Objects by name, as in `RollbackPolicy(extra_state=...)`: each gets its state by
            `load_state_dict()`.

    Returns:
        The step of the checkpoint and messages about what could not be restored.

    Raises:
        CheckpointsRefused: There is no such checkpoint, or it does not fit the model; nothing was changed.

    Example:

        >>> restore(Module(), directory="nothing here")
        Traceback (most recent call last):
        mlflow_stability.errors.CheckpointsRefused: No checkpoint in nothing here.
    """
    if directory is None and run_id is not None:
        local = Settings().journal_root() / CHECKPOINTS_FOLDER / run_id
        directory, fetch = local if local.is_dir() else None, fetch or fetch_from_run
    elif directory is None:
        directory = agreed_folder_of_job(Settings().journal_root())
    models: tuple[Module, ...] = _MODELS.check("model", model)
    optimizers: tuple[Optimizer, ...] = () if optimizer is None else _OPTIMIZERS.check("optimizer", optimizer)
    _WHICH.check("which", which)
    download = None if fetch is None or run_id is None else partial(fetch, run_id, which)
    chosen = _choose_checkpoint(directory, which, download)
    folder, meta = chosen.checkpoint.folder, chosen.checkpoint.meta
    is_sharded = meta is not None and bool(meta.shards)
    if optimizer is None:
        if is_sharded:
            raise CheckpointsRefused(
                f"The state in {folder} is sharded: pass the optimizer as well. Nothing was changed."
            )
        # Weights and buffers alone, to evaluate the model; random numbers and learning rates stay as they are.
        copy, messages = read_state(folder / STATE), chosen.messages
        later = replace(copy.later, averaged={}, hyper_parameters=(), schedulers=(), scaler=None)
        weights = replace(copy, optimizers=(), later=later)
        restore_state(weights, _in_saved_order(weights, TrainingParts((), models=models)), RestoreChoice(scaler=False))
    else:
        around = find_parts(optimizers, scaler)
        parts = replace(around, models=models, schedulers=tuple(schedulers) or around.schedulers)
        copy = read_rank(folder, *rank_and_world_size()) if is_sharded else read_state(folder / STATE)
        parts = _in_saved_order(copy, parts)
        copy = read_sharded(folder, copy, parts) if is_sharded else copy
        messages = (*chosen.messages, *_restore_training(parts, copy, chosen, dict(extra_state or {})))
    return Resumed(copy.step, math.nan if meta is None else meta.loss, folder, messages)


def _restore_training(
    parts: TrainingParts, copy: StateCopy, chosen: ChosenCheckpoint, extra: Mapping[str, Any]
) -> list[str]:
    """Restore all that fits; return what was not restored."""
    messages, choice, meta = [], EVERYTHING, chosen.checkpoint.meta
    if not copy.rng:
        choice = replace(choice, rng=False)
        messages.append("Random numbers were not restored: the checkpoint was written by another number of processes.")
    if len(copy.later.schedulers) != len(parts.schedulers):
        choice = replace(choice, schedule=False)
        messages.append(
            f"The learning rate schedule was not restored: {len(copy.later.schedulers)} schedulers saved, "
            f"{len(parts.schedulers)} given. Pass them as `schedulers`."
        )
    if copy.later.scaler is not None and parts.scaler is None:
        messages.append("The loss scale was not restored: pass the loss scaler as `scaler`.")
    if meta is not None and meta.left_out:
        messages.append(f"Not in the checkpoint, so not restored: {', '.join(meta.left_out)}.")
    missing = sorted(set(extra) - set(copy.extra))
    if missing:
        held = ", ".join(sorted(copy.extra)) or "none"
        folder = chosen.checkpoint.folder
        raise CheckpointsRefused(f"No extra state {missing[0]!r} in {folder}; it has {held}. Nothing was changed.")
    if left := sorted(set(copy.extra) - set(extra)):
        messages.append(f"Extra state not restored: {', '.join(left)}. Pass it as `extra_state`.")
    restore_state(copy, parts, choice)
    for name, target in extra.items():
        target.load_state_dict(copy_for_training(copy.extra[name]))
    return messages


def agreed_folder_of_job(root: Path) -> Path | None:
    """Return `folder_of_job` of rank 0, as the job has another name on another machine."""
    distributed, job = torch.distributed, launched_job()
    if job is None or not job.restarts:
        return None
    if world_size() == 1:
        return folder_of_job(root)
    store, key = torch_api.default_store(), f"mlflow_stability/{job.restarts}/restore/{next(_restore_calls)}"
    if distributed.get_rank() == 0:
        folder = folder_of_job(root)
        store.set(key, str(folder or ""))
        return folder
    try:
        store.wait([key], timedelta(seconds=AGREE_SECONDS))
    except RuntimeError as error:
        raise CheckpointsRefused(
            f"The first rank did not call restore() within {AGREE_SECONDS:g} s: call it on every rank."
        ) from error
    answer: Any = store.get(key)
    return Path(bytes(answer).decode()) if answer else None


def fetch_from_run(run_id: str, which: Which) -> Path:
    """Download the wanted checkpoint of a run, or the next older one that is whole, and return its folder."""
    from mlflow_stability.tracking.client import answering_client  # MLflow takes seconds to load
    from mlflow_stability.tracking.run_files import RunCheckpoints

    checkpoints = RunCheckpoints(answering_client(), run_id)
    root = Settings().journal_root()
    make_root(root)
    place = root / CHECKPOINTS_FOLDER / run_id
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place) as room:
        stored = []
        for name in checkpoints.names():
            file = checkpoints.meta(name, Path(room))
            meta = None if file is None else read_meta(file.read_bytes())
            if meta is not None and not (isinstance(which, int) and meta.step > which):
                stored.append((meta, name))
    stored.sort(key=lambda pair: (pair[0].rank if which == "best" else 0.0, -pair[0].step))
    for meta, name in stored:
        if not damage_of(StoredCheckpoint(checkpoints.download(name, place), meta.step, meta)):
            break
    return place


def _choose_checkpoint(
    directory: Path | str | None, which: Which, download: Callable[[], Path] | None
) -> ChosenCheckpoint:
    """Look in the local directory first, then at what can be downloaded."""
    refusal = None
    if directory is not None:
        try:
            return find(Path(directory), which)
        except CheckpointsRefused as error:
            if download is None:
                raise
            refusal = error
    if download is None:
        raise CheckpointsRefused(
            "Nothing to restore from: pass `directory` or `run_id`. Without them, checkpoints of earlier "
            "attempts of this job are taken, and there are none."
        )
    chosen = find(download(), which)
    if refusal is None:
        return chosen
    return replace(chosen, messages=(f"{refusal} Using the uploaded checkpoint instead.", *chosen.messages))


def _in_saved_order(copy: StateCopy, parts: TrainingParts) -> TrainingParts:
    """Put models, optimizers and schedulers in the order in which they were saved, by names, shapes and types."""

    def shapes_of(model: Module) -> dict[str, tuple[int, ...]]:
        return {named.name: tuple(named.tensor.shape) for named in tensors_of_model(model)}

    if len(parts.models) > 1:
        wanted = []
        for number in range(len(parts.models)):
            prefix = f"model_{number}/"
            tensors = ((name, tensor) for name, tensor in copy.tensors.items() if name.startswith(prefix))
            wanted.append({name.removeprefix(prefix): tuple(tensor.shape) for name, tensor in tensors})
        parts = replace(parts, models=_match(parts.models, wanted, shapes_of))
    names = {id(named.tensor): named.name for named in named_tensors(parts)}
    members = [(saved.kind, frozenset(name for group in saved.members for name in group)) for saved in copy.optimizers]

    def members_of(optimizer: Optimizer) -> tuple[str, frozenset[str]]:
        parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
        return type(optimizer).__name__, frozenset(names[id(parameter)] for parameter in parameters)

    optimizers = _match(parts.optimizers, members, members_of)
    kinds = [kind for kind, _ in copy.later.schedulers]
    schedulers = _match(parts.schedulers, kinds, lambda scheduler: type(scheduler).__name__)
    return replace(parts, optimizers=optimizers, schedulers=schedulers)


def _match(given: Sequence[Any], wanted: Sequence[Any], describe: Callable[[Any], Any]) -> tuple[Any, ...]:
    """Put each object where the first description like its own is; those without one fill the gaps in their order."""
    left = list(given)
    placed: list[Any] = []
    for description in wanted:
        match = next((candidate for candidate in left if describe(candidate) == description), None)
        if match is not None:
            left.remove(match)
        placed.append(match)
    filled = [left.pop(0) if match is None and left else match for match in placed]
    return tuple(match for match in (*filled, *left) if match is not None)
