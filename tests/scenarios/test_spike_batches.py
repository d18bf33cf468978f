"""The batch of a finite loss spike is kept, though the step is taken and judged only later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from scenarios.flying import flying
from scenarios.watching import tiny_model
from torch import Tensor
from torch.optim import SGD

from mlflow_stability import Options, RollbackPolicy

pytestmark = pytest.mark.scenario
STEPS, SPIKE = 160, 120


def train(spikes: tuple[int, ...] = (SPIKE,), micro_batches: int = 1, reuses_its_batch: bool = False) -> Tensor:
    """Gives the inputs of the last spike."""
    model, generator = tiny_model(), torch.Generator().manual_seed(1)
    optimizer = SGD(model.parameters(), lr=0.01)
    reused, last = torch.empty(8, 4), torch.empty(0)
    for step in range(1, STEPS + 1):
        optimizer.zero_grad()
        for _ in range(micro_batches):
            inputs = torch.randn(8, 4, generator=generator)
            targets = inputs.mean(1, keepdim=True) + 0.1 * torch.randn(8, 1, generator=generator)
            if step in spikes:
                last, targets = inputs + 0.125, targets + 30
                inputs = last
            if reuses_its_batch:
                inputs = reused.copy_(inputs)
            ((model(inputs) - targets) ** 2).mean().backward()
        optimizer.step()
    return last


def kept(folder: Path) -> list[Path]:
    return sorted(folder.glob("journals/batches/*/batch-*.pt"))


TAKEN = RollbackPolicy(max_rollbacks=0, skip_gradients_above=None)


@pytest.mark.parametrize("settings", [{}, {"rollback": TAKEN}], ids=["plain", "guarded"])
def test_the_tensors_of_a_spike_are_those_of_its_batch(tmp_path: Path, settings: dict[str, Any]) -> None:
    with flying(tmp_path, **settings) as flown:
        inputs = train()
    (event,) = flown.events("spike_batch")
    (file,) = kept(tmp_path)
    assert event.step == SPIKE
    assert file.name == f"batch-{SPIKE:06d}.pt"
    assert f"Batch of the loss spike at step {SPIKE}: args[0] float32 8x4 from " in event.message
    assert event.metrics["greatest.args[0]"] == pytest.approx(float(inputs.max()))
    assert torch.load(file, weights_only=True)["args[0]"].equal(inputs)


def test_all_micro_batches_of_a_spike_are_kept(tmp_path: Path) -> None:
    with flying(tmp_path) as flown:
        inputs = train(micro_batches=2)
    (event,) = flown.events("spike_batch")
    (file,) = kept(tmp_path)
    assert "(2 micro-batches)" in event.message
    tensors = torch.load(file, weights_only=True)
    assert list(tensors) == ["micro_batch_1.args[0]", "micro_batch_2.args[0]"]
    assert tensors["micro_batch_2.args[0]"].equal(inputs)


def test_a_spike_of_the_last_step_is_kept_when_the_recording_ends(tmp_path: Path) -> None:
    with flying(tmp_path):
        train(spikes=(STEPS,))
    assert [entry.name for entry in kept(tmp_path)] == [f"batch-{STEPS:06d}.pt"]


def test_a_batch_that_the_script_has_overwritten_is_not_kept(tmp_path: Path) -> None:
    with flying(tmp_path) as flown:
        train(reuses_its_batch=True)
    assert flown.events("loss_spike")
    assert flown.events("spike_batch") == []
    assert kept(tmp_path) == []


@pytest.mark.parametrize("settings", [{}, {"options": Options(capture_batch=False)}], ids=["no spike", "not asked for"])
def test_nothing_is_kept_without_a_spike_or_where_it_is_not_asked_for(tmp_path: Path, settings: dict[str, Any]) -> None:
    with flying(tmp_path, **settings) as flown:
        train(spikes=(SPIKE,) if settings else ())
    assert bool(flown.events("loss_spike")) == bool(settings)
    assert flown.events("spike_batch") == []
    assert kept(tmp_path) == []
