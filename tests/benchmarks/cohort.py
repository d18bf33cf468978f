"""Whether a comparison of 200 runs names what was planted, and nothing else.

Each run is a loss curve that the usual detectors judge. In a cohort with causes, a learning rate above 0.01 makes a
training diverge, and so does one above 0.001 without a warm-up; batch size, weight decay and optimizer do nothing. In a
cohort without causes as many diverge by chance. Prints the parameters that were named, cohort by cohort.

    python tests/benchmarks/cohort.py                  # 20 repetitions of both
    python tests/benchmarks/cohort.py --repetitions 2
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from diagnosis.histories import falling, metric_of, run_of  # noqa: E402

from mlflow_stability.diagnosis.associations.associations import associations_of  # noqa: E402
from mlflow_stability.diagnosis.diagnose import diagnosis_of  # noqa: E402
from mlflow_stability.diagnosis.run_card import run_card_of  # noqa: E402
from mlflow_stability.vocabulary.run.run_card import RunCard  # noqa: E402

STEPS = 400
CAUSES = {"learning_rate", "warmup_steps"}
BY_CHANCE = 0.03
"""The share of runs that diverge whatever their parameters are."""


def cohort(seed: int, *, planted: bool, runs: int = 200) -> list[RunCard]:
    dice = np.random.default_rng(seed)
    return [one_run(f"{seed}-{number}", dice, planted=planted) for number in range(runs)]


def one_run(name: str, dice: np.random.Generator, *, planted: bool) -> RunCard:
    rate = float(10 ** dice.uniform(-4, -1.5))
    warmup = int(dice.choice([0, 200, 1000]))
    params = {
        "learning_rate": f"{rate:.6g}",
        "warmup_steps": str(warmup),
        "batch_size": str(dice.choice([16, 32, 64, 128])),
        "weight_decay": f"{10 ** dice.uniform(-4, -1):.4g}",
        "optimizer": str(dice.choice(["adamw", "lion", "sgd"])),
        "seed": name.rpartition("-")[2],
    }
    caused = rate > 0.01 or (rate > 0.001 and warmup == 0)
    diverges = dice.random() < ((0.9 if caused else BY_CHANCE) if planted else 0.25)
    losses = falling(STEPS, seed=int(dice.integers(1 << 31)))
    if diverges:
        losses *= np.exp(np.maximum(0, np.arange(STEPS) - dice.integers(50, 300)) / 40)
    history = run_of(metric_of("train_loss", losses), params=params)
    return run_card_of(history, diagnosis_of(history))


def named(cards: list[RunCard]) -> set[str]:
    return {name for each in associations_of(cards).associations for name in each.params}


def report(repetitions: int) -> bool:
    good = True
    for planted in (True, False):
        counts: Counter[str] = Counter()
        for seed in range(repetitions):
            cards = cohort(seed, planted=planted)
            found = named(cards)
            counts.update(found)
            unstable = sum(card.unstable is True for card in cards)
            print(f"{'planted' if planted else 'chance '} {seed:2d}: {unstable:3d} unstable; named: {sorted(found)}")
        false = sum(count for name, count in counts.items() if not planted or name not in CAUSES)
        missed = sum(repetitions - counts[name] for name in CAUSES) if planted else 0
        print(f"=> causes missed: {missed}, innocent ones named: {false}, in {repetitions} repetitions")
        good = good and false <= 1 and not missed
    return good


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=20)
    sys.exit(0 if report(parser.parse_args().repetitions) else 1)
