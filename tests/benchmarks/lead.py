"""How many steps before the loss leaves its level each signal speaks, and how often it speaks in healthy trainings.

python tests/benchmarks/lead.py [--seeds 3] [--zoo] [--keep FILE]

Eight families of trainings go wrong slowly from a known step on; each has a healthy twin with the same seed, and
healthy trainings of the zoo are beside them. All are recorded as a user's are, with layers measured every 10 steps.

The rule of a signal: a line through its logarithms over the last measurements foretells the next one; what lies above
it, in widths of the noise, is added up (a one-sided CUSUM with k = 1), and the signal speaks where the sum is above h.
Families are split into halves: h is the lowest of a few values with which the signal never speaks in healthy trainings
of one half, nor before the fault sets in; it is judged on the other half, and then the other way round. "Two signals"
speaks where a second one of those that were right in four of five cases on the first half speaks within 50 steps.

The loss has left its level at the first step from which on its median over 9 steps is above all that came in the 50
steps before the fault, by half of their range, for 10 steps in a row. Precision is the share of trainings that then did
leave it among those in which a signal spoke before, healthy ones among them.

The published peer (trainscope 1.8.1): a CUSUM of the loss, (loss - median) / (1.4826 MAD) of the last 200 losses with
at least 30 of them, h = 6, k = 1; here its rises alone count, as a loss that falls is no fault.
"""

from __future__ import annotations

import argparse
import math
import pickle
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from unittest.mock import patch

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
from benchmarks.routing_detection import HEALTHY as MIXTURES
from scenarios.flying import flying
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, AdamW, Optimizer
from zoo.healthy.catalog import HEALTHY
from zoo.healthy.data import dice_of, mlp, points

from mlflow_stability.demo.char_gpt import CharGPT
from mlflow_stability.demo.tasks.language import LENGTH, LETTERS, lines, next_letter, written
from mlflow_stability.session.process.courier_link import CourierLink
from mlflow_stability.vocabulary.measured.observation import StepReading

ONSET, STEPS = 200, 400
HEIGHTS = (4.0, 6.0, 9.0, 13.0, 20.0, 30.0, 50.0, 100.0)
WINDOW, LEAST = 12, 6
"""Measurements of the line, and how many it needs."""
TOGETHER = 50
LARGEST = (
    *("loss", "grad_norm", "param_norm", "update_ratio", "adam_rms", "momentum_norm"),
    *("activation_kurtosis", "activation_rms", "attention_max_logit", "router_max_logit", "router_max_share"),
)
SMALLEST = ("attention_entropy", "router_load_entropy", "router_entropy")
SIGNALS = (*LARGEST, *SMALLEST)
OF_ZOO = (
    *("graph", "hinge_to_zero", "rmsprop", "steps_of_the_rate", "one_cycle", "cosine_restarts"),
    *("mixture_of_experts", "triplets"),
)
"""Healthy trainings of other kinds: judged in the half in which they stand by their place."""
Trace = dict[str, tuple[list[int], list[float]]]
"""Of each signal steps and values: the largest, or smallest, of all places."""
Fault = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Run:
    """One training."""

    family: str
    seed: int
    ill: bool
    trace: Trace


def train(optimizer: Optimizer, loss_of: Callable[[], torch.Tensor], fault: Fault) -> None:
    for step in range(1, STEPS + 1):
        if step > ONSET:
            fault(step)
        loss = loss_of()
        if not math.isfinite(float(loss.detach())):
            return
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def nothing(_step: int) -> None:
    """The healthy twin."""


def faster(optimizer: Optimizer, factor: float) -> Fault:
    def fault(_step: int) -> None:
        for group in optimizer.param_groups:
            group["lr"] *= factor

    return fault


def scaled(weights: Sequence[torch.Tensor], factor: float) -> Fault:
    @torch.no_grad()
    def fault(_step: int) -> None:
        for each in weights:
            each *= factor

    return fault


def classifier(seed: int, ill: bool, kind: str) -> None:
    """The families of a small perceptron."""
    draw = points(dice_of(seed), 1.5)
    normed = [part for _ in range(3) for part in (nn.Linear(32, 32, bias=False), nn.LayerNorm(32), nn.ReLU())]
    model = nn.Sequential(*normed, nn.Linear(32, 10)) if kind == "update ratio" else mlp(48, 3)
    plain = kind in ("rate creeps", "update ratio")
    optimizer: Optimizer = SGD(model.parameters(), 0.05, 0.9) if plain else AdamW(model.parameters(), 2e-3)
    matrices = [each for each in model.parameters() if each.dim() == 2]
    drift = [1.0]

    def inputs_grow(_step: int) -> None:
        drift[0] *= 1.02

    faults: dict[str, Fault] = {
        "rate creeps": faster(optimizer, 1.02),
        "update ratio": scaled(matrices[:3], 0.97),
        "weight norm": scaled(matrices, 1.01),
        "activation outlier": scaled([matrices[1][:1].detach()], 1.05),
        "RMS lags": inputs_grow,
    }

    def loss_of() -> torch.Tensor:
        inputs, labels = draw(32)
        return cross_entropy(model(inputs * drift[0]), labels)

    train(optimizer, loss_of, faults[kind] if ill else nothing)


