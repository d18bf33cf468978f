"""Run detectors and rules on any numbers, without a run or a log, by the same rules as for a log with these columns."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.analysis.diagnose import asked_detectors, concluded
from mlflow_stability.detectors.detector import Detector
from mlflow_stability.errors import SettingsError
from mlflow_stability.vocabulary.argument import check_arguments
from mlflow_stability.vocabulary.measured import Series, Signal
from mlflow_stability.vocabulary.result import Diagnosis
from mlflow_stability.vocabulary.run import Metric, RunHistory
from mlflow_stability.vocabulary.text import metric_meanings


@check_arguments
def judge(
    losses: Iterable[float],
    *,
    grad_norms: Iterable[float] | None = None,
    learning_rates: Iterable[float] | None = None,
    val_losses: Iterable[float] | None = None,
    steps: Iterable[int] | None = None,
    detectors: Iterable[Detector | str] | None = None,
    sensitivity: str = "normal",
    name: str = "losses",
) -> Diagnosis:
    """Run the detectors on any numbers, and conclude what went wrong.

    Args:
        losses: The training loss of each step; any iterable of numbers, NaN and infinity included.
        grad_norms: The gradient norm of each step.
        learning_rates: The learning rate of each step.
        val_losses: The validation loss; fewer values than losses are spread evenly over the steps.
        steps: The number of each step; without it, 0, 1, 2, ...
        detectors: Those that judge, as ``autolog(detectors=...)`` takes them.
        sensitivity: "low", "normal" or "high": moves all thresholds but your own.
        name: What the numbers are called in the diagnosis.

    Returns:
        The verdict, with findings, causes and remedies.

    Raises:
        SettingsError: A value that does not fit, or columns of different lengths.

    Example:

        >>> from mlflow_stability.kinds import LossSpike
        >>> losses = [2.0 / (1 + step / 60) + 0.01 * (step % 3) for step in range(600)]
        >>> losses[400] *= 1.3
        >>> [(episode.kind, episode.start) for episode in judge(losses).findings]
        [('loss_spike', 400)]
        >>> judge(losses, detectors=["divergence", LossSpike(smallest_rise=1.5)]).findings
        ()
    """
    values = _numbers("losses", losses)
    if not len(values):
        raise SettingsError("losses must have at least one number; it is empty.")
    at = np.arange(len(values)) if steps is None else np.asarray(list(steps), dtype=np.int64)
    if len(at) != len(values):
        raise SettingsError(f"steps must have as many values as losses, {len(values)}; it has {len(at)}.")
    columns = {"loss": (at, values)}
    for title, quantity, column in (
        ("grad_norms", "grad_norm", grad_norms),
        ("learning_rates", "learning_rate", learning_rates),
    ):
        if column is not None:
            numbers = _numbers(title, column)
            if len(numbers) != len(values):
                count = f"{len(values)}; it has {len(numbers)}"
                raise SettingsError(f"{title} must have as many values as losses, {count}.")
            columns[quantity] = at, numbers
    if val_losses is not None:
        numbers = _numbers("val_losses", val_losses)
        if len(numbers) > len(values):
            raise SettingsError(f"val_losses must have at most as many values as losses; it has {len(numbers)}.")
        places = np.linspace(len(values) / max(len(numbers), 1), len(values), len(numbers)).astype(np.int64) - 1
        columns["val_loss"] = at[places], numbers
    meanings = metric_meanings(list(columns))
    metrics = tuple(Metric(title, meanings[title], _series(title, *column)) for title, column in columns.items())
    history = RunHistory(name, name, "numbers", "the given numbers", metrics)
    return concluded(history, asked_detectors(detectors, sensitivity))


def _numbers(name: str, values: Iterable[float]) -> NDArray[np.float64]:
    try:
        return np.asarray([float(value) for value in values], dtype=np.float64)
    except (TypeError, ValueError):
        raise SettingsError(f"{name} must be an iterable of numbers; got {type(values).__name__}.") from None


def _series(title: str, steps: NDArray[np.int64], values: NDArray[np.float64]) -> Series:
    return Series(Signal(title), steps, values, np.zeros(len(steps), np.int64), np.zeros(len(steps)))
