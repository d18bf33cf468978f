from __future__ import annotations

from dataclasses import replace

import pytest
from figures.drawings import cut_off
from matplotlib.figure import Figure
from reports.comparisons import two_with_layers

from mlflow_stability.figures.layer_heatmap import layers_beside


def drawn(number: int) -> Figure:
    return layers_beside(two_with_layers().layers[number], ("calm", "wild"))


def words(figure: Figure) -> list[str]:
    return [item.get_text() for axes in figure.axes for item in (axes.title, axes._left_title, axes.xaxis.label)]  # type: ignore[attr-defined]


def test_both_runs_have_the_same_rows_and_one_scale() -> None:
    first, other, bar = drawn(0).axes
    assert first.get_ylim() == other.get_ylim()
    assert first.get_xlim() == other.get_xlim()
    assert first.get_position().height == other.get_position().height == bar.get_position().height
    assert first.get_position().width == pytest.approx(other.get_position().width)
    assert {"calm", "wild", "steps from the onset, step 300"} <= set(words(drawn(0)))
    assert bar.get_ylabel() == "gradient norm"


def test_the_axis_names_the_onset_of_the_other_run_and_ends_with_the_runs() -> None:
    norms = replace(two_with_layers().layers[0], onsets=(None, 300), spans=((-300, 245), (-300, 293)))
    figure = layers_beside(norms, ("calm", "wild"))
    assert {"steps from step 300, the onset of the other run", "steps from the onset, step 300"} <= set(words(figure))
    assert figure.axes[0].get_xlim() == figure.axes[1].get_xlim() == (-300, 294)
    assert cut_off(figure) == []


def test_absent_layers_and_steps_outside_of_the_run_have_their_own_colours_and_names() -> None:
    norms = two_with_layers().layers[0]
    lacking = replace(norms, spans=((-300, 9), (-300, 299)), absent=(frozenset(norms.layers[7:9]), frozenset()))
    figure = layers_beside(lacking, ("calm", "wild"))
    legend = figure.axes[1].get_legend()
    assert legend is not None
    result = [text.get_text() for text in legend.get_texts()]
    assert result == ["not finite", "zero", "absent layer", "not measured", "outside of the run"]
    cells = figure.axes[0].images[0].get_array()
    assert cells is not None
    assert (cells[:, 31:] == 1.0).all()
    assert len({tuple(cells[7, 5]), tuple(cells[6, 5]), tuple(cells[7, 40])}) == 3
    assert cut_off(figure) == []


def test_equal_values_have_equal_colours_and_missing_values_have_colours_of_their_own() -> None:
    first, other = (axes.images[0].get_array() for axes in drawn(0).axes[:2])
    assert first is not None
    assert other is not None
    assert (first[7, :30] == other[7, :30]).all()
    broken, zero, missing = other[10, 55], other[0, 20], other[5, 5]
    assert len({tuple(item) for item in (broken, zero, missing, other[7, 20])}) == 4
    legend = drawn(0).axes[1].get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["not finite", "zero", "not measured"]


def test_nothing_is_cut_off_and_heads_need_no_legend() -> None:
    figure = drawn(1)
    assert figure.axes[1].get_legend() is None
    figure.canvas.draw()
    box = figure.get_tightbbox()
    wide, high = figure.get_size_inches()
    assert box.x0 >= 0
    assert box.y0 >= 0
    assert box.x1 <= wide
    assert box.y1 <= high
