"""Looks for the cause in what the loader gives: the same batch again and again."""

from __future__ import annotations

import numpy as np

from mlflow_stability.diagnosis.look import Look, is_it, is_not, not_seen
from mlflow_stability.diagnosis.surroundings import Surroundings, shown


def repeated_data_look(around: Surroundings) -> Look:
    """Whether one batch comes again and again: the loss lost its noise, and falls."""
    loss, episode = around.loss, around.episode
    if loss is None:
        return not_seen("data: no loss was logged")
    row = int(episode.evidence.get("steps", 16))
    end = int(np.searchsorted(loss.steps, episode.start, side="right"))
    smooth, earlier = loss.values[max(0, end - row) : end], loss.values[: max(0, end - row)]
    smooth, earlier = smooth[np.isfinite(smooth)], earlier[np.isfinite(earlier)]
    if len(smooth) < 2 or len(earlier) < 2:
        return not_seen("data: too few losses before it")
    first = episode.start - row + 1
    if float(smooth[-1]) < float(earlier[-100:].min()):
        return is_it(
            "repeated_data",
            f"The same batch came again and again from about step {first} on: the loss lost its noise and fell to "
            f"{shown(float(smooth[-1]))}, below all of the {min(100, len(earlier))} losses before. The model learns "
            "one batch by heart.",
            f"{row} losses in a row without the noise from batch to batch, which was "
            f"{episode.evidence.get('usual', 0.0):.1%} of the loss",
            since=min(first, episode.start),
        )
    return is_not(
        f"repeated data: the loss lost its noise and did not fall, {shown(float(earlier[-1]))} before and "
        f"{shown(float(smooth[-1]))} after {row} steps"
    )


def deaf_look(around: Surroundings) -> Look:
    """Whether the loss lost its noise because the output does not depend on the input any more."""
    if around.loss is None or around.episode.kind != "repeated_data":
        return not_seen("output: no loss was logged")
    return is_it(
        "constant_output",
        "The loss lost its noise without falling: the output seems not to depend on the input any more.",
        since=around.episode.start,
        certainty="possible",
    )
