"""Validation losses of other libraries' trainers become part of the record, with and without MLflow, each once."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlflow
import pytest
import torch
from mlflow import MlflowClient
from scenarios.flying import Flown, flying
from scenarios.watching import tiny_model
from torch import Tensor, nn
from torch.optim import AdamW

from mlflow_stability.session.recording.script_metrics import LISTENED, MOST_REMEMBERED, ScriptMetrics, TrainerMetrics
from mlflow_stability.tracking.in_process import LoggedMetric
from mlflow_stability.vocabulary.measured.signal import Signal, StepReading

pytestmark = [pytest.mark.filterwarnings("ignore")]
VAL = Signal("val_loss")
Validations = list[tuple[int, float]]
"""At which of our steps which validation loss."""


def heard(flown: Flown) -> Validations:
    readings = [record for record in flown.records if isinstance(record, StepReading) and VAL in record.signals]
    return [(reading.step, reading.values[reading.signals.index(VAL)]) for reading in readings]


class Regression(nn.Module):
    """As a Hugging Face trainer wants a model: it gives its loss."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": nn.functional.mse_loss(self.layers(inputs), labels)}


def pairs(count: int, seed: int = 1) -> Any:
    numbers = torch.randn(count, 9, generator=torch.Generator().manual_seed(seed))
    return [{"inputs": number[:8], "labels": number[8:]} for number in numbers]


def by_lightning(_folder: Path) -> Validations:
    import lightning.pytorch as pl

    validations: Validations = []

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 1)

        def training_step(self, batch: Tensor, index: int) -> Tensor:
            loss: Tensor = self.layer(batch).square().mean()
            self.log("train_loss", loss)
            return loss

        def validation_step(self, batch: Tensor, index: int) -> None:
            self.log_dict({"val_loss": self.layer(batch).square().mean(), "val_accuracy": 0.5})

        def on_validation_end(self) -> None:
            if not self.trainer.sanity_checking:
                validations.append((self.trainer.global_step, float(self.trainer.callback_metrics["val_loss"])))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return AdamW(self.parameters(), lr=0.01)

    trainer = pl.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loaders: Any = [torch.utils.data.DataLoader(item, batch_size=8) for item in torch.randn(2, 32, 4)]
    module = Module()
    trainer.fit(module, loaders[0], loaders[1])
    assert [step for step, _ in validations] == [4, 8, 12]
    kept = list(validations)
    trainer.validate(module, loaders[1], verbose=False)  # of any model, at any time: no part of the training
    return kept


def by_hugging_face(folder: Path, report_to: str = "none") -> Validations:
    from transformers import Trainer, TrainingArguments

    data = pairs(24)
    trainer = Trainer(
        model=Regression(),
        args=TrainingArguments(
            output_dir=str(folder / "out"),
            max_steps=12,
            per_device_train_batch_size=2,
            logging_steps=3,
            eval_strategy="steps",
            eval_steps=4,
            report_to=report_to,
            save_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
        ),
        train_dataset=data,
        eval_dataset=data,
    )
    trainer.train()
    trainer.evaluate()
    logged = [text for text in trainer.state.log_history if "eval_loss" in text]
    rows = [(int(row["step"]), float(row["eval_loss"])) for row in logged]
    assert [step for step, _ in rows] == [4, 8, 12, 12]
    return rows


def by_own_loop(log: Callable[[dict[str, Any], int], None], model: nn.Module, optimizer: Any) -> Validations:
    values = []
    for step in range(1, 7):
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 2 == 0:
            values.append((step, 1.0 / step))
            log({"loss": 0.5, "val_loss": torch.tensor(values[-1][1]), "comment": "half way"}, step)
    return [(step, float(torch.tensor(value))) for step, value in values]


def by_fabric(_folder: Path) -> Validations:
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    model, optimizer = fabric.setup(plain := tiny_model(), AdamW(plain.parameters()))
    return by_own_loop(lambda metrics, step: fabric.log_dict({**metrics, "comment": 0}, step=step), model, optimizer)


def by_accelerate(_folder: Path) -> Validations:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    plain = tiny_model()
    model, optimizer = accelerator.prepare(plain, AdamW(plain.parameters()))
    return by_own_loop(lambda metrics, step: accelerator.log(metrics, step), model, optimizer)


TRAINERS = {
    "Lightning": by_lightning,
    "Hugging Face": by_hugging_face,
    "Fabric": by_fabric,
    "accelerate": by_accelerate,
}


@pytest.mark.parametrize("train", TRAINERS.values(), ids=TRAINERS)
def test_validation_losses_of_a_trainer_that_logs_nowhere_are_recorded(
    train: Callable[[Path], Validations], tmp_path: Path
) -> None:
    with flying(tmp_path) as flown:
        trained = train(tmp_path)
    assert heard(flown) == trained


