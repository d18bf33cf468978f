"""What a script says without knowing of us: its own metrics are judged while it trains, its settings are parameters."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import mlflow
import pytest
import torch
from mlflow import MlflowClient
from scenarios.delivering import end, end_of_courier, watch, watch_with_courier
from torch import Tensor, nn
from torch.optim import Adam, AdamW

import mlflow_stability
from mlflow_stability.tracking.read.run_reader import read_run_history

pytestmark = [pytest.mark.usefixtures("blank_pictures"), pytest.mark.scenario, pytest.mark.filterwarnings("ignore")]


def one_run(store: MlflowClient) -> str:
    (run,) = store.search_runs(["0"])
    return str(run.info.run_id)


def heard_steps(run_id: str) -> list[tuple[int, float]]:
    table = mlflow_stability.load_run(run_id)
    values = table.dropna(subset=["val_loss"])
    return list(zip(values["step"], values["val_loss"], strict=True))


@pytest.mark.slow
def test_overfitting_of_an_unchanged_script_is_found_while_it_trains(store: MlflowClient) -> None:
    session = watch_with_courier()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = Adam(model.parameters(), lr=0.01, weight_decay=1e-3)
    inputs, targets, others, truths = (torch.randn(size) for size in ((16, 8), (16, 1), (64, 8), (64, 1)))
    for epoch in range(20):
        for _ in range(10):
            nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            mlflow.log_metrics({"val_loss": nn.functional.mse_loss(model(others), truths).item()}, step=epoch)
    end_of_courier(session)
    run_id = one_run(store)
    run = store.get_run(run_id)
    assert [step for step, _ in heard_steps(run_id)] == list(range(10, 201, 10))
    assert len(store.get_metric_history(run_id, "val_loss")) == 20
    assert [key for key in run.data.metrics if "val_loss" in key] == ["val_loss"]
    assert store.get_metric_history(run_id, "stability/loss")[-1].step == 200
    findings = [finding for finding in mlflow_stability.diagnose(run_id).findings if finding.kind == "overfitting"]
    assert len(findings) == 1
    assert len([key for key in run.data.params if key.startswith("stability.")]) <= 8
    params = read_run_history(run_id).params
    assert params["stability.optimizer"] == "Adam"
    assert (params["stability.learning_rate"], params["stability.weight_decay"]) == ("0.01", "0.001")
    assert (params["stability.model"], params["stability.parameters_total"]) == ("Sequential", "641")
    assert params["stability.batch"] == "float32[16, 8]"
    assert params["stability.accumulation"] == "1"


@pytest.mark.slow
def test_each_of_two_runs_has_its_own_validation_losses_and_the_last_ones_too(store: MlflowClient) -> None:
    watch()
    for number in (1, 2):
        with mlflow.start_run():
            model = nn.Linear(2, 1)
            optimizer = AdamW(model.parameters(), lr=0.1 * number)
            for step in range(1, 4):
                model(torch.ones(4, 2)).square().mean().backward()
                optimizer.step()
                mlflow.log_metric("val_loss", number + step / 10, step=step)
    end()
    runs = store.search_runs(["0"], order_by=["attributes.start_time ASC"])
    for number, run in enumerate(runs, 1):
        assert heard_steps(run.info.run_id) == [(step, number + step / 10) for step in (1, 2, 3)]
        assert run.data.params["stability.learning_rate"] == str(0.1 * number)
    assert len(runs) == 2


@pytest.mark.slow
def test_lightning_that_logs_its_validation_loss_is_heard(store: MlflowClient, tmp_path: Path) -> None:
    import lightning.pytorch as pl
    from lightning.pytorch.loggers import MLFlowLogger

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 1)

        def training_step(self, batch: Any, index: int) -> Tensor:
            loss = self.layer(batch[0]).square().mean()
            self.log("train_loss", loss)
            return loss

        def validation_step(self, batch: Any, index: int) -> None:
            self.log("val_loss", self.layer(batch[0]).square().mean())

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return AdamW(self.parameters(), lr=0.01)

    watch()
    batches = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(32, 4)), batch_size=8)
    logger = MLFlowLogger(tracking_uri=store.tracking_uri, experiment_name="Default")
    trainer = pl.Trainer(
        max_epochs=3,
        logger=logger,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        log_every_n_steps=1,
        default_root_dir=tmp_path,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(Module(), batches, batches)
    end()
    run_id = one_run(store)
    points = store.get_metric_history(run_id, "val_loss")
    assert len(points) == 3
    assert heard_steps(run_id) == [(step, point.value) for step, point in zip((4, 8, 12), points, strict=True)]
    assert store.get_run(run_id).data.params["stability.optimizer"] == "AdamW"


@pytest.mark.slow
def test_a_trainer_of_hugging_face_that_evaluates_is_heard(store: MlflowClient, tmp_path: Path) -> None:
    import transformers

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 1)

        def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
            out = self.layer(x).squeeze(-1)
            return {"loss": nn.functional.mse_loss(out, labels), "logits": out}

    rows = [{"x": torch.randn(4), "labels": torch.randn(())} for _ in range(32)]
    watch()
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path / "out"),
        per_device_train_batch_size=8,
        max_steps=12,
        eval_strategy="steps",
        eval_steps=4,
        logging_steps=4,
        save_strategy="no",
        report_to=["mlflow"],
        disable_tqdm=True,
        use_cpu=True,
    )
    transformers.Trainer(model=Model(), args=arguments, train_dataset=rows, eval_dataset=rows).train()
    mlflow.end_run()
    end()
    run_id = one_run(store)
    points = store.get_metric_history(run_id, "eval_loss")
    assert [point.step for point in points] == [4, 8, 12]
    assert heard_steps(run_id) == [(point.step, point.value) for point in points]
    params = store.get_run(run_id).data.params
    assert params["stability.model"] == "Model"
    assert "num_training_steps=12" in read_run_history(run_id).params["stability.scheduler.lr_lambdas"]
    assert params["learning_rate"]  # what the trainer logs itself is there beside ours


@pytest.mark.slow
def test_taking_us_off_leaves_mlflow_as_it_was(store: MlflowClient) -> None:
    before = dict(vars(MlflowClient))
    watch()
    with mlflow.start_run():
        model = nn.Linear(2, 1)
        optimizer = AdamW(model.parameters(), lr=0.1)
        model(torch.ones(4, 2)).mean().backward()
        optimizer.step()
        assert MlflowClient.log_metric is not before["log_metric"]
    end()
    assert dict(vars(MlflowClient)) == before
