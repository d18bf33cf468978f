from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.random import Generator
from numpy.typing import NDArray

from mlflow_stability.vocabulary.measured.layer_arrays import (
    BINS,
    LEVELS,
    LayerTable,
    ShapeLimits,
    distribution_shape,
    layer_table_from,
)

Draw = Callable[[Generator, int], NDArray[np.float64]]

DRAWS: dict[str, tuple[str, Draw]] = {
    "normal": ("healthy", lambda dice, n: dice.normal(size=n) * 1e-4),
    "laplace": ("healthy", lambda dice, n: dice.laplace(size=n)),
    "uniform": ("healthy", lambda dice, n: dice.uniform(-0.1, 0.1, n)),
    "t with 5 degrees": ("healthy", lambda dice, n: dice.standard_t(5, n)),
    "t with 2 degrees": ("heavy-tailed", lambda dice, n: dice.standard_t(2, n)),
    "two bumps": ("multi-modal", lambda dice, n: np.where(dice.random(n) < 0.5, -1.0, 1.0) + dice.normal(size=n) / 4),
    "uneven bumps": ("multi-modal", lambda dice, n: np.where(dice.random(n) < 0.25, -3.0, 1) + dice.normal(size=n) / 2),
    "away from zero": ("shifted", lambda dice, n: dice.normal(size=n) + 2.0),
    "gains of a norm": ("shifted", lambda dice, n: 1.0 + dice.normal(size=n) * 0.02),
    "all zero": ("collapsed", lambda dice, n: np.zeros(n)),
    "all alike": ("collapsed", lambda dice, n: np.full(n, 0.3)),
    "mostly zero": ("collapsed", lambda dice, n: np.where(dice.random(n) < 0.8, 0.0, dice.normal(size=n))),
}


def table_of(values: NDArray[np.float64]) -> LayerTable:
    """A table of one layer, made as plainly as can be."""
    marks = np.quantile(values, LEVELS)
    reach = 0.5 * (marks[6] - marks[1])
    low, high = max(marks[0], marks[1] - reach), min(marks[7], marks[6] + reach)
    below = np.searchsorted(np.sort(values), low + (high - low) * np.linspace(0, 1, BINS + 1))
    below[0], below[-1] = 0, len(values)
    few = (values.mean(), values.std(), np.abs(values).max(), (values == 0).mean())
    return layer_table_from(0, 0, "weight", ["layer"], [*few, *marks, low, high, *np.diff(below)])


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("count", [2048, 16_384])
def test_the_shape_of_random_values_is_recognized_for_every_seed(name: str, count: int) -> None:
    shape, draw = DRAWS[name]
    shapes = [distribution_shape(table_of(draw(np.random.default_rng(seed), count)), 0) for seed in range(20)]
    assert shapes == [shape] * 20


def test_noise_of_few_values_has_no_second_peak() -> None:
    shapes = {distribution_shape(table_of(np.random.default_rng(seed).normal(size=150)), 0) for seed in range(100)}
    assert "multi-modal" not in shapes


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("count", [1, 16, 64, 127])
def test_a_handful_of_values_has_too_few_values_for_a_shape(name: str, count: int) -> None:
    table = table_of(DRAWS[name][1](np.random.default_rng(0), count))
    assert distribution_shape(table, 0) == "too few values"


@pytest.mark.parametrize("name", ["normal", "t with 5 degrees", "away from zero", "gains of a norm", "all zero"])
def test_from_128_values_on_a_shape_has_a_name(name: str) -> None:
    shape, draw = DRAWS[name]
    shapes = [distribution_shape(table_of(draw(np.random.default_rng(seed), 128)), 0) for seed in range(20)]
    assert shapes == [shape] * 20


def test_limits_can_be_moved() -> None:
    table = table_of(np.random.default_rng(0).laplace(size=4096))
    assert distribution_shape(table, 0, ShapeLimits(max_tail_ratio=4.0)) == "heavy-tailed"


def test_without_a_histogram_or_without_finite_values_the_shape_is_unknown() -> None:
    assert distribution_shape(layer_table_from(0, 0, "weight", ["layer"], [0.0, 1.0, 2.0, 0.0]), 0) == "unknown"
    table = table_of(np.random.default_rng(0).normal(size=100))
    table.percentiles[0, -1] = np.inf
    assert distribution_shape(table, 0) == "unknown"
