"""False alarms, recall and cost of the detectors, beside the classic rules and published ones."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
from benchmarks.table import Cell, Table, table_of
from numpy.typing import NDArray

from mlflow_stability.kinds.catalog import default_detectors, detectors_named, name_of
from mlflow_stability.kinds.panel import Panel
from mlflow_stability.vocabulary.measured.signal import Signal, StepReading
from mlflow_stability.vocabulary.result import Severity

Floats = NDArray[np.float64]
OURS = ("loss_spike", "divergence", "gradient_explosion")
CLASSIC = tuple(f"{name}:classic" for name in OURS)
APART_STEPS = 16
HEALTHY_STEPS = 1200
"""Healthy steps before each fault."""


def falling(steps: int, low: float, high: float, of: int = 0, start: int = 0) -> Floats:
    """Return a loss that falls, or a piece out of the middle of it, where curves are nearly flat."""
    return low + (high - low) * np.exp(-3 * np.arange(start, start + steps) / (of or steps))


def gaussian(curve: Floats, rng: np.random.Generator) -> Floats:
    return curve + 0.03 * rng.standard_normal(len(curve))


def autoregressive(curve: Floats, rng: np.random.Generator, phi: float = 0.9) -> Floats:
    noise = np.empty(len(curve))
    last = rng.standard_normal()
    for step, fresh in enumerate((rng.standard_normal(len(curve)) * np.sqrt(1 - phi**2)).tolist()):
        last = noise[step] = phi * last + fresh
    return curve + 0.03 * noise


def heavy_tailed(curve: Floats, rng: np.random.Generator) -> Floats:
    return np.maximum(curve + 0.03 * rng.standard_t(3, len(curve)), 0.05)


def gradient_norms(curve: Floats, rng: np.random.Generator) -> Floats:
    return np.exp(0.31 * rng.standard_normal(len(curve)) - 0.2)


def small_batches(curve: Floats, rng: np.random.Generator) -> Floats:
    return np.maximum(curve + 0.25 * (rng.gamma(4.0, 1.0, len(curve)) - 4.0) / 2.0, 0.02)


MODELS: dict[str, tuple[str, tuple[float, float], Callable[[Floats, np.random.Generator], Floats]]] = {
    "Gaussian": ("loss", (1.8, 3.0), gaussian),
    "AR(0.9)": ("loss", (1.8, 3.0), autoregressive),
    "t3": ("loss", (1.8, 3.0), heavy_tailed),
    "log-normal": ("grad_norm", (1.0, 1.0), gradient_norms),
    "small batch": ("loss", (1.5, 4.5), small_batches),
}
"""The quantity, its lowest and highest level, and its noise."""


def plus_one(values: Floats, steps: int) -> Floats:
    values[HEALTHY_STEPS : HEALTHY_STEPS + steps] += 1.0
    return values


def jump(values: Floats) -> Floats:
    values[HEALTHY_STEPS:] *= 1.35
    return values


def drift(values: Floats) -> Floats:
    values[HEALTHY_STEPS:] *= 1.002 ** np.arange(1, len(values) - HEALTHY_STEPS + 1)
    return values


def times_20(values: Floats) -> Floats:
    values[HEALTHY_STEPS] *= 20.0
    return values


FAULTS: dict[str, tuple[str, int, Callable[[Floats], Floats]]] = {
    "+1.0 for 1 step": ("loss", 1, lambda values: plus_one(values, 1)),
    "+1.0 for 8 steps": ("loss", 8, lambda values: plus_one(values, 8)),
    "+35 % jump": ("loss", 12, jump),
    "+0.2 % a step": ("loss", 80, drift),
    "gradient x 20": ("grad_norm", 1, times_20),
}
"""The quantity, the steps within which it must be found, and what happens."""


class Rule(Protocol):
    """A published rule: takes the values one by one and returns whether the newest is bad."""

    def bad(self, value: float) -> bool: ...


class Moments:
    """Mean and deviation of the last values, kept as sums."""

    def __init__(self, window: int) -> None:
        self.values: deque[float] = deque(maxlen=window)
        self.total = self.squares = 0.0

    def add(self, value: float) -> None:
        if len(self.values) == self.values.maxlen:
            self.total -= self.values[0]
            self.squares -= self.values[0] ** 2
        self.values.append(value)
        self.total += value
        self.squares += value**2

    @property
    def mean(self) -> float:
        return self.total / len(self.values)

    @property
    def deviation(self) -> float:
        return math.sqrt(max(self.squares / len(self.values) - self.mean**2, 0.0))


class Sigmas:
    """A number of deviations above the mean of the window; bad values enter the window, too."""

    def __init__(self, sigmas: float, window: int, least: int) -> None:
        self.sigmas, self.least, self.moments = sigmas, least, Moments(window)

    def bad(self, value: float) -> bool:
        moments = self.moments
        is_bad = len(moments.values) >= self.least and value - moments.mean > self.sigmas * moments.deviation
        moments.add(value)
        return is_bad


class TimesMean:
    """llm-foundry's KillLossSpike: at least twice the mean of the window; bad values enter it."""

    def __init__(self, times: float = 2.0, window: int = 100) -> None:
        self.times, self.window, self.moments = times, window, Moments(window)

    def bad(self, value: float) -> bool:
        is_bad = len(self.moments.values) == self.window and value >= self.times * self.moments.mean
        self.moments.add(value)
        return is_bad


