"""False alarms, recall and cost of the detectors, beside the classic rules and published ones.

python tests/benchmarks/detection.py           200,000 healthy steps of each noise, 100 troubles of each sort
python tests/benchmarks/detection.py --quick   a tenth of that

A false alarm is an episode of WARNING or CRITICAL: bad steps with fewer than 16 good ones between them count once, for
every rule alike. For recall INFO counts, which a single high value is. Recall says only that a rule spoke in time: one
that speaks every hundred steps anyway has found the trouble by chance.
"""

from __future__ import annotations

import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

if __name__ == "__main__":  # as pytest's pythonpath does
    sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.published_rules import published

from mlflow_stability.kinds.catalog import default_detectors, name_of, named
from mlflow_stability.kinds.panel import Panel
from mlflow_stability.vocabulary import Severity, Signal, StepReading

Floats = NDArray[np.float64]
OURS = ("loss_spike", "divergence", "gradient_explosion")
CLASSIC = tuple(f"{name}:classic" for name in OURS)
APART = 16
BEFORE = 1200
"""Healthy steps before each trouble."""


def falling(steps: int, low: float, high: float, of: int = 0, start: int = 0) -> Floats:
    """A loss that falls; or a piece out of the middle of it, where curves are as flat as they mostly are."""
    return low + (high - low) * np.exp(-3 * np.arange(start, start + steps) / (of or steps))


def gaussian(curve: Floats, random: np.random.Generator) -> Floats:
    return curve + 0.03 * random.standard_normal(len(curve))


def autoregressive(curve: Floats, random: np.random.Generator, phi: float = 0.9) -> Floats:
    noise = np.empty(len(curve))
    last = random.standard_normal()
    for step, fresh in enumerate((random.standard_normal(len(curve)) * np.sqrt(1 - phi**2)).tolist()):
        last = noise[step] = phi * last + fresh
    return curve + 0.03 * noise


def heavy_tailed(curve: Floats, random: np.random.Generator) -> Floats:
    return np.maximum(curve + 0.03 * random.standard_t(3, len(curve)), 0.05)


def gradient_norms(curve: Floats, random: np.random.Generator) -> Floats:
    return np.exp(0.31 * random.standard_normal(len(curve)) - 0.2)


def small_batches(curve: Floats, random: np.random.Generator) -> Floats:
    return np.maximum(curve + 0.25 * (random.gamma(4.0, 1.0, len(curve)) - 4.0) / 2.0, 0.02)


# The quantity, from where to where it falls, its noise.
MODELS: dict[str, tuple[str, tuple[float, float], Callable[[Floats, np.random.Generator], Floats]]] = {
    "Gaussian": ("loss", (1.8, 3.0), gaussian),
    "AR(0.9)": ("loss", (1.8, 3.0), autoregressive),
    "t3": ("loss", (1.8, 3.0), heavy_tailed),
    "log-normal": ("grad_norm", (1.0, 1.0), gradient_norms),
    "small batch": ("loss", (1.5, 4.5), small_batches),
}


def plus_one(values: Floats, steps: int) -> Floats:
    values[BEFORE : BEFORE + steps] += 1.0
    return values


def jump(values: Floats) -> Floats:
    values[BEFORE:] *= 1.35
    return values


def drift(values: Floats) -> Floats:
    values[BEFORE:] *= 1.002 ** np.arange(1, len(values) - BEFORE + 1)
    return values


def times_20(values: Floats) -> Floats:
    values[BEFORE] *= 20.0
    return values


# What happens, to which quantity, within how many steps it must be found.
TROUBLES: dict[str, tuple[str, int, Callable[[Floats], Floats]]] = {
    "+1.0 for 1 step": ("loss", 1, lambda values: plus_one(values, 1)),
    "+1.0 for 8 steps": ("loss", 8, lambda values: plus_one(values, 8)),
    "+35 % jump": ("loss", 12, jump),
    "+0.2 % a step": ("loss", 80, drift),
    "gradient x 20": ("grad_norm", 1, times_20),
}


def ours(quantity: str, values: Floats, names: Sequence[str], least: Severity) -> dict[str, list[int]]:
    """The steps at which each of our detectors found something of this severity or worse."""
    panel, layout = Panel(named(names)), (Signal(quantity),)
    kept = [name for name, each in zip(names, panel.detectors, strict=True) if quantity in each.quantities]
    found: dict[str, list[int]] = {name: [] for name in kept}
    by_kind = {name.partition(":")[0]: name for name in kept}
    for step, value in enumerate(values.tolist()):
        for event in panel.judge(StepReading(step, layout, (value,))):
            if event.severity >= least:
                found[by_kind[event.kind]].append(event.step)
    return found


