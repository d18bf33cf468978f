"""Draw the health of a run, a quantity by layer of two runs, or the weights of a model, without a recording of them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.analysis.compare import pair_of
from mlflow_stability.analysis.diagnose import cards_at, history_of
from mlflow_stability.analysis.source import source_text
from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.diagnosis.two_runs import BY_LAYER
from mlflow_stability.errors import SettingsError
from mlflow_stability.figures.curve import Curve, curve_of
from mlflow_stability.figures.dashboard import dashboard as draw
from mlflow_stability.figures.dashboard_data import MAX_CURVES, QUANTITIES, ROLLBACK, DashboardData, Mark, MarkSketch
from mlflow_stability.figures.histogram_ridge import histogram_ridges
from mlflow_stability.figures.layer_heatmap import layers_beside
from mlflow_stability.figures.style import Picture, saved
from mlflow_stability.tracking.keys import is_group
from mlflow_stability.vocabulary.argument import check_arguments, did_you_mean, one_of, short_repr
from mlflow_stability.vocabulary.measured.layer_arrays import BINS, LEVELS, LayerTable
from mlflow_stability.vocabulary.result import Diagnosis, RunCard
from mlflow_stability.vocabulary.run import RunHistory


@check_arguments
def dashboard(run_id_or_path: str | os.PathLike[str], tracking_uri: str | None = None) -> Picture:
    """The health of a run on one page: what happened, loss, gradient norm, learning rate, update ratio.

    Args:
        run_id_or_path: What ``diagnose`` takes.
        tracking_uri: The server of the run, if it is not ``MLFLOW_TRACKING_URI``.

    Returns:
        A matplotlib figure: ``figure.savefig("run.png")``, or the last line of a notebook's cell.

    Raises:
        StabilityError: What ``diagnose`` raises.

    Example:

        >>> figure = dashboard("mlruns_fixtures/0/rescue")
        >>> figure.savefig("run.png")
    """
    history = history_of(run_id_or_path, tracking_uri)
    return draw(board_of(history, diagnosis_of(history)))


def board_of(history: RunHistory, diagnosis: Diagnosis) -> DashboardData:
    curves: list[Curve] = []
    left_out: Counter[str] = Counter()
    for quantity in QUANTITIES:
        wanted = [
            metric
            for metric in history.of(quantity)
            if not (metric.meaning.duplicate_of or metric.meaning.bookkeeping)
            # Layers have pictures of their own.
            and (
                quantity not in ("grad_norm", "update_ratio")
                or not metric.meaning.place
                or is_group(metric.meaning.place)
            )
        ]
        curves.extend(curve_of(metric.series) for metric in wanted[:MAX_CURVES])
        left_out[quantity] = max(0, len(wanted) - MAX_CURVES)
    return DashboardData(history.name, diagnosis.verdict, tuple(curves), _marks(history, diagnosis), left_out)


def _marks(history: RunHistory, diagnosis: Diagnosis) -> tuple[Mark, ...]:
    """Return marks of the findings, and of the rollbacks with the steps that they led back to."""
    turns = MarkSketch()
    for event in history.events or ():
        if event.kind == ROLLBACK:
            turns.add_event(event, event.step)
    findings = (finding for finding in diagnosis.findings if finding.kind != ROLLBACK or not turns.marks())
    return (*turns.marks(), *(Mark(f.kind, f.severity, f.start, max(f.start, f.end), f.count) for f in findings))


@check_arguments
def compare_layers(
    run_a: str | os.PathLike[str],
    run_b: str | os.PathLike[str],
    quantity: str = "grad_norm",
    tracking_uri: str | None = None,
) -> Picture:
    """One quantity by layer of two runs, beside each other, aligned at the onset of trouble where there was any.

    Args:
        run_a: What ``diagnose`` takes.
        run_b: The same of the second.
        quantity: ``grad_norm``, ``update_ratio``, ``param_norm`` or ``attention_entropy`` (by head).
        tracking_uri: The server of the runs, if it is not ``MLFLOW_TRACKING_URI``.

    Returns:
        A matplotlib figure: ``figure.savefig("layers.png")``, or the last line of a notebook's cell.

    Raises:
        SettingsError: A run cannot be read, or has nothing of this by layer.

    Example:

        >>> figure = compare_layers("mlruns_fixtures/0/divergence", "mlruns_fixtures/0/healthy", "update_ratio")
        >>> figure.savefig("layers.png")
    """
    one_of(*BY_LAYER)["takes"].check("quantity", quantity)
    first, second = (
        _card(source_text(source, name), tracking_uri) for name, source in (("run_a", run_a), ("run_b", run_b))
    )
    pair = pair_of((first, second), tracking_uri)
    layers = next((layers for layers in pair.layers if layers.quantity == quantity), None)
    if layers is None:
        quantities = ", ".join(layers.quantity for layers in pair.layers)
        also = f" Both have {quantities}." if quantities else ""
        raise SettingsError(f"{' '.join(pair.lacking) or f'Neither run has {quantity} by layer.'}{also}")
    return layers_beside(layers, (first.name or first.source, second.name or second.source))


def _card(source: str, tracking_uri: str | None) -> RunCard:
    cards = list(cards_at(source, tracking_uri))
    if len(cards) > 1:
        raise SettingsError(f"{source} holds {len(cards)} runs; name one of them.")
    if cards[0].error:
        raise SettingsError(f"{source} could not be read: {cards[0].error}")
    return cards[0]


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
    chosen = dict(model.named_parameters())
    if parameter is not None:
        names = list(chosen)
        chosen = {name: tensor for name, tensor in chosen.items() if f"{name}.".startswith(f"{parameter}.")}
        if not chosen:
            raise SettingsError(f"The model has no parameter {parameter!r}.{did_you_mean(parameter, names)}")
    values = {name: _values(tensor if of == "weight" else tensor.grad) for name, tensor in chosen.items()}
    values = {name: array for name, array in values.items() if array.size}
    if not values:
        missing = "values" if of == "weight" else "a gradient: call it after backward() and before zero_grad()"
        raise SettingsError(f"No parameter {'of the model' if parameter is None else repr(parameter)} has {missing}.")
    rows = [_row(array) for array in values.values()]
    statistics, percentiles, edges, counts = (np.array([row[part] for row in rows]) for part in range(4))
    table = LayerTable(0, 0, of, tuple(values), statistics, percentiles, edges, counts.astype(np.int64))
    return saved(histogram_ridges([table], type(model).__name__, "parameters now"), save_path)


def _values(tensor: Any) -> NDArray[np.float64]:
    if tensor is None or not tensor.numel() or tensor.is_meta:
        return np.zeros(0)
    flat = tensor.detach().to_dense().flatten() if tensor.is_sparse else tensor.detach().flatten()
    sample = flat[:: -(-flat.numel() // MAX_VALUES)]
    array: NDArray[np.float64] = sample.double().cpu().numpy()
    return array


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
