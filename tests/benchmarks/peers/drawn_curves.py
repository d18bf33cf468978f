"""Synthetic loss curves on which other tools were compared, and what the diagnosis finds in them.

`PEERS` are those curves; `OTHERS` vary what those hold constant: shapes, noise, schedules. Each maker takes a generator
and returns the losses of one run.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from benchmarks.table import Table, table_of
from numpy.typing import NDArray

from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.vocabulary.measured.signal import Series
from mlflow_stability.vocabulary.result import Severity
from mlflow_stability.vocabulary.run import Metric, RunHistory
from mlflow_stability.vocabulary.text.metric_names import Meaning

Losses = NDArray[np.float64]
Maker = Callable[[np.random.Generator], Losses]
STEPS = np.arange(1000)
SIGMA = 0.05


def decay(rng: np.random.Generator, sigma: float = SIGMA, tau: float = 150.0) -> Losses:
    return 1.5 + 3 * np.exp(-STEPS / tau) + rng.normal(0, sigma, len(STEPS))


def power_law(rng: np.random.Generator, sigma: float = SIGMA, power: float = 0.3) -> Losses:
    return 1.5 + 3 * (1 + STEPS / 5) ** -power + rng.normal(0, sigma, len(STEPS))


def one_step(factor: float) -> Maker:
    def make(rng: np.random.Generator) -> Losses:
        losses = decay(rng)
        losses[600] *= factor
        return losses

    return make


def diverging(rng: np.random.Generator) -> Losses:
    losses = decay(rng)
    losses[600:] *= np.exp((STEPS[600:] - 600) / 150)
    return losses


def diverging_fast(rng: np.random.Generator) -> Losses:
    losses = decay(rng)
    losses[900:] *= 1 + 5 * np.minimum(1, (STEPS[900:] - 900) / 20)
    return losses


def drifting(rng: np.random.Generator) -> Losses:
    losses = decay(rng)
    losses[400:] += (STEPS[400:] - 400) / 600
    return losses


def broken(value: float) -> Maker:
    def make(rng: np.random.Generator) -> Losses:
        losses = decay(rng)
        losses[700:] = value
        return losses

    return make


def stuck(first: float = 5.5, level: float = 4.5, since: int = 100) -> Maker:
    def make(rng: np.random.Generator) -> Losses:
        return level + (first - level) * np.maximum(0, 1 - STEPS / since) + rng.normal(0, SIGMA, len(STEPS))

    return make


def flat(rng: np.random.Generator) -> Losses:
    return math.log(256) + rng.normal(0, SIGMA, len(STEPS))


def fine_tuning(rng: np.random.Generator) -> Losses:
    return 1.08 + 0.22 * np.exp(-STEPS / 60) + rng.normal(0, SIGMA, len(STEPS))


def policy_gradient(rng: np.random.Generator) -> Losses:
    return rng.normal(0, 0.03, len(STEPS)) - 0.01 * np.sin(STEPS / 120)


PEERS: dict[str, tuple[Maker, str, int]] = {
    "healthy": (decay, "", 0),
    "healthy_noisy": (lambda rng: decay(rng, 0.15), "", 0),
    "healthy_warm": (power_law, "", 0),
    "healthy_conv": (lambda rng: decay(rng, tau=40.0), "", 0),
    "fine_tuning": (fine_tuning, "", 0),
    "policy_gradient": (policy_gradient, "", 0),
    "spike2": (one_step(2), "loss_spike", 600),
    "spike4": (one_step(4), "loss_spike", 600),
    "diverge": (diverging, "divergence", 600),
    "diverge_fast": (diverging_fast, "divergence", 900),
    "drift": (drifting, "divergence", 400),
    "nan": (broken(math.nan), "nan_detected", 700),
    "inf": (broken(math.inf), "inf_detected", 700),
    "plateau": (stuck(), "plateau", 100),
    "flat": (flat, "plateau", 0),
}
"""Name: how it is made, what must be found in it, and from which step on."""


def cosine_with_kinks(rng: np.random.Generator) -> Losses:
    cycle = 0.3 * (1 + np.cos(2 * np.pi * (STEPS % 250) / 250)) / 2
    return 1.4 + 2.6 * np.exp(-STEPS / 180) + 0.4 * cycle * np.exp(-STEPS / 300) + rng.normal(0, SIGMA, len(STEPS))


def step_decay(rng: np.random.Generator) -> Losses:
    levels = np.array([2.2, 1.5, 1.2, 1.1])[np.minimum(3, STEPS // 300)]
    return levels + 2.5 * np.exp(-STEPS / 60) + rng.normal(0, 0.08, len(STEPS))


def warm_up_bump(rng: np.random.Generator) -> Losses:
    bump = 1.2 * np.exp(-(((STEPS - 25) / 12) ** 2))
    return 1.8 + 5 * np.exp(-STEPS / 120) + bump + rng.normal(0, SIGMA, len(STEPS))


def first_steps_jump(rng: np.random.Generator) -> Losses:
    losses = 2 + 5 * np.exp(-STEPS / 100) + rng.normal(0, SIGMA, len(STEPS))
    losses[2:5] += [9.0, 3.0, 1.0]
    return losses


def epoch_waves(rng: np.random.Generator) -> Losses:
    return 1.5 + 2 * np.exp(-STEPS / 250) + 0.08 * np.sin(2 * np.pi * STEPS / 100) + rng.normal(0, 0.04, len(STEPS))


def epoch_drops(rng: np.random.Generator) -> Losses:
    return 2.5 * 0.6 ** (STEPS // 250) + 0.1 + rng.normal(0, 0.05, len(STEPS)) * 0.6 ** (STEPS // 250)


def growing_noise(rng: np.random.Generator) -> Losses:
    return (0.2 + 3 * np.exp(-STEPS / 200)) * np.exp(rng.normal(0, 1, len(STEPS)) * (0.02 + 0.2 * STEPS / len(STEPS)))


def coarse_rounding(rng: np.random.Generator) -> Losses:
    exact = (1.5 + 3 * np.exp(-STEPS / 150) + rng.normal(0, 0.02, len(STEPS))).astype(np.float32)
    return (exact.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)


def heavy_tails(rng: np.random.Generator) -> Losses:
    return (1.5 + 3 * np.exp(-STEPS / 150)) * np.exp(0.03 * rng.standard_t(3, len(STEPS)))


def skewed(rng: np.random.Generator) -> Losses:
    return (1.5 + 3 * np.exp(-STEPS / 150)) * np.exp(rng.gamma(4, 0.12, len(STEPS)) - 0.48)


def slow_noise(rng: np.random.Generator) -> Losses:
    noise = np.zeros(len(STEPS))
    for step in range(1, len(STEPS)):
        noise[step] = 0.9 * noise[step - 1] + rng.normal(0, 0.02)
    return (1.5 + 3 * np.exp(-STEPS / 150)) * np.exp(noise)


def to_zero(rng: np.random.Generator) -> Losses:
    floor = 1e-4 * np.exp(rng.normal(0, 0.6, len(STEPS)))
    return 3 * np.exp(-STEPS / 80) * np.exp(rng.normal(0, 0.2, len(STEPS))) + floor


def sum_of_squares(rng: np.random.Generator) -> Losses:
    return 1e13 * (1 + STEPS) ** -3.0 * np.exp(rng.normal(0, 0.05, len(STEPS))) + 20


def log_likelihood(rng: np.random.Generator) -> Losses:
    return -4 + 6 * np.exp(-STEPS / 200) + rng.normal(0, 0.1, len(STEPS))


def slow_finish(rng: np.random.Generator) -> Losses:
    return 11 * (1 + STEPS) ** -0.18 + rng.normal(0, 0.04, len(STEPS))


OTHERS: dict[str, Maker] = {
    maker.__name__: maker
    for maker in (
        cosine_with_kinks,
        step_decay,
        warm_up_bump,
        first_steps_jump,
        epoch_waves,
        epoch_drops,
        growing_noise,
        coarse_rounding,
        heavy_tails,
        skewed,
        slow_noise,
        to_zero,
        sum_of_squares,
        log_likelihood,
        slow_finish,
    )
}
"""Healthy ones."""

KindAndStep = tuple[str, int]


def drawn_curves(
    seeds: int = 20, first_seed: int = 0, every: int = 1, rules_only: bool = False, command: bool = False
) -> Iterator[Table]:
    """Diagnose each curve; `every` is the number of steps between two logged values.

    `command` writes JSONL files and reads them with `mlflow-stability diagnose`. `right` counts the runs with the
    wanted kind at WARNING or above, `others` those with another one, `delay` is in steps.
    """
    curves = {**PEERS, **{name: (maker, "", 0) for name, maker in OTHERS.items()}}
    rows = []
    began = time.perf_counter()
    for name, (maker, wanted, onset) in curves.items():
        losses = [maker(np.random.default_rng(seed)) for seed in range(first_seed, first_seed + seeds)]
        runs = by_command(losses, every) if command else in_process(losses, every, rules_only=rules_only)
        right = [[step for kind, step in run if kind == wanted] for run in runs]
        delays = [steps[0] - onset for steps in right if steps]
        rows.append(
            {
                "series": name,
                "wanted": wanted,
                "right": f"{sum(map(bool, right))}/{seeds}" if wanted else "",
                "others": sum(len(steps) < len(run) for steps, run in zip(right, runs, strict=True)),
                "episodes": sum(map(len, runs)) / len(runs),
                "delay": statistics.median(delays) if delays else None,
                "kinds": ", ".join(
                    f"{kind} {n}" for kind, n in Counter(kind for run in runs for kind, _ in run).items()
                ),
            }
        )
    milliseconds = (time.perf_counter() - began) / (len(curves) * seeds) * 1e3
    yield table_of("Findings at WARNING or above", rows, [f"{milliseconds:.1f} ms a run"])


def history_of(losses: np.ndarray, every: int = 1) -> RunHistory:
    """Return a run that logged its loss alone, every `every` steps."""
    meaning = Meaning("loss", is_known=True)
    steps = np.arange(0, len(losses), every)
    zeros = np.zeros(len(steps))
    series = Series(meaning.signal, steps, losses[::every], zeros.astype(np.int64), zeros)
    return RunHistory("synthetic", "synthetic", "json_lines", "all points", (Metric("loss", meaning, series),))


def in_process(curves: list[np.ndarray], every: int, *, rules_only: bool) -> list[list[KindAndStep]]:
    diagnoses = [diagnosis_of(history_of(losses, every), detectors=() if rules_only else None) for losses in curves]
    return [
        [(finding.kind, finding.start) for finding in diagnosis.findings if finding.severity >= Severity.WARNING]
        for diagnosis in diagnoses
    ]


def by_command(curves: list[np.ndarray], every: int) -> list[list[KindAndStep]]:
    """Write JSONL files and let the command line read them, as a user would."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{number:03d}.jsonl" for number in range(len(curves))]
        for path, losses in zip(paths, curves, strict=True):
            rows = [{"step": step, "loss": float(losses[step])} for step in range(0, len(losses), every)]
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        command = [sys.executable, "-m", "mlflow_stability", "diagnose", *map(str, paths), "--output-format", "json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode not in (0, 1):
            raise SystemExit(done.stderr)
        findings: dict[str, list[KindAndStep]] = {str(path): [] for path in paths}
        for issue in json.loads(done.stdout)["issues"]:
            if issue["severity"] != "INFO":
                findings[issue["source"]].append((issue["issue_type"], issue["step"]))
        return list(findings.values())