def theirs(values: Floats) -> dict[str, list[int]]:
    rules = published()
    found: dict[str, list[int]] = {name: [] for name in rules}
    for name, rule in rules.items():
        found[name] = [step for step, value in enumerate(values.tolist()) if rule.bad(value)]
    return found


def everybody(quantity: str, values: Floats, least: Severity) -> dict[str, list[int]]:
    return {**ours(quantity, values, OURS, least), **ours(quantity, values, CLASSIC, least), **theirs(values)}


def episodes(steps: Sequence[int]) -> int:
    return sum(1 for at, step in enumerate(steps) if not at or step - steps[at - 1] > APART)


def table(title: str, columns: Sequence[str], rows: dict[str, dict[str, str]]) -> None:
    print(f"\n{title}\n" + "-" * len(title))
    print(" " * 32 + "".join(f"{column:>13}" for column in columns))
    for name, cells in rows.items():
        print(f"{name:32}" + "".join(f"{cells.get(column, ''):>13}" for column in columns))


def false_alarms(steps: int) -> None:
    rows: dict[str, dict[str, str]] = {}
    for column, (quantity, ends, noisy) in MODELS.items():
        for name, found in everybody(
            quantity, noisy(falling(steps, *ends), np.random.default_rng(11)), Severity.WARNING
        ).items():
            rows.setdefault(name, {})[column] = f"{episodes(found) * 1e5 / steps:.1f}"
    table(f"False alarms: episodes per 100,000 healthy steps ({steps:,} of each noise)", list(MODELS), rows)


def recall(trials: int) -> None:
    for column, (quantity, ends, noisy) in MODELS.items():
        troubles = {name: each for name, each in TROUBLES.items() if each[0] == quantity}
        rows: dict[str, dict[str, str]] = {}
        for trouble, (_, within, happen) in troubles.items():
            hits: dict[str, int] = {}
            for trial in range(trials):
                curve = falling(BEFORE + within, *ends, of=20_000, start=10_000)
                values = happen(noisy(curve, np.random.default_rng(1000 + trial)))
                judged = everybody(quantity, values, Severity.INFO)
                judged = {"ours together": [step for name in OURS for step in judged.get(name, ())], **judged}
                for name, found in judged.items():
                    hits[name] = hits.get(name, 0) + any(BEFORE <= step < BEFORE + within for step in found)
            for name, count in hits.items():
                rows.setdefault(name, {})[trouble.replace(" steps", "").replace(" step", "")] = f"{count / trials:.0%}"
        columns = [trouble.replace(" steps", "").replace(" step", "") for trouble in troubles]
        table(f"Recall, {column}: found within {'/'.join(str(t[1]) for t in troubles.values())} steps", columns, rows)


def cost(steps: int) -> None:
    rows: dict[str, dict[str, str]] = {}
    random, curve = np.random.default_rng(5), falling(steps, 1.8, 3.0)
    shapes: dict[str, Floats] = {
        "loss": gaussian(curve, random),
        "grad_norm": gradient_norms(curve, random),
        "learning_rate": np.linspace(1e-3, 1e-5, steps),
        "loss_scale": np.full(steps, 1024.0),
        "skipped_steps": np.zeros(steps),
        "val_loss": gaussian(curve, random),
        "step_time": gradient_norms(curve, random),
        "param_norm": gaussian(curve, random),
    }
    for quantity, values in shapes.items():
        layout, panel = (Signal(quantity),), Panel()
        readings = [StepReading(step, layout, (value,)) for step, value in enumerate(values.tolist())]
        began = time.process_time()
        for reading in readings:
            panel.judge(reading)
        each = (time.process_time() - began) / steps * 1e6
        looking = sum(quantity in detector.quantities for detector in panel.detectors)
        rows[quantity] = {"us CPU a step": f"{each:.1f}", "detectors": str(looking)}
    table("Cost: all detectors together, one signal", ["us CPU a step", "detectors"], rows)


def replay_time(points: int) -> None:
    panel, layout = Panel(), (Signal("loss"),)
    values = gaussian(falling(points, 1.8, 3.0), np.random.default_rng(6)).tolist()
    began = time.process_time()
    for step, value in enumerate(values):
        panel.judge(StepReading(step, layout, (value,)))
    print(f"\n{points:,} points of the loss replayed in {time.process_time() - began:.1f} s of CPU time")


def main() -> None:
    quick = "--quick" in sys.argv[1:]
    names = ", ".join(map(name_of, default_detectors()))
    print(textwrap.fill(f"{len(default_detectors())} detectors: {names}", 100))
    false_alarms(20_000 if quick else 200_000)
    recall(20 if quick else 100)
    cost(20_000 if quick else 100_000)
    replay_time(100_000 if quick else 1_000_000)


if __name__ == "__main__":
    main()
