"""`checkpoints`: list, verify and download the checkpoints of a run."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

from mlflow_stability.cli.main import FOUND
from mlflow_stability.cli.options import last_option, tracking_uri_option, typed_run
from mlflow_stability.cli.output import megabytes, notes_console, result_console
from mlflow_stability.errors import RunNotFoundError, SettingsError
from mlflow_stability.recovery.checkpoints.stored_checkpoints import (
    CheckpointMeta,
    StoredCheckpoint,
    best_of,
    damage_of,
    last_good_of,
    read_meta,
    step_of_name,
)
from mlflow_stability.tracking.client import answering_client
from mlflow_stability.tracking.run_files import RunCheckpoints
from mlflow_stability.vocabulary.rollback_policy import RollbackPolicy


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    name: str
    meta: CheckpointMeta | None  # none where its upload was interrupted
    problem: str = ""
    folder: Path | None = None  # the folder of the download


@click.command("checkpoints")
@click.argument("run", required=False)
@last_option
@click.option("--verify", is_flag=True, help="Download each checkpoint and verify its SHA-256.")
@click.option(
    "--download",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Download into this folder and verify.",
)
@click.option("--step", type=int, metavar="N", help="Only the checkpoint of this step.")
@tracking_uri_option
def command(
    run: str | None, last: bool, verify: bool, download: Path | None, step: int | None, tracking_uri: str | None
) -> int:
    """List, verify and download the checkpoints of a run.

    `mlflow_stability.restore(model, optimizer, run_id=...)` resumes from one of them.

    Exit code 1: at least one checkpoint is damaged.
    """
    run_id = typed_run(run, last, tracking_uri)
    stored = RunCheckpoints(answering_client(tracking_uri), run_id)
    names = [name for name in stored.names() if step_of_name(name) is not None]
    if not names:
        default = RollbackPolicy()
        raise RunNotFoundError(
            f"Run {run_id} has no checkpoints among its artifacts. Was autolog(rollback=True) on, and did it train for "
            f"longer than rollback_checkpoint_interval + healthy_after ({default.rollback_checkpoint_interval} + "
            f"{default.healthy_after} steps by default)?"
        )
    if step is not None:
        names = [name for name in names if step_of_name(name) == step]
        if not names:
            raise SettingsError(f"Run {run_id} has no checkpoint of step {step}.")
    checkpoints = list(_read(stored, names, verify, download))
    _show(checkpoints, verify or download is not None, are_all=step is None)
    return FOUND if any(checkpoint.problem for checkpoint in checkpoints) else 0


def _read(stored: RunCheckpoints, names: list[str], verify: bool, download: Path | None) -> Iterator[_Checkpoint]:
    notes = notes_console()
    with tempfile.TemporaryDirectory(prefix="mlflow-stability-") as temporary:
        for name in names:
            file = stored.meta(name, Path(temporary, "meta"))
            meta = read_meta(file.read_bytes()) if file is not None else None
            if meta is None:
                yield _Checkpoint(name, None, "incomplete: the upload was interrupted")
            elif not verify and download is None:
                yield _Checkpoint(name, meta)
            else:
                with notes.status(f"{name}: {megabytes(meta.size)}"):
                    folder = stored.download(name, download or Path(temporary))
                problem = damage_of(StoredCheckpoint(folder, meta.step, meta))
                yield _Checkpoint(name, meta, problem, folder if download is not None else None)


def _show(checkpoints: list[_Checkpoint], verified: bool, *, are_all: bool) -> None:
    """Show a table; only among all of them the best and the last good one can be marked."""
    metas = [item.meta for item in checkpoints if item.meta is not None and not item.problem]
    best, last_good = (best_of(metas), last_good_of(metas)) if are_all else (None, None)
    metric = next((meta.best_by for meta in metas if meta.best_by), "")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title, side in (
        ("step", "right"),
        ("loss", "right"),
        *([(metric, "right")] if metric else []),
        ("size", "right"),
        ("written", "left"),
        ("state", "left"),
    ):
        table.add_column(title, justify=side, no_wrap=title != "state")  # type: ignore[arg-type]
    for checkpoint in checkpoints:
        meta = checkpoint.meta
        if meta is None:
            row = ["", "", ""] + [""] * bool(metric)
            table.add_row(str(step_of_name(checkpoint.name)), *row, Text(checkpoint.problem, "red"))
            continue
        when = datetime.fromtimestamp(meta.time).strftime("%Y-%m-%d %H:%M:%S")
        state = Text(checkpoint.problem, "red") if checkpoint.problem else _state(meta, verified)
        if checkpoint.folder is not None and not checkpoint.problem:
            state.append(f", in {checkpoint.folder}")
        marks = [name for name, marked in (("best", best), ("last good", last_good)) if marked is meta]
        state.append(f" ({', '.join(marks)})" if marks else "", "bold")
        value = [("" if meta.value is None else f"{meta.value:.4g}")] if metric else []
        table.add_row(str(meta.step), f"{meta.loss:.4g}", *value, megabytes(meta.size), when, state)
    result_console().print(table)


def _state(meta: CheckpointMeta, verified: bool) -> Text:
    state = Text("good", "green") if meta.good else Text("not confirmed as good yet", "yellow")
    return state.append(", verified" if verified else "")
