"""Trainings under a meter whose probes measure the pace, wired as a session wires them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from mlflow_stability.probes.hooks.guarded_hooks import PartGuard
from mlflow_stability.probes.hooks.torch_hooks import TorchWatch
from mlflow_stability.probes.probe import Probe
from mlflow_stability.probes.probe_scheduler import Probes, ProbeScheduler, TrainingPace
from mlflow_stability.probes.step.capture import ProbeReading
from mlflow_stability.probes.step.step_meter import StepMeter

Rows = dict[str, list[tuple[int, float]]]


class Paced:
    """What was reported of a training's pace."""

    def __init__(self, others: Sequence[Probe] = (), **options: Any) -> None:
        self.readings: list[ProbeReading] = []
        self.guard = PartGuard(strict=True, on_failure=lambda part, error: None)
        self.pace = TrainingPace(self.guard, lambda: self.guard.seconds, **options)
        scheduler = ProbeScheduler(self.guard, Probes(by_step=others), self.pace, 1)
        self.meter = StepMeter(
            self.guard,
            lambda optimizer: self,
            lambda owner, reading: self.readings.append(reading),
            lambda owner: scheduler,
        )
        self.watch = TorchWatch(self.guard, self.meter)

    def told(self, *quantities: str) -> Rows:
        """Steps and values of each signal."""
        self.meter.drain()
        result: Rows = {}
        for step, reading in enumerate(self.readings, start=1):
            for signal, value in zip(reading.signals, reading.values, strict=True):
                if not quantities or signal.quantity in quantities:
                    result.setdefault(str(signal), []).append((step, value))
        return result


@contextmanager
def pacing(**options: Any) -> Iterator[Paced]:
    paced = Paced(**options)
    paced.watch.install()
    try:
        yield paced
    finally:
        paced.watch.remove()
        paced.pace.close()
