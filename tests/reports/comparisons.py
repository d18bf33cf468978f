"""Comparisons to report on."""

from __future__ import annotations

from functools import cache

import numpy as np
from diagnosis.cards import card_of_loss, diverging, history_of_loss
from diagnosis.histories import falling

from mlflow_stability.diagnosis.compare import comparison_of
from mlflow_stability.diagnosis.two_runs import first_difference_of
from mlflow_stability.vocabulary.measured.layer_comparison import FirstNonFinite, LargestGap, LayerComparison
from mlflow_stability.vocabulary.result import Comparison, RunCard

HOSTILE = "<script>alert('x')</script>| a_b *c* \x1b[31m =1+1"


@cache
def two() -> Comparison:
    first, other = falling(600), diverging(seed=1)
    cards = [card_of_loss(first, "calm", lr=0.1, seed=1), card_of_loss(other, "wild", lr=3, seed=2)]
    first_difference = first_difference_of(
        history_of_loss(first, "calm", seed=1), history_of_loss(other, "wild", seed=2)
    )
    return comparison_of(cards, baseline=cards[0], first_difference=first_difference)


@cache
def two_with_layers() -> Comparison:
    """Thirty layers of one that explodes and breaks, and eight heads of which one collapses."""
    cards = [card_of_loss(falling(600), "calm", lr=0.1), card_of_loss(diverging(seed=1), HOSTILE, lr=3)]
    dice = np.random.default_rng(0)
    quiet = np.exp(dice.normal(-2, 0.3, (30, 60))).astype(np.float32)
    loud = quiet * np.exp(np.maximum(0, np.arange(60) - 30) / 2).astype(np.float32)
    loud[3:, 50:], loud[5, :10], loud[0] = np.inf, np.nan, 0.0
    even = dice.uniform(2.5, 3.0, (8, 60)).astype(np.float32)
    fallen = even.copy()
    fallen[2, 30:] = 0.0
    layers = tuple(f"model.blocks.{number // 3}.{('attn', 'mlp', HOSTILE)[number % 3]}" for number in range(30))
    heads = tuple(f"model.blocks.0.attn.head_{number}" for number in range(8))
    beside = (
        LayerComparison(
            "grad_norm",
            layers,
            -300,
            10,
            (300, 300),
            True,
            quiet,
            loud,
            farthest=LargestGap(layers[4], 40, 0.1, 900.0),
            broken=(None, FirstNonFinite(27, layers[3], 200)),
        ),
        LayerComparison(
            "attention_entropy",
            heads,
            -300,
            10,
            (300, 300),
            True,
            even,
            fallen,
            smallest=True,
            farthest=LargestGap(heads[2], 0, 2.9, 0.0),
        ),
    )
    return comparison_of(cards, layers=beside, notes=("A remark.",))


@cache
def many() -> Comparison:
    """A sweep in which a high rate diverges, with three seeds a rate, one spiking run and one that was not read."""
    cards = []
    for seed in range(3):
        for rate in (0.001, 0.003, 0.01, 0.03, 0.1):
            losses = diverging(seed=seed, onset=200 + 40 * seed) if rate > 0.02 else falling(600, seed=seed)
            cards.append(card_of_loss(losses, f"lr-{rate}-{seed}", lr=rate, seed=seed, optimizer="adamw"))
    spiking = falling(600, seed=9)
    spiking[300] *= 4
    cards.append(card_of_loss(spiking, HOSTILE, lr=0.001, seed=HOSTILE, optimizer="sgd"))
    cards.append(card_of_loss(np.where(np.arange(600) < 400, falling(600), np.nan), "nan", lr=1, optimizer="sgd"))
    cards.append(RunCard("gone.csv", "gone.csv", error=f"There is no {HOSTILE}."))
    return comparison_of(cards, baseline=cards[0], asked=20, interrupted=True, notes=("A remark.",))


@cache
def none() -> Comparison:
    return comparison_of([])


ALL = (two, two_with_layers, many, none)
