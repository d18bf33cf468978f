"""Draws the picture of the README: one training that died and the same training with rollback, from the demo.

python tests/manual/draw_rescue.py      draws mlflow_stability/manual/rescue.png again, in about a minute
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from pathlib import Path

if __name__ == "__main__":  # as pytest's pythonpath does
    sys.path.insert(0, str(Path(__file__).parents[1]))

import mlflow
import numpy as np
from architecture.repository import PACKAGE
from rich.console import Console

from mlflow_stability.cli.commands.demo import Trainings, train_demo
from mlflow_stability.demo.catalog import demo_faults
from mlflow_stability.figures.style import BAD, FAINT, LINES, Picture, new_figure, our_style, png

STEPS = 400


def picture(trainings: Trainings) -> Picture:
    """Both curves, and what went wrong."""
    troubles = demo_faults(STEPS)
    with our_style():
        figure = new_figure(3.2)
        axes = figure.subplots()
        steps = np.arange(1, STEPS + 1)
        for training, colour, name in (
            (trainings.bare, BAD, "without: NaN at step 320, lost"),
            (trainings.rescued, LINES[0], "autolog(rollback=True)"),
        ):
            losses = np.array(training.losses)
            axes.plot(steps[: len(losses)], losses, color=colour, linewidth=1.4, label=name)
        axes.axvspan(troubles.first, troubles.last, color=FAINT, alpha=0.15, linewidth=0)
        beside = {"textcoords": "offset points", "va": "center"}
        axes.annotate("learning rate × 30", (troubles.first, 3.0), (-6, 0), ha="right", **beside)
        axes.annotate("empty batch: loss is NaN", (troubles.empty, 2.0), (8, 0), **beside)
        axes.axvline(troubles.empty, color=FAINT, linewidth=0.8, linestyle=":")
        axes.set(yscale="log", xlabel="step", ylabel="training loss", xlim=(1, STEPS))
        axes.set_yticks([0.3, 0.5, 1, 2, 3], ["0.3", "0.5", "1", "2", "3"])
        axes.minorticks_off()
        axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(0.26, 0.82))
        figure.tight_layout()
    return figure


def main() -> None:
    """Train and draw."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
        os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder}/mlflow.db"
        logging.getLogger("mlflow").setLevel(logging.WARNING)
        trainings = train_demo(STEPS, Console(stderr=True))
        (PACKAGE / "manual" / "rescue.png").write_bytes(png(picture(trainings)))


if __name__ == "__main__":
    main()
