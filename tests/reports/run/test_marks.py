from __future__ import annotations

import numpy as np
from findings import at_step

from mlflow_stability.reports.run_sections import DrawnCurve, marked_at
from mlflow_stability.vocabulary.result import Severity


def curve(metric: str, first: int, last: int) -> DrawnCurve:
    steps = np.array([first, last])
    return DrawnCurve(metric, steps, steps / 1.0, steps / 1.0, first, last, 1.0, 1.0, 2.0, False)


def test_a_finding_is_marked_at_the_training_in_which_it_began() -> None:
    curves = [curve("loss", 1, 300), curve("loss@track_1", 301, 600), curve("val_loss", 100, 300)]
    numbered = [
        (number, at_step(step, "dead_units", Severity.WARNING)) for number, step in enumerate((5, 300, 302, 700))
    ]
    marked = [[number for number, _ in marked_at(drawn, curves, numbered)] for drawn in curves]
    assert marked == [[0, 1, 3], [2], []]
