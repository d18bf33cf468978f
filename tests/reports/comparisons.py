"""Comparisons to report on."""

from __future__ import annotations

from functools import cache

import numpy as np
from diagnosis.cards import card_of_loss, diverging, history_of_loss
from diagnosis.histories import falling

from mlflow_stability.diagnosis.compare_cards import comparison_of
from mlflow_stability.diagnosis.parting import parting_of
from mlflow_stability.vocabulary.comparison import Comparison
from mlflow_stability.vocabulary.run_card import RunCard

HOSTILE = "<script>alert('x')</script>| a_b *c* \x1b[31m =1+1"


@cache
def two() -> Comparison:
    one, other = falling(600), diverging(seed=1)
    cards = [card_of_loss(one, "calm", lr=0.1, seed=1), card_of_loss(other, "wild", lr=3, seed=2)]
    parting = parting_of(history_of_loss(one, "calm", seed=1), history_of_loss(other, "wild", seed=2))
    return comparison_of(cards, baseline=cards[0], parting=parting)


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


ALL = (two, many, none)
