"""Names of layers as models have them, and tables of them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.vocabulary.measured.layer_arrays import BINS, LEVELS, LayerTable, layer_table_from

PARTS = ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")
Draw = Callable[[np.random.Generator], NDArray[np.float64]]


def gpt_layers(many: int) -> list[str]:
    """The layers of a GPT, from input to output."""
    inner = (f"transformer.h.{block}.{part}" for block in count() for part in PARTS)
    middle = [name for name, _ in zip(inner, range(max(0, many - 4)), strict=False)]
    return ["transformer.wte", "transformer.wpe", *middle, "transformer.ln_f", "lm_head"][:many]


def table(step: int, layers: list[str], draws: list[Draw], what: str = "gradient") -> LayerTable:
    """A table with histograms of what is drawn for each layer; the last draw serves all further layers."""
    rows = []
    for number in range(len(layers)):
        values = draws[min(number, len(draws) - 1)](np.random.default_rng(step + number))
        quantiles = np.quantile(values, LEVELS)
        low, high = 1.25 * quantiles[1] - 0.25 * quantiles[6], 1.25 * quantiles[6] - 0.25 * quantiles[1]
        counts = np.r_[np.zeros(BINS - 1), len(values)]
        if high > low:
            counts = np.histogram(np.clip(values, low, high), BINS, (low, high))[0].astype(np.float64)
        statistics = [values.mean(), values.std(), np.abs(values).max(), (values == 0).mean()]
        rows.append(np.concatenate([statistics, quantiles, [low, high], counts]))
    return layer_table_from(step, 0, what, layers, np.concatenate(rows).tolist())


def normal(width: float = 1.0) -> Draw:
    return lambda dice: dice.normal(0, width, 4096)


def two_bumps(dice: np.random.Generator) -> NDArray[np.float64]:
    return np.concatenate([dice.normal(-3, 1, 2048), dice.normal(3, 1, 2048)])


def heavy_tails(dice: np.random.Generator) -> NDArray[np.float64]:
    return dice.standard_t(2, 4096)


def all_zero(dice: np.random.Generator) -> NDArray[np.float64]:
    return np.zeros(4096)


def a_few(dice: np.random.Generator) -> NDArray[np.float64]:
    return dice.normal(1.0, 0.02, 64)


def not_finite(dice: np.random.Generator) -> NDArray[np.float64]:
    return np.full(4096, np.nan)