class TimesFirstMax:
    """Megatron-LM's spiky loss: ten times the largest of the first 100."""

    def __init__(self, times: float = 10.0, first: int = 100) -> None:
        self.times, self.left, self.largest = times, first, 0.0

    def bad(self, value: float) -> bool:
        if self.left:
            self.left -= 1
            self.largest = max(self.largest, abs(value))
            return False
        return value >= self.times * self.largest


class Lightning:
    """Lightning's SpikeDetection: worse than the last accepted one, and off the running mean by twice that mean."""

    def __init__(self, window: int = 10, rtol: float = 2.0) -> None:
        self.rtol, self.moments, self.last = rtol, Moments(window), math.inf

    def bad(self, value: float) -> bool:
        moments = self.moments
        if not math.isfinite(value):
            return True
        if moments.values and value > self.last and abs(value - moments.mean) >= self.rtol * abs(moments.mean):
            return True
        moments.add(value)
        self.last = value
        return False


class ZClip:
    """ZClip: z above 2.5 of moving averages that are fed with the clipped value."""

    def __init__(self, alpha: float = 0.97, z: float = 2.5, warm_up: int = 25) -> None:
        self.alpha, self.z, self.warm_up = alpha, z, warm_up
        self.first: list[float] = []
        self.mean = self.variance = 0.0

    def bad(self, value: float) -> bool:
        if len(self.first) < self.warm_up:
            self.first.append(value)
            self.mean, self.variance = float(np.mean(self.first)), float(np.var(self.first))
            return False
        deviation = math.sqrt(self.variance) + 1e-6
        z = (value - self.mean) / deviation
        is_bad = z > self.z
        kept = self.mean + self.z**2 / z * deviation if is_bad else value
        self.mean = self.alpha * self.mean + (1 - self.alpha) * kept
        self.variance = self.alpha * self.variance + (1 - self.alpha) * (kept - self.mean) ** 2
        return is_bad


def published() -> dict[str, Rule]:
    """Return the rules of other projects, exactly as published, fresh."""
    return {
        "OLMo-core 6 sigma of 128": Sigmas(6.0, 128, 64),
        "OLMo 2 7 sigma of 1000": Sigmas(7.0, 1000, 1000),
        "llm-foundry 2x mean of 100": TimesMean(),
        "Megatron 10x max of first 100": TimesFirstMax(),
        "Lightning rtol 2 of 10": Lightning(),
        "ZClip z 2.5": ZClip(),
    }


