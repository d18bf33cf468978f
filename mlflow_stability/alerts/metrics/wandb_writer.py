"""Writes a Weights & Biases run, offline unless ``WANDB_MODE`` says otherwise; ``wandb sync`` uploads it.

The run has the id and the name of the MLflow run. Its steps are values of the key ``stability/step``: W&B's own step
may never fall, and some last values belong to earlier steps.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from mlflow_stability.alerts.metrics.scalar_writer import LayerHistogram, MirroredRun, Scalar

PROJECT = "mlflow-stability"
STEP = "stability/step"


class WandbWriter:
    """One run."""

    def __init__(self, target: str, run: MirroredRun, _: Mapping[str, Any]) -> None:
        import wandb

        self._run: Any = wandb.init(
            project=target or PROJECT,
            id=run.run_id,
            name=run.name or None,
            dir=run.directory or None,
            mode=os.environ.get("WANDB_MODE", "offline"),
            resume="allow",
            settings=wandb.Settings(silent=True, console="off", x_disable_stats=True, save_code=False),
        )
        self._run.define_metric("*", step_metric=STEP, summary="min,mean,last")

    def write(self, scalars: Sequence[Scalar]) -> None:
        """Log the values of each step."""
        for step, several in groupby(scalars, key=lambda each: each.step):
            self._run.log({STEP: step, **{each.key: each.value for each in several}})

    def write_histograms(self, histograms: Sequence[LayerHistogram]) -> None:
        """Log the histograms of each step."""
        import wandb

        for step, of_step in groupby(histograms, key=lambda histogram: histogram.step):
            drawn = {
                histogram.key: wandb.Histogram(np_histogram=(histogram.counts, histogram.edges))
                for histogram in of_step
            }
            self._run.log({STEP: step, **drawn})

    def saved(self) -> Mapping[str, Any]:
        """W&B finds its run by the id."""
        return {}

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()
