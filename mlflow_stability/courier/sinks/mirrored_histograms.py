"""Reads the histograms by layer that mirrors get, from the tables beside a journal."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np

from mlflow_stability.alerts.metrics.scalar_writer import LayerHistogram
from mlflow_stability.errors import JournalError
from mlflow_stability.journal.layer_tables import LayerTableFile, layer_table_files, read_layer_table

_logger = logging.getLogger("mlflow_stability.courier")


def new_histograms(folder: Path, until: int, *, over: bool) -> Iterator[tuple[int, Sequence[LayerTableFile]]]:
    """The tables with histograms behind step `until`, by step; without the newest step unless training is over, for
    another table of it may come.
    """
    files = [file for file in layer_table_files(folder) if file.step > until]
    if files and not over:
        files = [file for file in files if file.step < files[-1].step]
    for step, of_step in groupby((file for file in files if file.has_histograms), key=lambda file: file.step):
        yield step, list(of_step)


def histograms_of(file: LayerTableFile, section: str, offset: int) -> list[LayerHistogram]:
    """A histogram for each layer of a table whose values are finite; none where the file is damaged or gone."""
    try:
        table, written = read_layer_table(file.path), file.path.stat().st_mtime
    except (JournalError, OSError) as error:
        _logger.warning("%s", error)
        return []
    step, name = table.step + offset, f"{section}/histograms/{table.what}"
    return [
        LayerHistogram(f"{name}/{layer}", step, written, edges.tolist(), counts.tolist())
        for layer, edges, counts in zip(table.layers, table.edges, table.counts, strict=True)
        if np.isfinite(edges).all()
    ]
