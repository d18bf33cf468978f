from __future__ import annotations

import matplotlib
import numpy as np
import pytest
from figures.drawings import cut_off, overlapping_labels, pixels, texts
from figures.layers import gpt_layers
from matplotlib.figure import Figure
from numpy.typing import NDArray

from mlflow_stability.figures.layer_grid import LayerGrid, LayerSketch
from mlflow_stability.figures.layer_heatmap import layer_heatmap
from mlflow_stability.figures.style import BAD


def grid_of(values: NDArray[np.float64], quantity: str = "grad_norm", every: int = 100) -> LayerGrid:
    """A grid of these values, a row for each layer and a column for each measured step."""
    sketch = LayerSketch(quantity)
    rows = sketch.rows(gpt_layers(len(values)))
    for number, column in enumerate(values.T, start=1):
        there = ~np.isnan(column) | (rows < 0)
        sketch.add(number * every, rows[there], column[there])
    return sketch.grid()


def in_picture(figure: Figure, colour: str) -> int:
    bytes_of = [round(value * 255) for value in matplotlib.colors.to_rgb(colour)]
    return int((pixels(figure) == bytes_of).all(axis=-1).sum())


@pytest.mark.slow
@pytest.mark.parametrize("layers", [1, 2, 12, 25, 100, 1000])
@pytest.mark.parametrize("columns", [1, 50])
def test_any_number_of_layers_is_legible(layers: int, columns: int) -> None:
    values = np.random.default_rng(0).lognormal(0, 1, (layers, columns))
    figure = layer_heatmap(grid_of(values), "run 3f2a9c")
    assert cut_off(figure) == []
    assert overlapping_labels(figure) == []
    assert figure.get_size_inches()[1] < 10


def test_very_long_names_leave_room_for_the_picture() -> None:
    sketch = LayerSketch("grad_norm")
    names = [f"encoder.{'very_' * 20}long.{number}" for number in range(3)] + ["$x^{$\x1b[3m"]
    sketch.add(1, sketch.rows(names), np.ones(4))
    figure = layer_heatmap(sketch.grid())
    assert cut_off(figure) == []
    assert figure.axes[0].get_position().width > 0.4


def test_values_that_are_not_finite_zero_or_not_measured_have_their_own_colours_and_names() -> None:
    values = np.ones((4, 30))
    plain = layer_heatmap(grid_of(values))
    assert {"not finite", "zero", "not measured"}.isdisjoint(texts(plain))
    assert in_picture(plain, BAD) == in_picture(plain, "#000000") == 0
    values[0, 10:20], values[1] = np.inf, 0.0
    values[2, :15] = np.nan
    figure = layer_heatmap(grid_of(values))
    assert {"not finite", "zero", "not measured"} <= set(texts(figure))
    for colour in (BAD, "#000000", "#e6e6e6"):
        assert in_picture(figure, colour) > 3000


def test_each_cell_has_its_colour_where_its_layer_and_step_are() -> None:
    values = np.full((4, 10), 1e-3)
    values[3, 9] = 1e3  # the output, at the last step: the lower right corner
    figure = layer_heatmap(grid_of(values))
    picture = np.asarray(figure.axes[0].images[0].get_array())
    assert (picture[-5, -5] != picture[-5, 5]).any()
    assert (picture[5, -5] == picture[5, 5]).all()
    assert (picture[-5, 5] == picture[5, 5]).all()


def test_a_long_gap_between_measurements_is_drawn_as_not_measured() -> None:
    sketch = LayerSketch("grad_norm")
    rows = sketch.rows(["a", "b"])
    for step in [*range(0, 1000, 100), *range(9000, 10_000, 100)]:
        sketch.add(step, rows, np.ones(2))
    assert "not measured" in texts(layer_heatmap(sketch.grid()))


def test_one_exploding_layer_does_not_make_the_others_look_alike() -> None:
    values = np.random.default_rng(0).lognormal(0, 1, (200, 50))
    values[7, 7] = 1e30
    image = np.asarray(layer_heatmap(grid_of(values)).axes[0].images[0].get_array()).astype(float)
    assert image.std(axis=(0, 1)).max() > 30


def test_with_many_measured_steps_the_picture_explains_what_a_column_shows() -> None:
    figure = layer_heatmap(grid_of(np.ones((2, 900))))
    assert any("each column the largest of about" in text for text in texts(figure))


def test_a_heatmap_without_measurements_says_not_measured() -> None:
    assert "not measured" in texts(layer_heatmap(LayerSketch("grad_norm").grid()))
