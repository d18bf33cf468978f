"""False alarms and recall of the judgements about activations, codes and representations, on real trainings.

python tests/benchmarks/inside_detection_activations.py [--seeds 3] [--workers 2] [--keep FOLDER] [--only NAME ...]

Each training is measured by the probes in the first forward pass of every tenth cycle, and judged with every tenth of
these measurements, as a recording would be, and with all of them. Of every module that has parameters the
representation is measured too: more than anybody would name. `--keep` keeps what was measured, so that a rule can be
tried again.
"""

from __future__ import annotations

import argparse
import multiprocessing
import pickle
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import nn

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.inside_trainings import HEALTHY, ILL

from mlflow_stability.kinds.catalog import named
from mlflow_stability.kinds.panel import replay
from mlflow_stability.probes.activations.activation_probe import ActivationProbe
from mlflow_stability.probes.representations.representation_probe import RepresentationProbe
from mlflow_stability.vocabulary import Finding, StepReading

EVERY = 10
KINDS = (
    "dead_units",
    "saturated_activation",
    "sdr_collapse",
    "sdr_low_diversity",
    "sdr_bit_usage",
    "sdr_temperature",
    "representation_collapse",
)
Readings = list[list[StepReading]]
"""Those of each model."""


class InsideMeter:
    """Takes the place of the meter of layers: looks into the forward passes of the models that it is told of."""

    def __init__(self) -> None:
        self.norm_before_clipping: float | None = None
        self.models: Readings = []
        self.cycle = 0

    def loss(self, value: float) -> None:
        """The forward passes of a cycle are over."""
        self.cycle += 1

    def watch(self, model: nn.Module, prefix: str = "") -> None:
        """Look into a model, or into each of several that are called one by one."""
        if isinstance(model, nn.ModuleList):
            for each in model:
                self.watch(each)
        elif any(True for _ in model.parameters()):
            self.models.append([])
            _Looks(self, model)


class _Looks:
    def __init__(self, meter: InsideMeter, model: nn.Module) -> None:
        names = [name for name, each in model.named_modules() if name and any(True for _ in each.parameters(False))]
        self.probes = ActivationProbe(_unguarded, EVERY), RepresentationProbe(_unguarded, names, EVERY)
        self.meter, self.readings = meter, meter.models[-1]
        self.turn, self.cycle, self.open = 0, -1, False
        model.register_forward_pre_hook(self._before)
        model.register_forward_hook(self._after)

    def _before(self, model: nn.Module, _args: Any) -> None:
        if not (torch.is_grad_enabled() and model.training) or self.cycle == self.meter.cycle:
            return
        self.cycle = self.meter.cycle
        self.turn += 1
        if self.probes[0].due(self.turn):
            self.open = True
            for each in self.probes:
                each.open(model, self.turn, lambda: True)

    def _after(self, model: nn.Module, _args: Any, _output: Any) -> None:
        if not self.open:
            return
        self.open = False
        blocks = []
        for each in self.probes:
            each.close(True)
            blocks += each.blocks()
        signals = tuple(signal for each in blocks for signal in each.signals)
        values = tuple(value for each in blocks for value in each.values.tolist())  # type: ignore[union-attr]
        self.readings.append(StepReading(self.turn, signals, values))


def _unguarded(_part: str, body: Callable[..., Any]) -> Callable[..., Any]:
    return body


def measured(name: str, seed: int) -> Readings:
    """Train one in this process."""
    torch.set_num_threads(1)
    trainings = {each.__name__: each for each in (*HEALTHY, *(training for training, _ in ILL))}
    meter = InsideMeter()
    trainings[name](seed, meter)  # type: ignore[arg-type]
    return meter.models


def collected(names: list[str], seeds: range, folder: Path, workers: int) -> dict[tuple[str, int], Readings]:
    subjects = [(name, seed) for name in names for seed in seeds]
    missing = [each for each in subjects if not (folder / f"{each[0]}-{each[1]}.pickle").exists()]
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("forkserver")) as pool:
        for subject, found in zip(missing, pool.map(measured, *zip(*missing, strict=True)), strict=True):
            (folder / f"{subject[0]}-{subject[1]}.pickle").write_bytes(pickle.dumps(found))
    return {each: pickle.loads((folder / f"{each[0]}-{each[1]}.pickle").read_bytes()) for each in subjects}


def judged(models: Readings, every: int) -> list[Finding]:
    """What is said when every so-manieth pass had been looked into."""
    detectors = named(KINDS)
    return [event for each in models for event in replay([r for r in each if r.step % every == 0], detectors)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--only", nargs="*", help="trainings to look at")
    options = parser.parse_args()
    healthy = [each.__name__ for each in HEALTHY if not options.only or each.__name__ in options.only]
    ill = {each.__name__: kind for each, kind in ILL if not options.only or each.__name__ in options.only}
    with tempfile.TemporaryDirectory() as elsewhere:
        folder = options.keep or Path(elsewhere)
        folder.mkdir(parents=True, exist_ok=True)
        found = collected([*healthy, *ill], range(options.seeds), folder, options.workers)
    for every in (100, 10):
        print(f"\nJudged every {every} passes\n{'-' * 60}")
        points = Counter(
            signal.quantity
            for (name, _), models in found.items()
            if name in healthy
            for model in models
            for reading in model
            if reading.step % every == 0
            for signal in reading.signals
        )
        print(
            "healthy points: "
            + ", ".join(f"{count:,} {name}" for name, count in sorted(points.items()) if name in WATCHED)
        )
        for name in healthy:
            said = Counter(e.kind for seed in range(options.seeds) for e in judged(found[name, seed], every))
            print(f"healthy {name:26} {dict(said) or 'nothing'}")
        for name, kind in ill.items():
            events = [judged(found[name, seed], every) for seed in range(options.seeds)]
            hits = sum(any(e.kind == kind for e in each) for each in events)
            said = Counter(e.kind for each in events for e in each)
            print(f"ill     {name:26} {kind} in {hits} of {options.seeds}; {dict(said)}")


WATCHED = {quantity for each in named(KINDS) for quantity in each.quantities[-1:]}

if __name__ == "__main__":
    main()
