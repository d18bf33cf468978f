"""Whether a comparison of 200 runs names the causes that were planted, and no other parameter."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from benchmarks.table import Table, table_of
from diagnosis.histories import falling, metric_of, run_of

from mlflow_stability.diagnosis.cohort.associations import associations_of
from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.diagnosis.run_card import run_card_of
from mlflow_stability.vocabulary.result import RunCard

STEPS = 400
CAUSES = {"learning_rate", "warmup_steps"}
CHANCE = 0.03
"""Share of runs that diverge whatever their parameters are."""


def cohort_cards(seed: int, *, planted: bool, runs: int = 200) -> list[RunCard]:
    """Return the cards of drawn runs.

    With planted causes, a learning rate above 0.01 makes a training diverge, and so does one above 0.001 without a
    warm-up; batch size, weight decay and optimizer do nothing. Without, as many diverge by chance.
    """
    rng = np.random.default_rng(seed)
    return [card_of(f"{seed}-{number}", rng, planted=planted) for number in range(runs)]


def card_of(name: str, rng: np.random.Generator, *, planted: bool) -> RunCard:
    rate = float(10 ** rng.uniform(-4, -1.5))
    warmup = int(rng.choice([0, 200, 1000]))
    params = {
        "learning_rate": f"{rate:.6g}",
        "warmup_steps": str(warmup),
        "batch_size": str(rng.choice([16, 32, 64, 128])),
        "weight_decay": f"{10 ** rng.uniform(-4, -1):.4g}",
        "optimizer": str(rng.choice(["adamw", "lion", "sgd"])),
        "seed": name.rpartition("-")[2],
    }
    caused = rate > 0.01 or (rate > 0.001 and warmup == 0)
    diverges = rng.random() < ((0.9 if caused else CHANCE) if planted else 0.25)
    losses = falling(STEPS, seed=int(rng.integers(1 << 31)))
    if diverges:
        losses *= np.exp(np.maximum(0, np.arange(STEPS) - rng.integers(50, 300)) / 40)
    history = run_of(metric_of("train_loss", losses), params=params)
    return run_card_of(history, diagnosis_of(history))


def named(cards: list[RunCard]) -> set[str]:
    return {name for association in associations_of(cards).associations for name in association.params}


def cohort(repetitions: int = 20) -> Iterator[Table]:
    """Compare cohorts with and without planted causes."""
    for planted in (True, False):
        rows, missed, innocent = [], 0, 0
        for seed in range(repetitions):
            cards = cohort_cards(seed, planted=planted)
            names = named(cards)
            missed += len(CAUSES - names) if planted else 0
            innocent += len(names - CAUSES) if planted else len(names)
            unstable = sum(card.unstable is True for card in cards)
            rows.append({"seed": seed, "unstable": unstable, "named": ", ".join(sorted(names)) or "none"})
        title = "With planted causes" if planted else "Without a cause"
        yield table_of(title, rows, [f"causes missed: {missed}; parameters named wrongly: {innocent}"])
