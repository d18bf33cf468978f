"""Runs the script of a trainer in a process of its own, and brings back what it noted and what was recorded of it.

Each trial has a folder and an MLflow store of its own. Nothing may be downloaded, and no server is asked.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from forked.processes import TRAINING, Process, start
from mlflow import MlflowClient
from servers.ports import free_port
from trainers.script import Mode, Trainer

import mlflow_stability
from mlflow_stability.tracking.read.run_reader import read_run_history
from mlflow_stability.tracking.tag_names import is_recorded

TESTS = Path(__file__).resolve().parents[1]
TRIAL = TESTS / "trainers" / "trial.py"
PRELOADED = (*TRAINING, "lightning.pytorch", "lightning.fabric")
"""Half of the rows import Lightning, which takes longer than their training."""
LONGEST = 300.0
"""Seconds that a trial may take."""
LEARNING_RATE = "stability.trial.lr"
"""Where a run has that of its trial."""
ARRIVAL = 120.0
"""Seconds that a run may take to end in MLflow: on a busy machine that takes long."""


@dataclass(frozen=True)
class Series:
    """Loss and gradient norm of one track, step by step, and their weights where the script noted those."""

    losses: list[float]
    norms: list[float]
    weights: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Noted:
    """What the script noted of itself."""

    tracks: dict[str, Series]
    state: list[str]
    random: str
    finite: bool
    validation: list[float] = field(default_factory=list)
    """Losses that the trainer itself has computed."""
    own_log: list[float] = field(default_factory=list)
    """What the trainer's own log says of the loss of each step."""
    sampled: list[float] = field(default_factory=list)
    """The learning rates of the trials of a sweep."""


@dataclass(frozen=True)
class Recorded:
    """What came of it in MLflow."""

    tracks: dict[str, Series]
    """By run, recording and place."""
    status: tuple[str, ...]
    """Of all runs."""
    tags: dict[str, str]
    validation: list[float] = field(default_factory=list)
    """Validation losses, of all runs."""
    sampled: list[float] = field(default_factory=list)
    """The learning rates that runs have as parameters of their trials."""


@dataclass(frozen=True)
class Trial:
    """One run of a script."""

    noted: Noted | None
    recorded: Recorded | None
    lines: list[str]
    """Our warnings."""
    versions: dict[str, str]
    error: str = ""


def template_store(folder: Path) -> Path:
    """An empty store: making one takes seconds, copying it none."""
    database = folder / "template.db"
    MlflowClient(tracking_uri=f"sqlite:///{database}").search_experiments()
    return database


def run_trial(trainer: Trainer, mode: Mode, python: Path, folder: Path, template: Path) -> Trial:
    """Train, wait for the end, read the run."""
    folder.mkdir(parents=True)
    shutil.copy(template, folder / "mlflow.db")
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    client = MlflowClient(uri)
    client.create_experiment("table", (folder / "artifacts").as_uri())
    outs = [folder / f"rank_{rank}.json" for rank in range(trainer.processes)]
    environments = _environments(trainer.processes, uri)
    wait = f"{ARRIVAL:.0f}" if mode == "watched" else "0"
    offline = "0" if mode == "watched" else "1"  # only what was watched is read from its run
    delivery = {"MLFLOW_STABILITY_EXIT_WAIT": wait, "MLFLOW_STABILITY_OFFLINE": offline}
    environments = [{**item, **delivery} for item in environments]
    started = [
        _start(python, [trainer.name, mode, str(out)], folder, environment, out)
        for out, environment in zip(outs, environments, strict=True)
    ]
    error = _wait(started)
    out = outs[0]
    if not error and any(item.returncode for item in started):
        error = _text(out.with_suffix(".error")) or f"exit status {started[0].returncode}: {_last_line(out)}"
    noted = _noted(out) if out.exists() else None
    recorded = _recorded(client, uri) if mode == "watched" else None
    _end_what_delivers(folder)
    lines = list(dict.fromkeys(line for item in outs for line in _text(item.with_suffix(".log")).splitlines()))
    return Trial(noted, recorded, lines, json.loads(_text(out.with_suffix(".versions")) or "{}"), error)


def _environments(processes: int, uri: str) -> list[dict[str, str]]:
    common = {
        **{name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")},
        "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)]),
        "MLFLOW_TRACKING_URI": uri,
        "MLFLOW_EXPERIMENT_NAME": "table",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "WANDB_DISABLED": "true",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }
    if processes == 1:
        return [common]
    ranks = {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes)}
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return [{**common, **ranks, **meeting, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(processes)]


def _start(python: Path, arguments: list[str], folder: Path, environment: dict[str, str], out: Path) -> Process:
    with out.with_suffix(".printed").open("wb") as printed:
        return start(
            TRIAL,
            *arguments,
            environment=environment,
            directory=folder,
            printed=printed,
            python=str(python),
            modules=PRELOADED,
        )


def _wait(started: list[Process]) -> str:
    until = time.monotonic() + LONGEST
    try:
        for process in started:
            process.wait(max(0.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        return f"not over after {LONGEST:.0f} s"
    finally:
        for process in started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return ""


def _end_what_delivers(folder: Path) -> None:
    """The next trial wants the processor, and this one has been read."""
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if "mlflow_stability.courier" in command and any(str(folder) in group for group in command):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def _noted(out: Path) -> Noted:
    page: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    tracks = {
        name: Series(page["losses"].get(name, []), page["norms"].get(name, []), weights)
        for name, weights in page["weights"].items()
    }
    return Noted(
        tracks, page["state"], page["random"], page["finite"], page["validation"], page["own_log"], page["sampled"]
    )


def _recorded(client: MlflowClient, uri: str) -> Recorded:
    """All runs, once they are over."""
    until = time.monotonic() + ARRIVAL
    while True:
        experiments = [experiment.experiment_id for experiment in client.search_experiments()]
        runs = client.search_runs(experiments)
        if all(run.info.status != "RUNNING" for run in runs) or time.monotonic() > until:
            break
        time.sleep(0.5)
    tracks: dict[str, Series] = {}
    tags: dict[str, str] = {}
    validation: list[float] = []
    for run in runs:
        if is_recorded(run.data.tags):
            tags |= read_run_history(run.info.run_id, uri).tags
            frame = mlflow_stability.load_run(run.info.run_id, uri, layout="long")
            tracks |= _tracks(run.info.run_id, frame)
            validation += frame[frame["quantity"] == "val_loss"].sort_values("step")["value"].tolist()
    sampled = [float(run.data.params[LEARNING_RATE]) for run in runs if LEARNING_RATE in run.data.params]
    return Recorded(tracks, tuple(run.info.status for run in runs), tags, validation, sampled)


def _tracks(run: str, frame: Any) -> dict[str, Series]:
    """Loss and norm by recording and track: a layer has a norm, but no loss."""
    values = {}
    for (recording, place), rows in frame.groupby(["recording", "place"], observed=True):
        by_name = {
            name: list(values.sort_values("step")["value"]) for name, values in rows.groupby("quantity", observed=True)
        }
        if "step_time" in by_name or "loss" in by_name:
            values[f"{run}:{recording}:{place}"] = Series(by_name.get("loss", []), by_name.get("grad_norm", []))
    return values


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def _last_line(out: Path) -> str:
    return (_text(out.with_suffix(".printed")).strip().splitlines() or ["nothing printed"])[-1]
