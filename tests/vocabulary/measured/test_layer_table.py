from __future__ import annotations

import numpy as np
import pytest

from mlflow_stability.vocabulary.measured.layer_arrays import BINS, PERCENTILES, STATISTICS, WIDTH, layer_table_from


def test_the_flat_form_is_read_layer_by_layer() -> None:
    row = [0.1, 0.2, 0.3, 0.4, *range(1, 9), -3.2, 3.2, *range(BINS)]
    assert len(row) == WIDTH
    table = layer_table_from(7, 1, "gradient", ["a", "b"], [*row, *(10 * value for value in row)])
    assert (table.step, table.attempt, table.what, table.layers) == (7, 1, "gradient", ("a", "b"))
    assert table.statistics.tolist()[0] == [0.1, 0.2, 0.3, 0.4]
    assert table.percentiles[1].tolist() == [10.0 * number for number in range(1, 9)]
    assert table.edges[0] == pytest.approx(np.linspace(-3.2, 3.2, BINS + 1))
    assert table.counts.dtype == np.int64
    assert table.counts[1].tolist() == [10 * number for number in range(BINS)]
    assert table.has_histograms


def test_the_short_form_has_statistics_alone() -> None:
    table = layer_table_from(0, 0, "weight", ["a", "b", "c"], list(range(3 * len(STATISTICS))))
    assert table.statistics[2].tolist() == [8.0, 9.0, 10.0, 11.0]
    assert table.percentiles.shape == (3, 0)
    assert table.edges.shape == table.counts.shape == (3, 0)
    assert not table.has_histograms
    assert len(PERCENTILES) == 8


def test_the_last_edge_is_the_end_that_was_measured() -> None:
    ends = (0.1 + 0.2, 1.0 / 3.0)
    table = layer_table_from(0, 0, "weight", ["a"], [0.0] * 12 + [*ends] + [0.0] * BINS)
    assert (table.edges[0, 0], table.edges[0, -1]) == ends
