"""Load a recorded run as a pandas DataFrame.

Without the full record, the points of MLflow's metric tables are returned, with a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Literal

import numpy as np
import pandas as pd

from mlflow_stability.analysis.source import run_id_of
from mlflow_stability.tracking.keys import is_group
from mlflow_stability.tracking.read.run_reader import RunReader
from mlflow_stability.tracking.read.run_record import RunRecord
from mlflow_stability.vocabulary.argument import Accepts, check_arguments, one_of
from mlflow_stability.vocabulary.measured.layer_arrays import PERCENTILES, STATISTICS, LayerTable


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError
    return value


_LAYOUT = one_of("wide", "long", "layers")["takes"]
_RUN_ID = Accepts("the id of an MLflow run", _text)
_logger = logging.getLogger(__name__)


@check_arguments
def load_run(
    run_id: str, tracking_uri: str | None = None, layout: Literal["wide", "long", "layers"] = "wide"
) -> pd.DataFrame:
    """Everything that was recorded of a run, as a table.

    ``layout="wide"`` has one row for each step, with the columns ``recording``, ``attempt``, ``step``, ``time``
    (seconds since the epoch) and one for each signal: ``loss``, ``learning_rate@group_1``. A signal that was not
    measured at a step is NaN there. ``layout="long"`` has one row for each value, with the columns ``recording``,
    ``attempt``, ``step``, ``time``, ``quantity``, ``place``, ``value``. ``layout="layers"`` has one row for each layer
    and step. Its columns are ``recording``, ``attempt``, ``step``, ``layer``, and each quantity that is measured by
    layer: ``grad_norm``, ``activation_rms``. Gradients and weights have ``gradient_mean``, ``gradient_std``,
    ``gradient_abs_max``, ``gradient_zeros`` (the share of zeros) and percentiles: ``weight_mean``, ``weight_p50``.

    Args:
        run_id: The id of the run, its beginning, or its name.
        tracking_uri: The server of the run, if it is not ``MLFLOW_TRACKING_URI``.
        layout: "wide", "long" or "layers".

    Returns:
        A pandas `DataFrame`.

    Raises:
        RunNotFoundError: There is no such run, or nothing of ours in it.
        TrackingError: The server cannot be reached.

    Example:

        >>> load_run("0f3a", layout="tall")
        Traceback (most recent call last):
        mlflow_stability.errors.SettingsError: layout must be 'wide', 'long' or 'layers'; got 'tall' (str).
    """
    _LAYOUT.check("layout", layout)
    _RUN_ID.check("run_id", run_id)
    reader = RunReader(run_id_of(run_id, tracking_uri), tracking_uri)
    record = reader.record()
    if not record.complete:
        _logger.warning(
            "Run %s has no full record in its artifacts: these are the %d points of its metric tables.",
            run_id,
            len(record),
        )
    if layout == "layers":
        return _by_layer(record, reader.layer_tables())
    return _wide(record) if layout == "wide" else _long(record)


_ROW = ["recording", "attempt", "step", "layer"]


def _by_layer(record: RunRecord, tables: Sequence[tuple[int, LayerTable]]) -> pd.DataFrame:
    """Return one row per layer and step; of repeated values in a step, the later one."""
    of_layers = np.array([bool(signal.place) and not is_group(signal.place) for signal in record.signals], bool)
    rows = of_layers[record.signal] if len(record.signals) else np.zeros(0, bool)
    values = _long(record)[rows].rename(columns={"place": "layer"}).astype({"layer": str, "quantity": str})
    measured = values.groupby([*_ROW, "quantity"], sort=False)["value"].last().unstack("quantity")
    measured = measured.rename_axis(columns=None)
    spread = [_statistics(recording, table) for recording, table in tables]
    if spread:
        statistics = pd.concat(spread).groupby(level=_ROW, sort=False).last()
        measured = measured.join(statistics, how="outer") if len(measured) else statistics
    layers = [layer for _, table in tables for layer in table.layers]
    order = {layer: place for place, layer in enumerate(dict.fromkeys([*layers, *values["layer"]]))}
    return measured.reset_index().sort_values(
        _ROW, key=lambda column: column.map(order) if column.name == "layer" else column, ignore_index=True
    )


def _statistics(recording: int, table: LayerTable) -> pd.DataFrame:
    """Return a table of gradients or of weights, as columns of that name."""
    values = np.concatenate([table.statistics, table.percentiles], axis=1)
    names = [*STATISTICS, *(PERCENTILES if table.has_histograms else ())]
    rows = [(recording, table.attempt, table.step, layer) for layer in table.layers]
    index = pd.MultiIndex.from_tuples(rows, names=_ROW)
    return pd.DataFrame(values, index, pd.Index([f"{table.what}_{name}" for name in names]))


def _long(record: RunRecord) -> pd.DataFrame:
    """Return one row per value, in the order of measurement."""
    return pd.DataFrame(
        {
            "recording": record.recording,
            "attempt": record.attempt,
            "step": record.step,
            "time": record.time,
            "quantity": _names([signal.quantity for signal in record.signals], record),
            "place": _names([signal.place for signal in record.signals], record),
            "value": record.value,
        }
    )


def _names(names: list[str], record: RunRecord) -> pd.Categorical[str]:
    different = list(dict.fromkeys(names))
    codes = np.array([different.index(name) for name in names], np.int32)[record.signal]
    return pd.Categorical.from_codes(codes, pd.Index(different))


def _wide(record: RunRecord) -> pd.DataFrame:
    """Return one row per step; of repeated values in a step, the later one."""
    where = np.stack([record.recording, record.step, record.attempt], axis=1)
    rows, first, row_of = np.unique(where, axis=0, return_index=True, return_inverse=True)
    values = np.full((len(rows), len(record.signals)), np.nan)
    values[row_of.reshape(-1), record.signal] = record.value
    head = pd.DataFrame(
        {
            "recording": record.recording[first],
            "attempt": record.attempt[first],
            "step": record.step[first],
            "time": record.time[first],
        }
    )
    body = pd.DataFrame(values, columns=[str(signal) for signal in record.signals])
    return pd.concat([head, body], axis=1)
