from __future__ import annotations

import numpy as np
from figures.layers import gpt_layers

from mlflow_stability.figures.layer_grid import MAX_COLUMNS, MAX_LAYERS, LayerSketch, evened, labels_of


def test_a_million_steps_of_a_thousand_layers_stay_within_a_few_megabytes() -> None:
    sketch, layers = LayerSketch("grad_norm"), gpt_layers(1000)
    rows = sketch.rows(layers)
    for step in range(100, 1_000_001, 100):
        values = np.ones(1000)
        if step == 543_200:
            values[17] = 1e6
        if step == 700_000:
            values[900] = np.nan
        sketch.add(step, rows, values)
    grid = sketch.grid()
    assert MAX_COLUMNS / 2 <= len(grid.steps) <= MAX_COLUMNS
    assert grid.values.base is None or grid.values.nbytes < 4e6
    assert grid.measured == 10_000
    assert grid.last == 1_000_000
    assert np.flatnonzero((grid.values == 1e6).any(axis=1)).tolist() == [17]
    assert np.flatnonzero(np.isinf(grid.values).any(axis=1)).tolist() == [900]


def test_layers_come_in_the_order_of_the_model_whatever_was_measured_first() -> None:
    sketch = LayerSketch("update_ratio")
    sketch.add(1, sketch.rows(["head", "embed"]), np.array([3.0, 1.0]))
    sketch.add(2, sketch.rows(["late", "block"]), np.array([4.0, 2.0]))
    grid = sketch.grid(["embed", "block", "head", "never measured"])
    assert grid.layers == ("embed", "block", "head", "late")
    assert np.fmax.reduce(grid.values, axis=1).tolist() == [1.0, 2.0, 3.0, 4.0]


def test_layers_measured_in_turns_leave_no_holes() -> None:
    sketch, layers = LayerSketch("update_ratio"), gpt_layers(12)
    rows = sketch.rows(layers)
    for number in range(50):
        turn = np.arange(12) % 4 == number % 4
        sketch.add(number * 100, rows[turn], np.ones(3))
    grid = evened(sketch.grid())
    assert not np.isnan(grid.values).any()
    assert len(grid.steps) == 12


def test_a_grid_that_is_whole_stays_as_it_is() -> None:
    sketch = LayerSketch("grad_norm")
    rows = sketch.rows(["a", "b"])
    for step in range(7):
        sketch.add(step, rows, np.ones(2))
    grid = sketch.grid()
    assert evened(grid) is grid


def test_more_layers_than_there_is_room_for_are_counted() -> None:
    sketch = LayerSketch("grad_norm")
    rows = sketch.rows([f"layer_{number}" for number in range(MAX_LAYERS + 5)])
    sketch.add(1, rows, np.ones(len(rows)))
    grid = sketch.grid()
    assert len(grid.layers) == MAX_LAYERS
    assert grid.left_out == 5
    assert (grid.values == 1).all()


def test_few_layers_all_have_their_names() -> None:
    common, labels = labels_of(("net.0", "net.2"), 10)
    assert common == "net."
    assert [label.name for label in labels] == ["0", "2"]


def test_many_layers_have_the_names_of_their_blocks_and_no_two_touch() -> None:
    layers = gpt_layers(1000)
    common, labels = labels_of(tuple(layers), 40)
    assert common == ""
    assert 30 <= len(labels) <= 40
    assert all("h." in label.name for label in labels[1:-1])
    middles = [label.middle for label in labels]
    assert min(np.diff(middles)) >= 1000 / 40
    assert all(layers[label.first].startswith(label.name) for label in labels)
