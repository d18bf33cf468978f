"""A broken step changes nothing, in every kind of loop, and training goes on behind it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from recovery.guarded_training import differences, picture
from scenarios.flying import Flown, flying
from scenarios.watching import batches, mse, tiny_model
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import SGD, AdamW

import mlflow_stability
from mlflow_stability.vocabulary.result import Severity

pytestmark = [pytest.mark.scenario, pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")]
BROKEN = 7
STEPS = 15


def spoilt(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    inputs = batch[0].clone()
    inputs[0, 0] = math.nan
    return inputs, batch[1]


def plain(step: Callable[..., None], model: nn.Module, optimizer: Any) -> None:
    for number, batch in enumerate(batches(STEPS), start=1):
        optimizer.zero_grad()
        mse(model, spoilt(batch) if number == BROKEN else batch).backward()
        step(number, optimizer.step)


def with_scaler(step: Callable[..., None], model: nn.Module, optimizer: Any) -> None:
    scaler = GradScaler("cpu", init_scale=4.0)
    for number, batch in enumerate(batches(STEPS), start=1):
        optimizer.zero_grad()
        scaler.scale(mse(model, spoilt(batch) if number == BROKEN else batch)).backward()
        step(number, lambda: scaler.step(optimizer))
        scaler.update()


def accumulating(step: Callable[..., None], model: nn.Module, optimizer: Any) -> None:
    for number in range(1, STEPS + 1):
        optimizer.zero_grad()
        for part, batch in enumerate(batches(3, seed=number)):
            mse(model, spoilt(batch) if (number, part) == (BROKEN, 0) else batch).backward()
        step(number, optimizer.step)


def with_closure(step: Callable[..., None], model: nn.Module, optimizer: Any) -> None:
    for number, batch in enumerate(batches(STEPS), start=1):
        given = spoilt(batch) if number == BROKEN else batch

        def closure(given: Any = given) -> Tensor:
            optimizer.zero_grad()
            loss = mse(model, given)
            loss.backward()
            return loss

        step(number, partial(optimizer.step, closure))


LOOPS = {"plain": plain, "a loss scaler": with_scaler, "accumulation": accumulating, "a closure": with_closure}


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
@pytest.mark.parametrize("make", [lambda p: SGD(p, lr=0.1, momentum=0.9), lambda p: AdamW(p, lr=0.01)])
def test_a_broken_step_is_skipped_bit_by_bit(tmp_path: Path, loop: Any, make: Any) -> None:
    model = tiny_model()
    optimizer = make(model.parameters())
    changed: list[int] = []

    def step(number: int, take: Callable[[], Any]) -> None:
        before = picture(model, optimizer)
        take()
        if differences(before, picture(model, optimizer)):
            changed.append(number)
        assert all(parameter.grad is not None for parameter in model.parameters())

    with flying(tmp_path, guard=True) as flown:
        loop(step, model, optimizer)
    assert changed == [value for value in range(1, STEPS + 1) if value != BROKEN]
    (skipped,) = flown.events("step_skipped")
    assert skipped.step == BROKEN
    assert skipped.severity <= Severity.WARNING


def test_the_batch_of_a_skipped_step_is_described_and_kept(tmp_path: Path) -> None:
    model = tiny_model()
    optimizer = SGD(model.parameters(), lr=0.1)
    with flying(tmp_path, guard=True) as flown:
        plain(lambda number, take: take(), model, optimizer)
    (event,) = flown.events("broken_batch")
    assert event.step == BROKEN
    assert "1 NaN" in event.message
    assert "finite again" in event.message
    (file,) = tmp_path.glob("journals/batches/*/batch-*.pt")
    (inputs,) = torch.load(file, weights_only=True).values()
    assert inputs.isnan().sum() == 1


def test_skipped_steps_are_counted_in_the_curve(tmp_path: Path) -> None:
    model = tiny_model()
    with flying(tmp_path, guard=True) as flown:
        plain(lambda number, take: take(), model, SGD(model.parameters(), lr=0.1))
    values = [
        value
        for record in flown.records
        for signal, value in zip(getattr(record, "signals", ()), getattr(record, "values", ()), strict=True)
        if signal.quantity == "skipped_steps"
    ]
    assert values[-1] == 1.0


def test_a_script_can_ask_to_skip_a_step(tmp_path: Path) -> None:
    model = tiny_model()
    optimizer = SGD(model.parameters(), lr=0.1)
    kept: list[bool] = []

    def step(number: int, take: Callable[[], Any]) -> None:
        if number == 3:
            session = mlflow_stability.current_session()
            assert session is not None
            session.skip_next()
        before = picture(model)
        take()
        kept.append(not differences(before, picture(model)))

    def healthy(flown: Flown) -> None:
        for number, batch in enumerate(batches(6), start=1):
            optimizer.zero_grad()
            mse(model, batch).backward()
            step(number, optimizer.step)

    with flying(tmp_path, guard=True) as flown:
        healthy(flown)
    assert kept == [False, False, True, False, False, False]
    assert flown.events("rollback") == []


def test_lightning_skips_a_broken_step(tmp_path: Path) -> None:
    import lightning.pytorch as pl

    seen: list[list[Any]] = []

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(4, 1)

        def training_step(self, batch: Any, index: int) -> Tensor:
            loss = self.layer(batch[0]).square().mean()
            return loss * (math.nan if index == BROKEN else 1.0)

        def on_train_batch_start(self, batch: Any, index: int) -> None:
            seen.append(picture(self, self.optimizers().optimizer))

        def configure_optimizers(self) -> Any:
            return AdamW(self.parameters(), lr=0.01)

    data = torch.utils.data.TensorDataset(torch.randn(STEPS * 2, 4, generator=torch.Generator().manual_seed(1)))
    trainer = pl.Trainer(
        max_steps=STEPS,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
    )
    with flying(tmp_path, rollback=True):
        trainer.fit(Module(), torch.utils.data.DataLoader(data, batch_size=2))
    same = [number for number, (first, next_) in enumerate(itertools.pairwise(seen)) if not differences(first, next_)]
    assert same == [BROKEN]


def test_the_trainer_of_hugging_face_skips_a_broken_step(tmp_path: Path) -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    seen: list[list[Any]] = []

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(4, 1)

        def forward(self, inputs: Tensor) -> dict[str, Tensor]:
            return {"loss": self.layer(inputs).square().mean()}

    class Look(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            seen.append(picture(kwargs["model"]))

    generator = torch.Generator().manual_seed(1)
    data = [{"inputs": torch.randn(4, generator=generator)} for _ in range(STEPS)]
    with flying(tmp_path, rollback=True):
        trainer = Trainer(
            model=Model(),
            args=TrainingArguments(
                output_dir=str(tmp_path / "out"),
                max_steps=STEPS,
                per_device_train_batch_size=1,
                report_to=[],
                save_strategy="no",
                use_cpu=True,
                disable_tqdm=True,
                learning_rate=0.01,
                remove_unused_columns=False,
                logging_strategy="no",
            ),
            train_dataset=[
                {"inputs": row["inputs"] * (math.nan if number == 5 else 1)} for number, row in enumerate(data)
            ],
            callbacks=[Look()],
        )
        trainer.train()
    same = [number for number, (first, next_) in enumerate(itertools.pairwise(seen)) if not differences(first, next_)]
    assert len(same) == 1
