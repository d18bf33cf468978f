"""Writes a sample where it can be read, and looks up curves in what came out."""

from __future__ import annotations

from pathlib import Path

from mlflow_stability.importers.open_log import read
from mlflow_stability.vocabulary.run import Metric, RunHistory


def history(folder: Path, content: str | bytes, name: str = "some.file") -> RunHistory:
    file = folder / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    (record,) = read(file)
    return record


def metric(run: RunHistory, name: str) -> Metric:
    return next(entry for entry in run.metrics if entry.name == name)


def curve(run: RunHistory, name: str) -> list[tuple[int, float]]:
    series = metric(run, name).series
    return list(zip(series.steps.tolist(), series.values.tolist(), strict=True))


def steps(run: RunHistory, name: str) -> list[int]:
    return metric(run, name).series.steps.tolist()