def language(seed: int, ill: bool, kind: str) -> None:
    """The families of a small transformer."""
    texts, dice, model = written(0), dice_of(seed), CharGPT(LETTERS, LENGTH, width=48)
    optimizer = AdamW(model.parameters(), 6e-3)
    queries = [each[:96].detach() for name, each in model.named_parameters() if name.endswith("qkv.weight")]
    fault = faster(optimizer, 1.03) if kind == "rate creeps, AdamW" else scaled(queries, 1.03)
    train(optimizer, lambda: next_letter(model, lines(texts, dice, 12)), fault if ill else nothing)


def mixture(seed: int, ill: bool, kind: str) -> None:
    """A router that sends ever more tokens to one expert, which has no room for them."""
    model = MIXTURES["one of eight, capacity"]()
    model.dice.manual_seed(seed + 50)
    optimizer = AdamW(model.parameters(), 2e-3)
    model.mixture.register_buffer("bias", torch.zeros(8))

    def fault(_step: int) -> None:
        model.mixture.bias[3] += 0.01

    model.mixture.train(ill)
    train(optimizer, model.loss, fault if ill else nothing)


FAMILIES: dict[str, Callable[[int, bool, str], None]] = {
    "rate creeps": classifier,
    "rate creeps, AdamW": language,
    "weight norm": classifier,
    "update ratio": classifier,
    "attention logits": language,
    "RMS lags": classifier,
    "router concentration": mixture,
    "activation outlier": classifier,
}
"""Those at even places are one half, those at odd places the other."""