def detection(healthy_steps: int = 200_000, trials: int = 100, cost_steps: int = 100_000) -> Iterator[Table]:
    """Compare rules on drawn signals.

    A false alarm is an episode of WARNING or CRITICAL: bad steps with fewer than 16 good ones between them count once,
    for every rule alike. Recall also counts INFO, which a single high value is; a rule that fires every hundred steps
    anyway finds a fault by chance.
    """
    names = ", ".join(map(name_of, default_detectors()))
    alarms: dict[str, dict[str, Cell]] = {}
    for column, (quantity, ends, noisy) in MODELS.items():
        values = noisy(falling(healthy_steps, *ends), np.random.default_rng(11))
        for name, steps in found_by_all(quantity, values, Severity.WARNING).items():
            alarms.setdefault(name, {"rule": name})[column] = round(episodes(steps) * 1e5 / healthy_steps, 1)
    title = f"False alarms: episodes in 100,000 healthy steps ({healthy_steps:,} of each noise)"
    yield table_of(title, alarms.values(), [f"{len(default_detectors())} detectors: {names}"])
    for column in MODELS:
        yield recall(column, trials)
    yield cost(cost_steps)


def found_by_all(quantity: str, values: Floats, least: Severity) -> dict[str, list[int]]:
    """Return the steps at which each rule found something, ours of this severity or worse."""
    return {
        **found_by_ours(quantity, values, OURS, least),
        **found_by_ours(quantity, values, CLASSIC, least),
        **{
            name: [step for step, value in enumerate(values.tolist()) if rule.bad(value)]
            for name, rule in published().items()
        },
    }


def found_by_ours(quantity: str, values: Floats, names: Sequence[str], least: Severity) -> dict[str, list[int]]:
    panel, layout = Panel(detectors_named(names)), (Signal(quantity),)
    kept = [name for name, detector in zip(names, panel.detectors, strict=True) if quantity in detector.quantities]
    steps: dict[str, list[int]] = {name: [] for name in kept}
    by_kind = {name.partition(":")[0]: name for name in kept}
    for step, value in enumerate(values.tolist()):
        for event in panel.judge(StepReading(step, layout, (value,))):
            if event.severity >= least:
                steps[by_kind[event.kind]].append(event.step)
    return steps


def episodes(steps: Sequence[int]) -> int:
    return sum(1 for at, step in enumerate(steps) if not at or step - steps[at - 1] > APART_STEPS)


def recall(column: str, trials: int) -> Table:
    quantity, ends, noisy = MODELS[column]
    faults = {name: fault for name, fault in FAULTS.items() if fault[0] == quantity}
    rows: dict[str, dict[str, Cell]] = {}
    for name, (_, within, happen) in faults.items():
        hits: dict[str, int] = {}
        for trial in range(trials):
            curve = falling(HEALTHY_STEPS + within, *ends, of=20_000, start=10_000)
            values = happen(noisy(curve, np.random.default_rng(1000 + trial)))
            judged = found_by_all(quantity, values, Severity.INFO)
            judged = {"ours together": [step for rule in OURS for step in judged.get(rule, ())], **judged}
            for rule, steps in judged.items():
                hits[rule] = hits.get(rule, 0) + any(HEALTHY_STEPS <= step < HEALTHY_STEPS + within for step in steps)
        for rule, count in hits.items():
            rows.setdefault(rule, {"rule": rule})[name] = f"{count / trials:.0%}"
    within = "/".join(str(fault[1]) for fault in faults.values())
    return table_of(f"Recall, {column}: found within {within} steps", rows.values())


def cost(steps: int) -> Table:
    """Measure the CPU time of all detectors together, one signal at a time."""
    rng, curve = np.random.default_rng(5), falling(steps, 1.8, 3.0)
    signals: dict[str, Floats] = {
        "loss": gaussian(curve, rng),
        "grad_norm": gradient_norms(curve, rng),
        "learning_rate": np.linspace(1e-3, 1e-5, steps),
        "loss_scale": np.full(steps, 1024.0),
        "skipped_steps": np.zeros(steps),
        "val_loss": gaussian(curve, rng),
        "step_time": gradient_norms(curve, rng),
        "param_norm": gaussian(curve, rng),
    }
    rows = []
    for quantity, values in signals.items():
        layout, panel = (Signal(quantity),), Panel()
        readings = [StepReading(step, layout, (value,)) for step, value in enumerate(values.tolist())]
        began = time.process_time()
        for reading in readings:
            panel.judge(reading)
        microseconds = (time.process_time() - began) / steps * 1e6
        detectors = sum(quantity in detector.quantities for detector in panel.detectors)
        rows.append({"signal": quantity, "us CPU a step": microseconds, "detectors": detectors})
    return table_of("Cost: all detectors together, one signal", rows)
