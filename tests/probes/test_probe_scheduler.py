from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from probes.looked_into import unguarded
from torch import nn
from torch.optim import SGD

from mlflow_stability.probes.inside.activation_probe import ActivationProbe, InputProbe
from mlflow_stability.probes.inside.attention_probe import AttentionProbe
from mlflow_stability.probes.inside.representation_probe import RepresentationProbe
from mlflow_stability.probes.parameters.adam_rms import AdamRms
from mlflow_stability.probes.parameters.extreme_values import GradientExtremes, WeightExtremes
from mlflow_stability.probes.parameters.layer_statistics import LayerStatistics
from mlflow_stability.probes.parameters.norms import LayerNorms, MomentumNorm, WeightUpdates
from mlflow_stability.probes.performance.memory import Memory
from mlflow_stability.probes.performance.progress import Progress
from mlflow_stability.probes.performance.throughput import Throughput
from mlflow_stability.probes.probe import Probe, StepView
from mlflow_stability.probes.probe_scheduler import Probes, ProbeScheduler, TrainingPace

PERIODIC: list[Callable[[], Any]] = [
    lambda: LayerNorms(10, 25),
    lambda: WeightUpdates(10, 25),
    lambda: MomentumNorm(10, 7),
    lambda: AdamRms(30, 25),
    lambda: GradientExtremes(25),
    lambda: WeightExtremes(1000),
    lambda: LayerStatistics(25, 40),
    lambda: Memory(),
    lambda: Progress(),
    lambda: Throughput(),
    lambda: ActivationProbe(unguarded, 25, list),
    lambda: InputProbe(unguarded, 25, list),
    lambda: RepresentationProbe(unguarded, (), 40, list, lambda _: None),
    lambda: AttentionProbe(25, 16, unguarded, lambda _: None),
    lambda: TrainingPace(unguarded, lambda: 0.0).clock,
    lambda: TrainingPace(unguarded, lambda: 0.0).before_others[0],
]


class Asked(Probe):
    """A probe that notes what it was asked, and is due at every seventh step."""

    part = "asked"

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.measured: list[int] = []

    def due(self, step: int) -> bool:
        self.asked.append(step)
        return step % 7 == 0

    def next_due(self, step: int) -> int:
        return step + 7 - step % 7

    def before_step(self, view: StepView) -> None:
        self.measured.append(view.step)


@pytest.mark.parametrize("make", PERIODIC)
def test_no_step_with_a_due_probe_is_missed(make: Callable[[], Any]) -> None:
    probe, asked_always = make(), make()
    ask_at = 1
    for step in range(1, 1100):
        due = asked_always.due(step)
        if step < ask_at:
            assert not due, f"due at step {step}, and not to be asked before {ask_at}"
            continue
        assert probe.due(step) == due
        ask_at = probe.next_due(step)
        assert ask_at > step


def probe_scheduler_of(probe: Asked) -> ProbeScheduler:
    pace = TrainingPace(unguarded, lambda: 0.0)
    pace.before_others = pace.after_others = ()
    return ProbeScheduler(unguarded, Probes(by_step=[probe]), pace, 1)


def capture(scheduler: ProbeScheduler, place: str = "") -> None:
    model = nn.Linear(2, 2)
    optimizer = SGD(model.parameters(), lr=0.1)
    scheduler.before_step(optimizer, None, place, [torch.ones(())])
    scheduler.after_step(optimizer, None, place, False)
    scheduler.end()


def test_a_probe_is_asked_when_it_may_be_due_and_not_before() -> None:
    probe = Asked()
    scheduler = probe_scheduler_of(probe)
    for _ in range(30):
        capture(scheduler)
    assert probe.asked == [1, 7, 14, 21, 28]
    assert probe.measured == [7, 14, 21, 28]


def test_every_step_of_parallel_trainings_counts_for_the_schedule() -> None:
    probe = Asked()
    scheduler = probe_scheduler_of(probe)
    for number in range(14):
        capture(scheduler, place="" if number % 2 else "critic")
    assert probe.measured == [7, 14]


def test_after_an_interruption_every_probe_is_asked_again() -> None:
    probe = Asked()
    scheduler = probe_scheduler_of(probe)
    capture(scheduler)
    scheduler.forget()
    capture(scheduler)
    assert probe.asked == [1, 2]
