from __future__ import annotations

import math

import pytest
import torch
from scenarios.watching import Row, Watched, batches, mse, tiny_model, true_norm
from torch.amp import GradScaler
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, AdamW

from mlflow_stability.kinds.panel import Panel
from mlflow_stability.vocabulary.measured.signal import StepReading

KINDS = ["foreach", "fused"]


@pytest.mark.parametrize("kind", KINDS)
def test_loss_and_norm_are_those_of_the_unscaled_training(watched: Watched, kind: str) -> None:
    model = tiny_model()
    optimizer = AdamW(model.parameters(), lr=0.01, **{kind: True})
    scaler = GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    truth: list[Row] = []
    for batch in batches(6):
        optimizer.zero_grad()
        scale = float(scaler.get_scale())
        loss = mse(model, batch)
        scaler.scale(loss).backward()
        truth.append(
            {
                "skipped_steps": 0,
                "loss": loss.item(),
                "micro_batches": 1,
                "grad_norm": true_norm(model.parameters()) / scale,
                "learning_rate": 0.01,
                "loss_scale": scale,
            }
        )
        scaler.step(optimizer)
        scaler.update()
    watched.must_be(truth)
    assert truth[-1]["loss_scale"] == 4096


@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_that_the_scaler_threw_away_is_counted_and_its_norm_is_infinite(
    watched: Watched, kind: str, clips: bool
) -> None:
    model = tiny_model()
    optimizer = AdamW(model.parameters(), lr=0.01, **{kind: True})
    scaler = GradScaler("cpu", init_scale=1024.0)
    losses: list[float] = []
    norms: list[float] = []
    for number, batch in enumerate(batches(5)):
        optimizer.zero_grad()
        loss = mse(model, batch)
        losses.append(loss.item())
        scaler.scale(loss).backward()
        if number in (1, 3):
            model[0].weight.grad[0, 0] = math.inf
        norms.append(true_norm(model.parameters()) / float(scaler.get_scale()))
        if clips:
            scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), 0.1)
        before = model[0].weight.detach().clone()
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(before, model[0].weight) == (number in (1, 3))
    rows = watched.rows()
    assert [row["loss"] for row in rows] == pytest.approx(losses)
    assert [row["skipped_steps"] for row in rows] == [0, 1, 1, 2, 2]
    assert [row["loss_scale"] for row in rows] == [1024, 1024, 512, 512, 256]
    assert [row["grad_norm"] for row in rows] == pytest.approx(norms, rel=1e-5)
    if clips:
        assert [math.isnan(row["grad_norm_clipped"]) for row in rows] == [False, True, False, True, False]
        assert rows[0]["grad_norm_clipped"] == pytest.approx(0.1, rel=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_clipping_after_unscaling_is_seen_without_the_scale(watched: Watched, kind: str) -> None:
    model = tiny_model()
    optimizer = SGD(model.parameters(), lr=0.1, **{kind: True})
    scaler = GradScaler("cpu", init_scale=256.0)
    truth: list[Row] = []
    for batch in batches(4):
        optimizer.zero_grad()
        loss = mse(model, batch)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = true_norm(model.parameters())
        clip_grad_norm_(model.parameters(), 0.25)
        truth.append(
            {
                "skipped_steps": 0,
                "loss": loss.item(),
                "micro_batches": 1,
                "grad_norm": norm,
                "grad_norm_clipped": true_norm(model.parameters()),
                "learning_rate": 0.1,
                "loss_scale": 256,
            }
        )
        scaler.step(optimizer)
        scaler.update()
    watched.must_be(truth)
    assert watched.bases() == {"before clipping"}


def test_accumulated_scaled_losses_are_summed_unscaled(watched: Watched) -> None:
    model = tiny_model()
    optimizer = SGD(model.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=256.0)
    totals = []
    for _ in range(3):
        losses = [mse(model, batch) / 3 for batch in batches(3)]
        totals.append(sum(loss.item() for loss in losses))
        scaled = [scaler.scale(loss) for loss in losses]  # several are scaled before the first is used
        for loss in scaled:
            loss.backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    rows = watched.rows()
    assert [row["loss"] for row in rows] == pytest.approx(totals, rel=1e-5)
    assert [row["micro_batches"] for row in rows] == [3, 3, 3]


def test_losses_scaled_as_a_list_are_unscaled_too(watched: Watched) -> None:
    model = tiny_model()
    optimizer = SGD(model.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=256.0)
    losses = [mse(model, batch) for batch in batches(2)]
    torch.autograd.backward(scaler.scale(losses))
    scaler.step(optimizer)
    scaler.update()
    row = watched.rows()[0]
    assert row["loss"] == pytest.approx(sum(loss.item() for loss in losses), rel=1e-5)
    assert row["loss_scale"] == 256


def test_a_scaler_that_is_switched_off_leaves_nothing_behind(watched: Watched) -> None:
    model = tiny_model()
    optimizer = SGD(model.parameters(), lr=0.1)
    scaler = GradScaler("cpu", enabled=False)
    truth: list[Row] = []
    for batch in batches(3):
        optimizer.zero_grad()
        loss = mse(model, batch)
        scaler.scale(loss).backward()
        norm = true_norm(model.parameters())
        truth.append({"loss": loss.item(), "micro_batches": 1, "grad_norm": norm, "learning_rate": 0.1})
        scaler.step(optimizer)
        scaler.update()
    watched.must_be(truth)


def test_one_optimizer_of_two_may_be_skipped(watched: Watched) -> None:
    model = tiny_model()
    first, second = SGD(model[0].parameters(), lr=0.1), SGD(model[2].parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=256.0)
    for number, batch in enumerate(batches(3)):
        scaler.scale(mse(model, batch)).backward()
        if number == 1:
            model[0].weight.grad[0, 0] = math.nan
        scaler.step(first)
        scaler.step(second)
        scaler.update()
        first.zero_grad()
        second.zero_grad()
    rows = watched.rows()
    assert [row["skipped_steps"] for row in rows] == [0, 1, 1]
    assert [math.isfinite(row["grad_norm"]) for row in rows] == [True, False, True]


def test_an_overflow_that_the_scaler_caught_raises_no_event(watched: Watched) -> None:
    model = tiny_model()
    optimizer = SGD(model.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=256.0)
    for number, batch in enumerate(batches(4)):
        scaler.scale(mse(model, batch)).backward()
        if number in (0, 2):
            model[0].weight.grad[0, 0] = math.inf
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    watched.meter.drain()
    panel = Panel()
    events = []
    for step, reading in enumerate(watched.readings):
        events += panel.judge(StepReading(step, reading.signals, reading.values))
    assert events == []
