"""Draw histograms of a model's weights or gradients as they are now, without a recording.

The model is not changed, and torch is not loaded here.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.errors import SettingsError
from mlflow_stability.figures.layers.histogram_ridge import histogram_ridges
from mlflow_stability.figures.style import Picture
from mlflow_stability.vocabulary.argument import check_arguments, did_you_mean, one_of, short_repr
from mlflow_stability.vocabulary.measured import BINS, LEVELS, LayerTable

MAX_VALUES = 1_000_000  # maximum number of values of one tensor, taken at even distances
MARGIN = 0.5  # how far a histogram reaches beyond p1 and p99, in parts of their distance


@check_arguments
def parameter_histograms(
    model: Any,
    parameter: str | None = None,
    of: Literal["weight", "gradient"] = "weight",
    *,
    save_path: str | os.PathLike[str] | None = None,
) -> Picture:
    """Histograms of a model's weights or gradients as they are now, with their width and the name of their shape.

    A shape is healthy, multi-modal, heavy-tailed, shifted or collapsed.

    Args:
        model: A ``torch.nn.Module``.
        parameter: The name of a parameter, or the beginning of several: ``"blocks.3"``. Default: all.
        of: ``"weight"``, or ``"gradient"`` for what `backward` left.
        save_path: A file that the figure is written to.

    Returns:
        A matplotlib figure.

    Raises:
        SettingsError: There is no such parameter, or none with a gradient.

    Example:

        >>> import torch
        >>> figure = parameter_histograms(torch.nn.Linear(64, 64), "weight", save_path="weights.png")
    """
    one_of("weight", "gradient")["takes"].check("of", of)
    if not callable(getattr(model, "named_parameters", None)):
        raise SettingsError(f"model must be a torch.nn.Module; got {short_repr(model)}.")
    chosen = _chosen(dict(model.named_parameters()), parameter)
    values = {name: _values(tensor if of == "weight" else tensor.grad) for name, tensor in chosen.items()}
    values = {name: array for name, array in values.items() if array.size}
    if not values:
        missing = "values" if of == "weight" else "a gradient: call it after backward() and before zero_grad()"
        raise SettingsError(f"No parameter {'of the model' if parameter is None else repr(parameter)} has {missing}.")
    picture = histogram_ridges([_table(of, values)], type(model).__name__, "parameters now")
    if save_path is not None:
        picture.savefig(save_path, dpi=150)
    return picture


def _chosen(parameters: Mapping[str, Any], name: str | None) -> Mapping[str, Any]:
    if name is None:
        return parameters
    chosen = {key: tensor for key, tensor in parameters.items() if f"{key}.".startswith(f"{name}.")}
    if not chosen:
        raise SettingsError(f"The model has no parameter {name!r}.{did_you_mean(name, parameters)}")
    return chosen


def _values(tensor: Any) -> NDArray[np.float64]:
    if tensor is None or not tensor.numel() or tensor.is_meta:
        return np.zeros(0)
    flat = tensor.detach().to_dense().flatten() if tensor.is_sparse else tensor.detach().flatten()
    sample = flat[:: -(-flat.numel() // MAX_VALUES)]
    array: NDArray[np.float64] = sample.double().cpu().numpy()
    return array


def _table(of: str, values: Mapping[str, NDArray[np.float64]]) -> LayerTable:
    rows = [_row(array) for array in values.values()]
    statistics, percentiles, edges, counts = (np.array([row[part] for row in rows]) for part in range(4))
    return LayerTable(0, 0, of, tuple(values), statistics, percentiles, edges, counts.astype(np.int64))


def _row(array: NDArray[np.float64]) -> tuple[Iterable[float], NDArray[np.float64], NDArray[np.float64], Any]:
    """Return statistics, percentiles, edges and counts as a recording has them; NaN if a value is not finite."""
    if not np.isfinite(array).all():
        return np.full(4, np.nan), np.full(len(LEVELS), np.nan), np.zeros(BINS + 1), np.zeros(BINS)
    statistics = (float(array.mean()), float(array.std()), float(np.abs(array).max()), float((array == 0).mean()))
    percentiles = np.quantile(array, LEVELS)
    first, last = percentiles[LEVELS.index(0.01)], percentiles[LEVELS.index(0.99)]
    reach = MARGIN * (last - first)
    low, high = max(percentiles[0], first - reach), min(percentiles[-1], last + reach)
    if not high > low:
        edges = np.full(BINS + 1, low)
        return statistics, percentiles, edges, np.r_[len(array), np.zeros(BINS - 1)]
    counts, edges = np.histogram(np.clip(array, low, high), BINS, (low, high))
    return statistics, percentiles, edges, counts
