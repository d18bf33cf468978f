"""Trainers that bring a loop and an MLflow run of their own: their run is ours, and there is no second one."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlflow
import pytest
import torch
from mlflow import MlflowClient
from scenarios.delivering import end, watch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

import mlflow_stability
from mlflow_stability.tracking.read.run_reader import read_run_history

pytestmark = [
    pytest.mark.usefixtures("blank_pictures"),
    pytest.mark.scenario,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
]
STEPS = 12


@pytest.fixture(autouse=True)
def mlflow_autologging_ends() -> Iterator[None]:
    yield
    mlflow.pytorch.autolog(disable=True)


def lightning_module() -> Any:
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(4, 1)
            self.losses: list[float] = []
            self.norms: list[float] = []

        def training_step(self, batch: Any, index: int) -> Tensor:
            loss = self.layer(batch[0]).square().mean()
            self.losses.append(loss.item())
            self.log("train_loss", loss)
            return loss

        def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
            self.norms.append(float(torch.cat([parameter.grad.flatten() for parameter in self.parameters()]).norm()))

        def configure_optimizers(self) -> Optimizer:
            return AdamW(self.parameters(), lr=0.01)

    return Module()


def lightning_trainer(**more: Any) -> Any:
    import lightning.pytorch as pl

    return pl.Trainer(
        max_steps=STEPS,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
        log_every_n_steps=1,
        **more,
    )


def loader(batches: int) -> Any:
    generator = torch.Generator().manual_seed(1)
    data = torch.utils.data.TensorDataset(torch.randn(batches * 2, 4, generator=generator))
    return torch.utils.data.DataLoader(data, batch_size=2)


def test_the_run_of_a_lightning_mlflow_logger_is_recorded_into(store: MlflowClient, sqlite_uri: str) -> None:
    from lightning.pytorch.loggers import MLFlowLogger

    watch()
    module = lightning_module()
    logger = MLFlowLogger(tracking_uri=sqlite_uri)
    lightning_trainer(logger=logger, gradient_clip_val=0.05).fit(module, loader(STEPS))
    end()
    experiments = [experiment.experiment_id for experiment in store.search_experiments()]
    (run,) = store.search_runs(experiments)
    assert run.info.run_id == logger.run_id
    assert "train_loss" in run.data.metrics
    record = mlflow_stability.load_run(run.info.run_id)
    assert list(record["loss"]) == pytest.approx(module.losses, rel=1e-5)
    assert list(record["grad_norm"]) == pytest.approx(module.norms, rel=1e-5)
    assert record["grad_norm_clipped"].max() == pytest.approx(0.05, rel=1e-3)
    assert read_run_history(run.info.run_id).tags["stability.grad_norm"] == "before clipping"
    assert run.info.status == "FINISHED"


def test_the_run_of_mlflows_own_autologging_is_recorded_into(store: MlflowClient) -> None:
    mlflow.pytorch.autolog(log_models=False)
    watch()
    module = lightning_module()
    lightning_trainer(logger=False).fit(module, loader(STEPS))
    end()
    (run,) = store.search_runs(["0"])
    record = mlflow_stability.load_run(run.info.run_id)
    assert list(record["loss"]) == pytest.approx(module.losses, rel=1e-5)
    assert run.info.status == "FINISHED"


def test_lightning_accumulates_as_we_count(store: MlflowClient) -> None:
    watch()
    module = lightning_module()
    lightning_trainer(logger=False, accumulate_grad_batches=2).fit(module, loader(2 * STEPS))
    end()
    (run,) = store.search_runs(["0"])
    record = mlflow_stability.load_run(run.info.run_id)
    pairs = [(first + second) / 2 for first, second in zip(module.losses[::2], module.losses[1::2], strict=True)]
    assert list(record["loss"]) == pytest.approx(pairs, rel=1e-5)
    assert set(record["micro_batches"]) == {2}


def test_the_run_of_a_hugging_face_trainer_is_recorded_into(store: MlflowClient, tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=32, n_positions=16, n_embd=8, n_layer=1, n_head=1)
    data = [{"input_ids": torch.arange(8) % 32, "labels": torch.arange(8) % 32} for _ in range(64)]
    watch()
    with warnings.catch_warnings():
        trainer = Trainer(
            model=GPT2LMHeadModel(config),
            args=TrainingArguments(
                output_dir=str(tmp_path / "out"),
                max_steps=STEPS,
                per_device_train_batch_size=2,
                gradient_accumulation_steps=2,
                max_grad_norm=0.5,
                logging_steps=1,
                report_to=["mlflow"],
                save_strategy="no",
                use_cpu=True,
                disable_tqdm=True,
            ),
            train_dataset=data,
        )
        trainer.train()
    mlflow.end_run()
    end()
    (run,) = store.search_runs(["0"])
    logged = [text for text in trainer.state.log_history if "grad_norm" in text]
    record = mlflow_stability.load_run(run.info.run_id)
    assert len(record) == STEPS
    assert set(record["micro_batches"]) == {2}
    assert list(record["loss"]) == pytest.approx([row["loss"] for row in logged], rel=1e-2)
    assert list(record["grad_norm"]) == pytest.approx([row["grad_norm"] for row in logged], rel=1e-3)
    assert list(record["learning_rate"]) == pytest.approx([row["learning_rate"] for row in logged], rel=1e-3)
    assert read_run_history(run.info.run_id).tags["stability.grad_norm"] == "before clipping"
