"""`checkpoints`: lists, verifies and downloads what a run keeps to go back to."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

from mlflow_stability.cli.kit.options import last_option, run_asked_for, tracking_uri_option
from mlflow_stability.cli.kit.terminal import megabytes, notes_console, result_console
from mlflow_stability.errors import RunNotFoundError, SettingsError
from mlflow_stability.recovery.checkpoints import (
    CheckpointMeta,
    StoredCheckpoint,
    best_of,
    damage_of,
    last_good_of,
    read_meta,
    step_of_name,
)
from mlflow_stability.tracking.store.client import answering_client
from mlflow_stability.tracking.write.run_files import RunCheckpoints

DAMAGED = 1


@dataclass(frozen=True, slots=True)
class _Kept:
    """One checkpoint of the run."""

    name: str
    meta: CheckpointMeta | None
    """None where its upload broke off."""
    trouble: str = ""
    folder: Path | None = None
    """Where it was downloaded to."""


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
    run_id = run_asked_for(run, last, tracking_uri)
    checkpoints = RunCheckpoints(answering_client(tracking_uri), run_id)
    names = [each for each in checkpoints.names() if step_of_name(each) is not None]
    if not names:
        raise RunNotFoundError(
            f"Run {run_id} has no checkpoints among its artifacts. Was autolog(rollback=True) on, and did it train for "
            "longer than rollback_checkpoint_interval?"
        )
    if step is not None:
        names = [each for each in names if step_of_name(each) == step]
        if not names:
            raise SettingsError(f"Run {run_id} has no checkpoint of step {step}.")
    kept = list(_looked_at(checkpoints, names, verify, download))
    _show(kept, verify or download is not None, are_all=step is None)
    return DAMAGED if any(each.trouble for each in kept) else 0


def _looked_at(checkpoints: RunCheckpoints, names: list[str], verify: bool, download: Path | None) -> Iterator[_Kept]:
    notes = notes_console()
    with tempfile.TemporaryDirectory(prefix="mlflow-stability-") as room:
        for name in names:
            file = checkpoints.meta(name, Path(room, "meta"))
            meta = read_meta(file.read_bytes()) if file is not None else None
            if meta is None:
                yield _Kept(name, None, "incomplete: the upload was interrupted")
            elif not verify and download is None:
                yield _Kept(name, meta)
            else:
                with notes.status(f"{name}: {megabytes(meta.size)}"):
                    folder = checkpoints.download(name, download or Path(room))
                trouble = damage_of(StoredCheckpoint(folder, meta.step, meta))
                yield _Kept(name, meta, trouble, folder if download is not None else None)


def _show(kept: list[_Kept], verified: bool, *, are_all: bool) -> None:
    """The table; which is the best and the last good one can be said of all of them only."""
    metas = [each.meta for each in kept if each.meta is not None and not each.trouble]
    best, last_good = (best_of(metas), last_good_of(metas)) if are_all else (None, None)
    metric = next((each.best_by for each in metas if each.best_by), "")
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
    for each in kept:
        meta = each.meta
        if meta is None:
            row = ["", "", ""] + [""] * bool(metric)
            table.add_row(str(step_of_name(each.name)), *row, Text(each.trouble, "red"))
            continue
        when = datetime.fromtimestamp(meta.time).strftime("%Y-%m-%d %H:%M:%S")
        state = Text(each.trouble, "red") if each.trouble else _state(meta, verified)
        if each.folder is not None and not each.trouble:
            state.append(f", in {each.folder}")
        marks = [name for name, one in (("best", best), ("last good", last_good)) if one is meta]
        state.append(f" ({', '.join(marks)})" if marks else "", "bold")
        value = [("" if meta.value is None else f"{meta.value:.4g}")] if metric else []
        table.add_row(str(meta.step), f"{meta.loss:.4g}", *value, megabytes(meta.size), when, state)
    result_console().print(table)


def _state(meta: CheckpointMeta, verified: bool) -> Text:
    said = Text("good", "green") if meta.good else Text("not confirmed as good yet", "yellow")
    return said.append(", verified" if verified else "")