def recorded(training: Callable[[int], None], seed: int) -> Trace:
    """Train it in this process, and take the signals from its journal."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    often = {"layers_every_n_steps": 10, "attention_every_n_steps": 10}
    with tempfile.TemporaryDirectory() as folder, patch.object(CourierLink, "start"):
        with flying(Path(folder), **often) as flown:
            training(seed)
        trace: Trace = {}
        for record in flown.records:
            if isinstance(record, StepReading):
                add(trace, record)
    return trace


def add(trace: Trace, reading: StepReading) -> None:
    found: dict[str, float] = {}
    for signal, value in zip(reading.signals, reading.values, strict=True):
        name = signal.quantity
        if name in SIGNALS and math.isfinite(value) and not (name in ("loss", "grad_norm") and signal.place):
            least = name in SMALLEST
            found[name] = value if name not in found else (min if least else max)(found[name], value)
    for name, value in found.items():
        steps, values = trace.setdefault(name, ([], []))
        steps.append(reading.step)
        values.append(value)


def left_at(trace: Trace) -> int | None:
    """The step at which the loss leaves its level for good."""
    steps, values = map(np.array, trace["loss"])
    smooth = np.array([np.median(values[max(0, at - 8) : at + 1]) for at in range(len(values))])
    level = smooth[(steps > ONSET - 50) & (steps <= ONSET)]
    limit = level.max() + 0.5 * (level.max() - level.min())
    above = (smooth > limit) & (steps > ONSET)
    run = 0
    for at, each in enumerate(above):
        run = run + 1 if each else 0
        if run == 10:
            return int(steps[at - 9])
    return None


def spoke_at(trace: Trace, name: str, height: float) -> int | None:
    """The step at which the rule of a signal speaks first."""
    steps, values = trace.get(name, ([], []))
    sign = -1.0 if name in SMALLEST else 1.0
    if name in ("loss", "grad_norm"):  # noisy, and there at every step: as often as the others
        steps, values = steps[9::10], [median(values[max(0, at - 9) : at + 1]) for at in range(9, len(values), 10)]
    logs = sign * np.log(np.maximum(np.array(values, float), 1e-12))
    total = 0.0
    for at in range(LEAST, len(logs)):
        before = logs[max(0, at - WINDOW) : at]
        places = np.arange(len(before)) - len(before)
        slope, level = np.polyfit(places, before, 1)
        rest = before - (slope * places + level)
        noise = max(1.4826 * float(np.median(np.abs(rest))), 0.01)
        total = max(0.0, total + (float(logs[at]) - level) / noise - 1.0)
        if total > height:
            return steps[at]
    return None


def peer_spoke_at(trace: Trace) -> int | None:
    """The rule of trainscope."""
    steps, values = trace["loss"]
    rise = fall = 0.0
    for at in range(30, len(values)):
        before = np.array(values[max(0, at - 200) : at])
        center = float(np.median(before))
        z = (values[at] - center) / max(1.4826 * float(np.median(np.abs(before - center))), 1e-12)
        rise, fall = max(0.0, rise + z - 1.0), min(0.0, fall + z + 1.0)
        if rise >= 6.0:
            return steps[at]
        if fall <= -6.0:
            rise = fall = 0.0
    return None


@dataclass(slots=True)
class Tally:
    """How one rule did."""

    leads: list[int]
    ill: int = 0
    """Trainings whose loss left its level."""
    false: int = 0
    """Healthy trainings in which it spoke, and ill ones in which it did before the fault."""
    healthy: int = 0

    def add(self, run: Run, spoke: int | None) -> None:
        left = left_at(run.trace) if run.ill else None
        if not run.ill:
            self.healthy += 1
            self.false += spoke is not None
        elif spoke is not None and spoke <= ONSET:
            self.false += 1
            self.ill += left is not None
        elif left is not None:
            self.ill += 1
            if spoke is not None and spoke < left:
                self.leads.append(left - spoke)

    @property
    def precision(self) -> float:
        said = len(self.leads) + self.false
        return len(self.leads) / said if said else math.nan

    def row(self, name: str) -> str:
        lead = f"{median(self.leads):.0f} ({min(self.leads)}-{max(self.leads)})" if self.leads else "-"
        precise = f"{self.precision:.0%}" if self.leads or self.false else "-"
        before = f"{len(self.leads)} of {self.ill}"
        return f"{name:34}{before:>10}{lead:>16}{self.false:>8}{self.healthy:>9}{precise:>11}"


def fitted(runs: Sequence[Run], name: str) -> float | None:
    """The lowest height without a false alarm; None: there is none."""
    for height in HEIGHTS:
        tally = Tally([])
        for run in runs:
            tally.add(run, spoke_at(run.trace, name, height))
        if not tally.false:
            return height if tally.leads else None
    return None


def judged(runs: Sequence[Run], halves: Mapping[str, int]) -> None:
    """Print the table."""
    tallies = {name: Tally([]) for name in (*SIGNALS, "any signal", "two signals", "any but loss", "peer")}
    for half in (0, 1):
        built = [run for run in runs if halves[run.family] == half]
        other = [run for run in runs if halves[run.family] != half]
        heights = {name: height for name in SIGNALS if (height := fitted(built, name)) is not None}
        print(f"half {half}: " + ", ".join(f"{name} {height:g}" for name, height in heights.items()))
        for run in other:
            spoke = {name: spoke_at(run.trace, name, height) for name, height in heights.items()}
            for name, step in spoke.items():
                tallies[name].add(run, step)
            at = sorted(step for step in spoke.values() if step is not None)
            without = sorted(step for name, step in spoke.items() if step is not None and name != "loss")
            pair = next((two for one, two in pairwise(at) if two - one <= TOGETHER), None)
            tallies["any signal"].add(run, at[0] if at else None)
            tallies["any but loss"].add(run, without[0] if without else None)
            tallies["two signals"].add(run, pair)
            tallies["peer"].add(run, peer_spoke_at(run.trace))
    print(f"\n{'rule':34}{'ahead':>10}{'lead, steps':>16}{'false':>8}{'healthy':>9}{'precision':>11}")
    for name, tally in tallies.items():
        title = "CUSUM of the loss (trainscope)" if name == "peer" else name
        print(tally.row(title))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--zoo", action="store_true", help="all healthy trainings of the zoo, not eight of them")
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    runs: list[Run] = pickle.loads(options.keep.read_bytes()) if options.keep and options.keep.exists() else []
    known = {(run.family, run.seed, run.ill) for run in runs}
    zoo = [each for each in HEALTHY if options.zoo or each.__name__ in OF_ZOO]
    jobs: list[tuple[str, int, bool, Callable[[int], None]]] = [(each.__name__, 0, False, each) for each in zoo]
    jobs += [
        (name, seed, ill, partial(training, ill=ill, kind=name))
        for seed in range(options.seeds)
        for name, training in FAMILIES.items()
        for ill in (True, False)
    ]
    for name, seed, ill, training in jobs:
        if (name, seed, ill) in known:
            continue
        run = Run(name, seed, ill, recorded(training, seed))
        runs.append(run)
        left = left_at(run.trace) if ill else "healthy"
        print(f"{name:24}{seed:>3}  loss leaves its level at {left}", flush=True)
        if options.keep:
            options.keep.write_bytes(pickle.dumps(runs))
    halves = {name: at % 2 for names in (FAMILIES, [each.__name__ for each in zoo]) for at, name in enumerate(names)}
    judged(runs, halves)


if __name__ == "__main__":
    main()
