"""Cards of runs, made of a loss or by hand."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from diagnosis.histories import falling, metric_of, run_of
from numpy.typing import ArrayLike

from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.diagnosis.run_card import run_card_of
from mlflow_stability.vocabulary.result import Mark, RunCard, Severity
from mlflow_stability.vocabulary.run import RunHistory


def history_of_loss(losses: ArrayLike, name: str = "a", **params: object) -> RunHistory:
    history = run_of(metric_of("train_loss", losses), params={key: str(value) for key, value in params.items()})
    return RunHistory(name, name, "json_lines", "all of it", history.metrics, params=history.params)


def card_of_loss(losses: ArrayLike, name: str = "a", **params: object) -> RunCard:
    history = history_of_loss(losses, name, **params)
    return run_card_of(history, diagnosis_of(history))


def diverging(count: int = 600, onset: int = 300, seed: int = 0) -> np.ndarray:
    return falling(count, seed=seed) * np.exp(np.maximum(0, np.arange(count) - onset) / 60)


def made(
    name: str, params: Mapping[str, object], *, lost: int | None = None, final: float = 2.0, last: int = 1000
) -> RunCard:
    """A card without a curve: its outcome, and where."""
    mark = Mark("divergence", Severity.CRITICAL, lost or 0, last, False)
    return RunCard(
        name,
        name,
        params={key: str(value) for key, value in params.items()},
        outcome="healthy" if lost is None else "diverged",
        severity=Severity.INFO if lost is None else Severity.CRITICAL,
        first_step=0,
        last_step=last,
        marks=() if lost is None else (mark,),
        onset=lost,
        divergence=lost,
        loss="loss",
        first_loss=5.0,
        final_loss=final,
        best_loss=final,
    )
