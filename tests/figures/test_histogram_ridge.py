from __future__ import annotations

import re

import numpy as np
import pytest
from figures.drawings import cut_off, overlapping_labels, texts
from figures.layers import a_few, all_zero, gpt_layers, heavy_tails, normal, not_finite, table, two_bumps
from numpy.typing import NDArray

from mlflow_stability.figures.histogram_ridge import MAX_RIDGES, MAX_STEPS, histogram_ridges, outline
from mlflow_stability.vocabulary.measured.layer_arrays import layer_table_from


@pytest.mark.slow
@pytest.mark.parametrize(("layers", "steps"), [(1, 1), (2, 3), (12, 12), (100, 2), (1000, 1)])
def test_any_number_of_layers_is_legible(layers: int, steps: int) -> None:
    tables = [table(1000 * number, gpt_layers(layers), [two_bumps, normal()]) for number in range(1, steps + 1)]
    figure = histogram_ridges(tables, "run 3f2a9c")
    assert cut_off(figure) == []
    assert overlapping_labels(figure) == []
    assert len(figure.axes) == min(2, steps)


def test_each_shape_is_named_beside_its_ridge_and_counted() -> None:
    layers = ["a", "b", "c", "d", "e", "f"]
    draws = [normal(), two_bumps, heavy_tails, all_zero, not_finite, a_few]
    result = texts(histogram_ridges([table(7000, layers, draws)]))
    for shape in ("healthy", "multi-modal", "heavy-tailed", "collapsed", "not finite", "too few values"):
        assert result.count(shape) == 1
        assert any(f"1 {shape}" in text for text in result)
    assert any("6 layers at step 7,000" in text for text in result)


def test_abnormal_layers_are_drawn_when_there_are_too_many_layers() -> None:
    draws = [normal()] * 50 + [two_bumps] + [normal()]
    figure = histogram_ridges([table(1000, gpt_layers(100), draws)])
    labels = [yticklabel.get_text() for yticklabel in figure.axes[0].get_yticklabels()]
    assert len(labels) == MAX_RIDGES
    assert gpt_layers(100)[50] in labels
    assert "multi-modal" in texts(figure)


def test_sizes_a_million_times_apart_are_drawn_alike_and_their_widths_are_written() -> None:
    figure = histogram_ridges([table(1000, ["small", "large"], [normal(1e-6), normal(1.0)])])
    small, large = (line.get_xdata() for line in figure.axes[0].lines if len(line.get_xdata()) > 10)
    assert small.min() == pytest.approx(large.min(), rel=0.2)
    assert small.max() == pytest.approx(large.max(), rel=0.2)
    assert any(text.endswith(("e-7", "e-6")) for text in texts(figure))


def test_the_layer_that_changed_most_is_followed_over_the_steps() -> None:
    tables = [
        table(1000 * number, ["steady", "shrinking"], [normal(1.0), normal(10.0**-number)]) for number in range(1, 31)
    ]
    figure = histogram_ridges(tables)
    assert "Layer with the largest change in width: shrinking" in texts(figure)
    labels = [yticklabel.get_text() for yticklabel in figure.axes[1].get_yticklabels()]
    assert len(labels) == MAX_STEPS
    assert (labels[0], labels[-1]) == ("step 1,000", "step 30,000")


def a_bell_beside_a_few_far_out(dice: np.random.Generator) -> NDArray[np.float64]:
    """Nearly all values within one bin of the histogram, which reaches as far as the few."""
    return np.concatenate([dice.normal(0, 1e-5, 3900), dice.normal(0, 1e-2, 196)])


def test_a_ridge_is_a_bell_where_all_but_a_few_values_lie_in_one_bin() -> None:
    result = table(1000, ["blocks.4.qkv"], [a_bell_beside_a_few_far_out])
    assert np.diff(result.edges[0])[0] > 5e-5  # a bin is many widths wide
    across, height = outline(result, 0)
    assert height.max() == 1.0
    assert abs(across[height.argmax()]) < 0.5
    assert np.interp([-3.0, 3.0], across, height).max() < 0.1


def test_the_outline_of_a_normal_distribution_is_a_bell() -> None:
    across, height = outline(table(1000, ["a"], [normal(0.3)]), 0)
    assert np.interp([-2.0, -1.0, 0.0, 1.0, 2.0], across, height) == pytest.approx([0.14, 0.61, 1, 0.61, 0.14], abs=0.1)


def test_widths_of_a_column_have_three_digits_and_are_written_in_one_way() -> None:
    result = texts(histogram_ridges([table(1000, ["a", "b", "c"], [normal(1e-5), normal(5.2e-3), normal(2e-2)])]))
    widths = [text for text in result if re.fullmatch(r"\d\.\d\de-\d", text)]
    assert len(widths) == 3
    result = texts(histogram_ridges([table(1000, ["a", "b"], [normal(0.5), normal(30.0)])]))
    assert len([text for text in result if re.fullmatch(r"0\.\d{3}|\d\d\.\d", text)]) == 2


def test_a_figure_without_finite_gradients_says_so_instead_of_showing_a_layer() -> None:
    broken = [table(step, ["inp", "out"], [not_finite]) for step in (100, 200, 300)]
    figure = histogram_ridges(broken)
    text = " ".join(texts(figure))
    assert len(figure.axes) == 1
    assert "nor at any of the 3 measured steps" in text
    assert "changed most" not in text


def test_a_layer_that_was_finite_before_all_broke_is_followed() -> None:
    tables = [table(100, ["inp", "out"], [not_finite, normal()]), table(200, ["inp", "out"], [not_finite])]
    assert "No finite values at step 200; a layer was finite before: out" in texts(histogram_ridges(tables))
    tables = [table(100, ["inp", "out"], [normal()]), table(200, ["inp", "out"], [normal(), not_finite])]
    assert "Layer that became non-finite: out" in texts(histogram_ridges(tables))


def test_a_figure_without_histograms_says_not_measured() -> None:
    bare = layer_table_from(100, 0, "gradient", ["a"], [0.0, 1.0, 2.0, 0.0])
    assert "not measured" in texts(histogram_ridges([]))
    assert "not measured" in texts(histogram_ridges([bare]))
