"""Goes on in a new process where a recorded training ended, found by its run.

In: freshly built models and optimizers, and a run or a folder. Out: what was restored. The checkpoints of a run lie in
the journal's folder under its id; where they do not, they are fetched from the run's artifacts. Without a run or a
folder: what earlier attempts of the same job have left, where a launcher has started it again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch.nn import Module
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from mlflow_stability.journal.layout import make_root
from mlflow_stability.recovery.checkpoints import resume
from mlflow_stability.recovery.checkpoints.checkpoint_meta import read_meta
from mlflow_stability.recovery.checkpoints.checkpoint_reader import StoredCheckpoint, Which, damage_of
from mlflow_stability.recovery.checkpoints.job_folder import agreed_folder_of_job
from mlflow_stability.recovery.checkpoints.resume import Fetch, Resumed
from mlflow_stability.vocabulary.argument import with_known_names
from mlflow_stability.vocabulary.settings import CHECKPOINTS_FOLDER, Settings


@with_known_names
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
        extra_state: Objects by name, as in `autolog(extra_state=...)`: each gets its state by `load_state_dict()`.
    """
    if directory is None and run_id is not None:
        local = Settings().journal_root() / CHECKPOINTS_FOLDER / run_id
        directory = local if local.is_dir() else None
        fetch = fetch or fetched_from_run
    elif directory is None:
        directory = agreed_folder_of_job(Settings().journal_root())
    return resume.restore(
        model,
        optimizer,
        schedulers=schedulers,
        scaler=scaler,
        run_id=run_id,
        directory=directory,
        which=which,
        fetch=fetch,
        extra_state=extra_state,
    )


def fetched_from_run(run_id: str, which: Which) -> Path:
    """A folder with the checkpoint that was asked for, or the next older one, from the run's artifacts."""
    from mlflow_stability.tracking.store.reachable_client import answering_client  # MLflow takes seconds to load
    from mlflow_stability.tracking.write import RunCheckpoints

    checkpoints = RunCheckpoints(answering_client(), run_id)
    root = Settings().journal_root()
    make_root(root)
    place = root / CHECKPOINTS_FOLDER / run_id
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place) as room:
        found = []
        for name in checkpoints.names():
            file = checkpoints.meta(name, Path(room))
            meta = None if file is None else read_meta(file.read_bytes())
            if meta is not None and not (isinstance(which, int) and meta.step > which):
                found.append((meta, name))
    order = sorted(found, key=lambda each: (each[0].rank if which == "best" else 0.0, -each[0].step))
    for meta, name in order:
        if not damage_of(StoredCheckpoint(checkpoints.download(name, place), meta.step, meta)):
            break
    return place