@pytest.mark.slow
def test_validation_losses_that_hugging_face_logs_to_mlflow_as_well_are_recorded_once(
    sqlite_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", sqlite_uri)
    with flying(tmp_path) as flown:
        values = by_hugging_face(tmp_path, report_to="mlflow")
        mlflow.end_run()
    client = MlflowClient(sqlite_uri)
    logged = [client.get_metric_history(run.info.run_id, "eval_loss") for run in client.search_runs(["0"])]
    # Its callback ends its run with the training: the last evaluation comes into another one.
    assert sorted((point.step, point.value) for points in logged for point in points) == values
    assert len(flown.recordings) == 1
    assert heard(flown) == values


@pytest.mark.slow
def test_overfitting_under_a_hugging_face_trainer_is_found_while_it_trains(tmp_path: Path) -> None:
    from transformers import Trainer, TrainingArguments

    with flying(tmp_path) as flown:
        Trainer(
            model=Regression(),
            args=TrainingArguments(
                output_dir=str(tmp_path / "out"),
                max_steps=200,
                learning_rate=0.01,
                per_device_train_batch_size=16,
                per_device_eval_batch_size=64,
                eval_strategy="steps",
                eval_steps=10,
                report_to=[],
                save_strategy="no",
                use_cpu=True,
                disable_tqdm=True,
            ),
            train_dataset=pairs(16),
            eval_dataset=pairs(64, seed=2),
        ).train()
    assert len(heard(flown)) == 20
    (event,) = flown.events("overfitting")
    assert event.step < 200


def test_a_value_that_trainer_and_mlflow_both_tell_is_given_once_whoever_is_first() -> None:
    metrics = ScriptMetrics()

    def tell(*runs: str | None, value: float = 0.5) -> None:
        for run in runs:
            metrics._heard(LoggedMetric(run, "val_loss", value, 1))

    def taken() -> list[float]:
        return [reading.values[0] for reading in metrics.take("run")]

    tell("run", None)
    tell(None, "run")
    tell("run", value=0.4)
    assert taken() == [0.5, 0.5, 0.4]
    tell(None, value=0.4)  # as soon as the next step
    assert taken() == []
    tell("run", None, value=math.nan)
    tell(None, None, value=0.3)  # a model that learns no more
    assert str(taken()) == "[nan, 0.3, 0.3]"
    tell("another run", None, value=0.2)
    assert taken() == [0.2]


def test_what_a_trainer_tells_does_not_wait_for_the_run_to_be_known() -> None:
    metrics = ScriptMetrics()
    metrics._heard(LoggedMetric("run", "eval_loss", 0.9, 1))
    metrics._heard(LoggedMetric(None, "eval_loss", 0.9, 1))
    metrics._heard(LoggedMetric(None, "eval_loss", 0.8, 2))
    assert [reading.values for reading in metrics.take(None)] == [(0.9, 1.0), (0.8, 2.0)]
    assert [reading.values for reading in metrics.take("run")] == []
    metrics._heard(LoggedMetric("run", "eval_loss", 0.7, 3))
    assert [reading.values for reading in metrics.take("run")] == [(0.7, 3.0)]


def test_the_number_of_remembered_values_is_limited() -> None:
    metrics = ScriptMetrics()
    for number in range(3 * MOST_REMEMBERED):
        metrics._heard(LoggedMetric(None, "val_loss", number, number))
    assert len(metrics.take("run")) == 3 * MOST_REMEMBERED
    assert len(metrics._difference) == MOST_REMEMBERED


def test_a_patched_library_is_restored_and_an_incompatible_one_is_not_patched(monkeypatch: pytest.MonkeyPatch) -> None:
    import accelerate

    for method in LISTENED:
        monkeypatch.setitem(sys.modules, method.module, SimpleNamespace(**{method.owner: type(method.owner, (), {})}))
    monkeypatch.setitem(sys.modules, "accelerate.accelerator", accelerate.accelerator)
    before = accelerate.Accelerator.log
    metrics = TrainerMetrics(lambda metric: None)
    metrics.install()
    assert accelerate.Accelerator.log is not before
    metrics.remove()
    assert accelerate.Accelerator.log is before


def test_what_cannot_be_read_does_not_reach_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    class Accelerator:
        def log(self, values: Any) -> str:
            return f"logged {values}"

    monkeypatch.setitem(sys.modules, "accelerate.accelerator", SimpleNamespace(Accelerator=Accelerator))
    metrics = ScriptMetrics()
    metrics.trainers.install()
    assert Accelerator().log(3) == "logged 3"
    with pytest.raises(AttributeError, match="items"):
        metrics.take("run")
    metrics.remove()
