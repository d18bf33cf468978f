"""A backward pass whose gradients the script discarded belongs to no step, and the guard does not skip for it."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from scenarios.flat_engine import FlatEngine
from scenarios.flying import flying
from scenarios.watching import Row, Watched, batches, mse, tiny_model, true_norm
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, AdamW

from mlflow_stability.journal.journal import Record
from mlflow_stability.vocabulary.measured.signal import StepReading


def set_to_none(parameters: Iterable[Tensor]) -> None:
    for parameter in parameters:
        parameter.grad = None


def set_to_zero(parameters: Iterable[Tensor]) -> None:
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.zero_()


def replace_by_zeros(parameters: Iterable[Tensor]) -> None:
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)


DISCARDS: dict[str, Callable[[Iterable[Tensor]], None]] = {
    "p.grad = None": set_to_none,
    "p.grad.zero_()": set_to_zero,
    "p.grad = zeros": replace_by_zeros,
}


def with_broken_batches(count: int, broken: set[int]) -> list[tuple[Tensor, Tensor]]:
    data = list(batches(count))
    for number in broken:
        data[number][0][0, 0] = math.nan
    return data


def dropping_loop(discard: Callable[[Iterable[Tensor]], None], broken: set[int]) -> tuple[list[Row], list[Tensor]]:
    """A script that looks after broken batches itself: what it did, and its weights."""
    model = tiny_model()
    optimizer = AdamW(model.parameters(), lr=0.01)
    truth: list[Row] = []
    for batch in with_broken_batches(12, broken):
        loss = mse(model, batch)
        loss.backward()
        if not torch.isfinite(loss):
            discard(model.parameters())
            continue
        truth.append({"loss": loss.item(), "micro_batches": 1, "grad_norm": true_norm(model.parameters())})
        optimizer.step()
        set_to_none(model.parameters())
    return truth, [parameter.detach().clone() for parameter in model.parameters()]


def steps(records: list[Record]) -> list[Row]:
    return [
        {str(signal): value for signal, value in zip(record.signals, record.values, strict=True)}
        for record in records
        if isinstance(record, StepReading)
    ]


@pytest.mark.parametrize("broken", [{5}, {4, 5, 9}, {0, 1}], ids=str)
@pytest.mark.parametrize("how", DISCARDS)
def test_a_batch_that_the_script_discards_is_part_of_no_step(watched: Watched, how: str, broken: set[int]) -> None:
    truth, _ = dropping_loop(DISCARDS[how], broken)
    watched.must_be([{**row, "learning_rate": 0.01} for row in truth])
    assert sum(len(reading.discarded) for reading in watched.readings) == len(broken)


@pytest.mark.parametrize("how", DISCARDS)
def test_the_guard_takes_the_healthy_step_after_a_discarded_batch(tmp_path: Path, how: str) -> None:
    _, alone = dropping_loop(DISCARDS[how], {0, 5, 6})
    with flying(tmp_path, guard=True) as flown:
        truth, weights = dropping_loop(DISCARDS[how], {0, 5, 6})
    assert all(map(torch.equal, weights, alone))
    assert not flown.events("step_skipped")
    assert [row["loss"] for row in steps(flown.records)] == pytest.approx([row["loss"] for row in truth])
    first = flown.events("batch_discarded")[0]
    assert (first.step, first.severity.name) == (1, "INFO")
    assert "nan" in first.message


def test_a_healthy_batch_that_is_discarded_is_part_of_no_step_either(watched: Watched) -> None:
    model = tiny_model()
    optimizer = SGD(model.parameters(), lr=0.1)
    truth = []
    for number, batch in enumerate(batches(9)):
        loss = mse(model, batch)
        loss.backward()
        if number % 3 == 2:
            set_to_none(model.parameters())
            continue
        truth.append(loss.item())
        optimizer.step()
        set_to_none(model.parameters())
    assert [row["loss"] for row in watched.rows()] == pytest.approx(truth)
    assert not any(reading.discarded for reading in watched.readings)


def test_of_accumulated_batches_only_those_before_the_discard_are_left_out(watched: Watched) -> None:
    model = tiny_model()
    optimizer = SGD(model.parameters(), lr=0.1)
    truth: list[tuple[float, int]] = []
    for number in range(4):
        losses: list[float] = []
        for micro, batch in enumerate(with_broken_batches(4, {1} if number == 2 else set())):
            loss = mse(model, batch) / 4
            loss.backward()
            losses.append(loss.item())
            if math.isnan(losses[-1]):
                set_to_none(model.parameters())
                losses.clear()
            assert micro < 4
        truth.append((sum(losses), len(losses)))
        optimizer.step()
        optimizer.zero_grad()
    rows = watched.rows()
    assert [(row["loss"], row["micro_batches"]) for row in rows] == [pytest.approx(item) for item in truth]


def test_a_gradient_that_is_dropped_alone_discards_no_batch(watched: Watched) -> None:
    model = tiny_model()
    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        for batch in batches(2):
            (mse(model, batch) / 2).backward()
            model[0].weight.grad = None  # of the first parameter, and so the one that is looked at
        optimizer.step()
        optimizer.zero_grad()
    assert [row["micro_batches"] for row in watched.rows()] == [2, 2, 2]


def test_clipping_every_micro_batch_discards_none(watched: Watched) -> None:
    model = tiny_model()
    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        for batch in batches(2):
            mse(model, batch).backward()
            clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()
        optimizer.zero_grad()
    assert [row["micro_batches"] for row in watched.rows()] == [2, 2, 2]


def test_of_two_optimizers_each_has_its_own_discards(watched: Watched) -> None:
    """The halves of a GAN alternate; the script drops a broken batch of the second half."""
    halves = [tiny_model(1), tiny_model(2)]
    optimizers = [SGD(halve.parameters(), lr=0.1) for halve in halves]
    truth: list[float] = []
    for batch in with_broken_batches(6, {3}):
        for half, optimizer in zip(halves, optimizers, strict=True):
            loss = mse(half, batch)
            loss.backward()
            if not torch.isfinite(loss):
                set_to_none(half.parameters())
                continue
            truth.append(loss.item())
            optimizer.step()  # its gradients stay until its next turn
            if half is halves[0]:
                set_to_none(half.parameters())
            else:
                optimizer.zero_grad()
    losses = [value for row in watched.rows() for name, value in row.items() if name.startswith("loss")]
    assert losses == pytest.approx(truth)


def test_a_model_shared_by_two_optimizers_discards_for_both(watched: Watched) -> None:
    model = tiny_model()
    optimizers = [SGD(model[0].parameters(), lr=0.1), AdamW(model[2].parameters(), lr=0.01)]
    truth: list[float] = []
    for batch in with_broken_batches(8, {2, 5}):
        loss = mse(model, batch)
        loss.backward()
        if not torch.isfinite(loss):
            set_to_none(model.parameters())
            continue
        truth.append(loss.item())
        for optimizer in optimizers:
            optimizer.step()
        set_to_none(model.parameters())
    assert [row["loss"] for row in watched.rows()] == pytest.approx(truth)


def engine_loop(broken: set[int], accumulate: int, moves: bool) -> tuple[FlatEngine, list[Tensor]]:
    model = tiny_model()
    engine = FlatEngine(model, lambda flat: AdamW(flat, lr=0.01), accumulate=accumulate, moves=moves)
    for batch in with_broken_batches(12, broken):
        engine.backward(mse(model, batch))
        engine.step()
    return engine, [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize("moves", [False, True])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_step_that_an_engine_threw_away_does_not_condemn_the_next(
    tmp_path: Path, accumulate: int, moves: bool
) -> None:
    engine, alone = engine_loop({1, 6}, accumulate, moves)
    assert engine.skipped == 2
    with flying(tmp_path, guard=True) as flown:
        _, weights = engine_loop({1, 6}, accumulate, moves)
    assert all(map(torch.equal, weights, alone))
    assert not flown.events("step_skipped")
    rows = steps(flown.records)
    assert len(rows) == 12 // accumulate - 2
    assert all(math.isfinite(row["loss"]) for row in rows)
    assert flown.events("batch_discarded")


def test_batches_accumulated_in_a_flat_buffer_are_all_counted(watched: Watched) -> None:
    engine_loop(set(), 3, moves=True)
    assert [row["micro_batches"] for row in watched.rows()] == [3, 3, 3, 3]


def test_a_nan_that_reached_a_flat_buffer_is_skipped_by_the_guard(tmp_path: Path) -> None:
    model = tiny_model()
    master = nn.Parameter(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    optimizer = SGD([master], lr=0.1)
    with flying(tmp_path, guard=True) as flown:
        for number in range(6):
            total = torch.zeros_like(master)
            for batch in with_broken_batches(2, {0} if number == 3 else set()):
                mse(model, batch).backward()
                total += torch.cat([parameter.grad.flatten() for parameter in model.parameters()])  # type: ignore[union-attr]
                set_to_none(model.parameters())
            master.grad = total
            optimizer.step()
            optimizer.zero_grad()
    assert torch.isfinite(master).all()
    assert [event.step for event in flown.events("step_skipped")] == [4]


def test_no_gradient_is_kept_alive(watched: Watched) -> None:
    model = tiny_model()
    optimizer = SGD(model.parameters(), lr=0.1)
    gradients: list[Any] = []
    for batch in batches(3):
        mse(model, batch).backward()
        optimizer.step()
        gradients += [weakref.ref(parameter.grad) for parameter in model.parameters()]
        set_to_none(model.parameters())
    gc.collect()
    assert all(gradient() is None for gradient in gradients)


def test_a_loss_that_backward_runs_on_twice_is_recorded_once(watched: Watched) -> None:
    model = tiny_model()
    optimizer = SGD(model.parameters(), lr=0.01)
    truth: list[float] = []
    for number, batch in enumerate(batches(6)):
        loss = mse(model, batch)
        loss.backward(retain_graph=number % 3 == 0)
        if number % 3 == 0:
            loss.backward()
        truth.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    assert [row["loss"] for row in watched.rows()] == pytest.approx(truth)
    assert [row["micro_batches"] for row in watched.rows()] == [1] * 6


def test_a_loss_that_backward_runs_on_again_after_its_gradients_were_discarded_is_kept(watched: Watched) -> None:
    model = tiny_model()
    optimizer = SGD(model.parameters(), lr=0.01)
    truth: list[float] = []
    for batch in batches(4):
        loss = mse(model, batch)
        loss.backward(retain_graph=True)
        set_to_none(model.parameters())
        loss.backward()
        truth.append(loss.item())
        optimizer.step()
        set_to_none(model.parameters())
    assert [row["loss"] for row in watched.rows()] == pytest.approx(truth)
