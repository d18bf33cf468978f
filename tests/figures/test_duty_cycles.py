from __future__ import annotations

import numpy as np
import pytest
from figures.drawings import cut_off, overlapping_labels, texts

from mlflow_stability.figures.duty_cycles import MAX_MODULES, duty_cycles
from mlflow_stability.figures.layer_grid import LayerGrid, LayerSketch
from mlflow_stability.figures.of_run.standard_figures import DUTY_CYCLES


def grids(modules: list[str], steps: int, highest: float = 0.2) -> list[LayerGrid]:
    levels = dict(zip(DUTY_CYCLES, (0.0, 0.01, 0.02, 0.04, 0.1, highest, 8.0, 256.0), strict=True))
    result = []
    for quantity, level in levels.items():
        sketch = LayerSketch(quantity)
        rows = sketch.rows(modules)
        for step in range(1, steps + 1):
            sketch.add(100 * step, rows, np.full(len(modules), level))
        result.append(sketch.grid())
    return result


@pytest.mark.parametrize("modules", [1, 3, 16])
@pytest.mark.parametrize("steps", [1, 60])
def test_any_number_of_modules_is_legible(modules: int, steps: int) -> None:
    figure = duty_cycles(grids([f"blocks.{number}.sdr" for number in range(modules)], steps), "run 3f2a9c")
    assert len(figure.axes) == min(modules, MAX_MODULES)
    assert cut_off(figure) == []
    assert overlapping_labels(figure) == []


def test_a_bit_that_is_always_on_is_on_the_scale() -> None:
    figure = duty_cycles(grids(["encoder"], 5, highest=1.0))
    assert figure.axes[0].get_ylim() == (0.0, 1.0)
    assert "1" in texts(figure)


def test_the_dashed_line_is_where_all_bits_would_be_used_alike() -> None:
    figure = duty_cycles(grids(["encoder"], 5))
    dashed = [line for line in figure.axes[0].lines if line.get_linestyle() == "--"]
    assert [set(np.asarray(line.get_ydata()).tolist()) for line in dashed] == [{8.0 / 256.0}]
