"""Engines that copy gradients into flat buffers and clip them there: what is recorded of their gradient norm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from scenarios.flat_engine import FlatEngine
from scenarios.flying import flying
from scenarios.watching import Watched, batches, mse, tiny_model
from torch import nn
from torch.optim import AdamW

from mlflow_stability.journal.journal import Record
from mlflow_stability.probes.step.capture import COPIED
from mlflow_stability.vocabulary.run import Note

CLIP = 0.3


class SilentEngine(FlatEngine):
    """Says nothing of its norm."""

    get_global_grad_norm: Any = None


class InPlaceEngine:
    """Clips the gradients themselves, where no hook sees it, and says nothing of their norm: DeepSpeed without ZeRO."""

    def __init__(self, model: nn.Module) -> None:
        self.optimizer, self.parameters = AdamW(model.parameters(), lr=0.01), list(model.parameters())

    def get_global_grad_norm(self) -> None:
        return None

    def step(self) -> None:
        for parameter in self.parameters:
            assert parameter.grad is not None
            parameter.grad.data.mul_(0.1)
        self.optimizer.step()
        self.optimizer.zero_grad()


def train(kind: type[FlatEngine], steps: int = 8, accumulate: int = 1) -> tuple[FlatEngine, list[float]]:
    """The engine, and the norms of its steps before it clipped."""
    engine = kind(model := tiny_model(), lambda flat: AdamW(flat, lr=0.01), clip=CLIP, accumulate=accumulate)
    norms = []
    for number, batch in enumerate(batches(steps * accumulate)):
        engine.backward(mse(model, batch))
        engine.step()
        if number % accumulate == accumulate - 1:
            assert engine._norm is not None
            norms.append(engine._norm)
    return engine, norms


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_norm_is_that_of_the_engine_before_it_clipped(watched: Watched, accumulate: int) -> None:
    _, norms = train(FlatEngine, accumulate=accumulate)
    rows = watched.rows()
    assert max(norms) > CLIP
    assert [row["grad_norm"] for row in rows] == pytest.approx(norms, rel=1e-5)
    assert [row["grad_norm_clipped"] for row in rows] == pytest.approx([min(norm, CLIP) for norm in norms], rel=1e-4)
    assert watched.bases() == {"before clipping"}


def notes_of(records: list[Record]) -> list[str]:
    return [record.value for record in records if isinstance(record, Note) and record.key == "grad_norm"]


def test_the_run_says_that_clipping_of_copies_cannot_be_seen(tmp_path: Path) -> None:
    with flying(tmp_path) as flown:
        train(SilentEngine)
    assert notes_of(flown.records)[-1] == COPIED


def test_the_run_says_that_an_engine_may_have_clipped_that_does_not_tell_its_norm(tmp_path: Path) -> None:
    engine = InPlaceEngine(model := tiny_model())
    with flying(tmp_path) as flown:
        for batch in batches(8):
            mse(model, batch).backward()
            engine.step()
    assert notes_of(flown.records) == [COPIED]


def test_under_the_autopilot_an_engine_trains_as_without_it(tmp_path: Path) -> None:
    alone, norms = train(FlatEngine, 30)
    with flying(tmp_path, rollback=True) as flown:
        watched, same = train(FlatEngine, 30)
    assert torch.equal(alone.flat, watched.flat)
    assert norms == same
    assert notes_of(flown.records) == ["before clipping"]
