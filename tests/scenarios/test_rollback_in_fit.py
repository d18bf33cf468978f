"""A rollback inside the `fit` of Lightning and Hugging Face: the training, and the trainer's log and checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from scenarios.flown_history import recorded
from scenarios.flying import QUICK, Flown, flying
from torch import Tensor, nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from mlflow_stability.diagnosis.diagnose import diagnosis_of

pytestmark = [pytest.mark.scenario, pytest.mark.filterwarnings("ignore")]
STEPS, JUMP, EVERY = 420, range(200, 215), 10
"""Steps in all, those of the high learning rate, and how often the framework writes a checkpoint."""


def factor(done: int) -> float:
    """Of the learning rate, three hundred times too high for fifteen steps."""
    return 300.0 if done in JUMP else 0.999**done


def data(count: int) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(count, 8, generator=torch.Generator().manual_seed(1))
    return inputs, inputs[:, :1].sin() + inputs[:, 1:2]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": nn.functional.mse_loss(self.layers(inputs), labels)}


def loss_of(weights: dict[str, Tensor]) -> float:
    """Of these weights, on data of the training."""
    model = Model()
    model.load_state_dict(weights)
    with torch.no_grad():
        return float(model(*data(512))["loss"])


@dataclass(frozen=True)
class Fitted:
    """What the framework has of its own at the end."""

    steps: int
    logged: dict[int, float]
    """Losses by step."""
    checkpoints: dict[int, float]
    """The loss of the weights in each, by step."""
    optimizer_steps: dict[int, int]
    """How many steps the optimizer in each has taken."""
    weights: dict[str, Tensor]


def by_lightning(folder: Path) -> Fitted:
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()

        def training_step(self, batch: Any, index: int) -> Tensor:
            loss: Tensor = self.model(*batch)["loss"]
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            optimizer = AdamW(self.parameters(), lr=0.01)
            return [optimizer], [{"scheduler": LambdaLR(optimizer, factor), "interval": "step"}]

    class Logger(pl.loggers.logger.DummyLogger):
        def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:  # type: ignore[override]
            if "loss" in metrics:
                logged[int(step or 0) + 1] = float(metrics["loss"])

    logged: dict[int, float] = {}
    module = Module()
    trainer = pl.Trainer(
        max_steps=STEPS,
        accelerator="cpu",
        logger=Logger(),
        log_every_n_steps=1,
        callbacks=[pl.callbacks.ModelCheckpoint(folder, "{step}", every_n_train_steps=EVERY, save_top_k=-1)],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    batches: Any = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data(STEPS * 32)), batch_size=32)
    trainer.fit(module, batches)
    checkpoints, taken = {}, {}
    for file in folder.glob("step=*.ckpt"):
        state = torch.load(file, weights_only=False)
        step = state["global_step"]
        assert file.name == f"step={step}.ckpt"
        checkpoints[step] = loss_of({name.removeprefix("model."): item for name, item in state["state_dict"].items()})
        taken[step] = int(next(iter(state["optimizer_states"][0]["state"].values()))["step"])
        assert state["lr_schedulers"][0]["last_epoch"] == step
    weights = {name: tensor.detach() for name, tensor in module.model.state_dict().items()}
    return Fitted(trainer.global_step, logged, checkpoints, taken, weights)


def by_hugging_face(folder: Path) -> Fitted:
    from safetensors.torch import load_file
    from transformers import Trainer, TrainingArguments

    model = Model()
    optimizer = AdamW(model.parameters(), lr=0.01)
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(folder),
            max_steps=STEPS,
            per_device_train_batch_size=32,
            logging_steps=1,
            save_steps=EVERY,
            report_to=[],
            max_grad_norm=0.0,
            use_cpu=True,
            disable_tqdm=True,
        ),
        train_dataset=[  # type: ignore[arg-type]
            {"inputs": item, "labels": label} for item, label in zip(*data(STEPS * 32), strict=True)
        ],
        optimizers=(optimizer, LambdaLR(optimizer, factor)),
    )
    trainer.train()
    checkpoints, taken = {}, {}
    for place in folder.glob("checkpoint-*"):
        step = int(place.name.removeprefix("checkpoint-"))
        checkpoints[step] = loss_of(load_file(place / "model.safetensors"))
        state = torch.load(place / "optimizer.pt", weights_only=False)
        taken[step] = int(next(iter(state["state"].values()))["step"])
        assert torch.load(place / "scheduler.pt", weights_only=False)["last_epoch"] == step
    logged = {row["step"]: float(row["loss"]) for row in trainer.state.log_history if "loss" in row}
    weights = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    return Fitted(trainer.state.global_step, logged, checkpoints, taken, weights)


TRAINERS = {"Lightning": by_lightning, "Hugging Face": by_hugging_face}


@pytest.fixture(scope="module", params=TRAINERS.values(), ids=TRAINERS)
def flown(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Flown, Fitted]:
    folder = tmp_path_factory.mktemp("fit")
    train: Callable[[Path], Fitted] = request.param
    with flying(folder, rollback=QUICK) as flown:
        fitted = train(folder / "own")
    return flown, fitted


def test_a_jump_of_the_rate_is_rolled_back_and_the_fit_ends_healthy(flown: tuple[Flown, Fitted]) -> None:
    recording, fitted = flown
    assert fitted.steps == STEPS
    assert loss_of(fitted.weights) < 0.02
    assert len(recording.events("rollback")) == 1
    diagnosis = diagnosis_of(recorded(recording))
    assert diagnosis.outcome == "recovered", diagnosis.verdict


def test_the_frameworks_log_has_every_step_once_also_those_that_were_rolled_back(flown: tuple[Flown, Fitted]) -> None:
    recording, fitted = flown
    (rollback,) = recording.events("rollback")
    (loss,) = [metric.series for metric in recorded(recording).metrics if metric.name == "loss"]
    assert fitted.logged == pytest.approx(dict(zip(loss.steps.tolist(), loss.values.tolist(), strict=True)), rel=1e-5)
    assert list(fitted.logged) == list(range(1, STEPS + 1))
    assert max(fitted.logged, key=lambda step: fitted.logged[step]) in range(JUMP[0], rollback.step + 1)


def test_only_checkpoints_of_the_steps_that_were_rolled_back_are_of_a_state_that_was_left(
    flown: tuple[Flown, Fitted],
) -> None:
    recording, fitted = flown
    (rollback,) = [finding for finding in diagnosis_of(recorded(recording)).findings if finding.kind == "rollback"]
    lost = range(int(rollback.metrics["target"]) + 1, rollback.end + 1)
    assert sorted(fitted.checkpoints) == list(range(EVERY, STEPS + 1, EVERY))
    bad = [step for step, value in fitted.checkpoints.items() if value > 1.0]
    assert bad
    assert set(bad) <= set(lost)
    # Weights and optimizer are of one state: neither has the steps that were rolled back.
    kept = {step: taken for step, taken in fitted.optimizer_steps.items() if step not in lost}
    assert kept == {step: step - len(lost) if step > rollback.end else step for step in kept}
