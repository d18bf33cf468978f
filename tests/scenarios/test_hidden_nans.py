"""A NaN that a trainer leaves out of its own log, or whose step a loss scaler leaves out, is recorded and reported."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from scenarios.flown_history import recorded
from scenarios.flying import Flown, flying
from scenarios.watching import batches, mse, tiny_model
from torch import Tensor, nn

from mlflow_stability.diagnosis.diagnose import diagnosis_of

pytestmark = [pytest.mark.scenario, pytest.mark.filterwarnings("ignore")]
STEPS, BROKEN = 20, 9
"""Counted from 1, as the run does."""


def losses_of(flown: Flown) -> dict[int, float]:
    (loss,) = [metric.series for metric in recorded(flown).metrics if metric.name == "loss"]
    return dict(zip(loss.steps.tolist(), loss.values.tolist(), strict=True))


def must_say_nan(flown: Flown) -> None:
    diagnosis = diagnosis_of(recorded(flown))
    assert [finding.start for finding in diagnosis.findings if finding.kind == "nan_detected"] == [BROKEN]
    assert "NaN" in diagnosis.verdict
    assert f"step {BROKEN}" in diagnosis.verdict
    assert next(event.step for event in flown.events("nan_detected")) == BROKEN


def hugging_face(folder: Path, **arguments: Any) -> list[float]:
    """Trains with one broken batch; gives the losses of the trainer's own log."""
    from transformers import Trainer, TrainingArguments

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = tiny_model()
            self.calls = 0

        def forward(self, inputs: Tensor) -> dict[str, Tensor]:
            self.calls += 1
            return {"loss": self.layers(inputs).square().mean() * (math.nan if self.calls == BROKEN else 1.0)}

    trainer = Trainer(
        model=Model(),
        args=TrainingArguments(
            output_dir=str(folder / "out"),
            max_steps=STEPS,
            per_device_train_batch_size=8,
            report_to=[],
            save_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
            **arguments,
        ),
        train_dataset=[{"inputs": row} for inputs, _ in batches(STEPS) for row in inputs],  # type: ignore[arg-type]
    )
    assert trainer.args.logging_nan_inf_filter
    trainer.train()
    return [float(item["loss"]) for item in trainer.state.log_history if "loss" in item]


@pytest.mark.parametrize("every", [1, 5])
@pytest.mark.parametrize("guard", [False, True])
def test_a_nan_that_hugging_face_filters_out_of_its_log_is_recorded(every: int, guard: bool, tmp_path: Path) -> None:
    with flying(tmp_path, guard=guard) as flown:
        logged = hugging_face(tmp_path, logging_steps=every)
    assert all(map(math.isfinite, logged))
    assert every > 1 or logged[BROKEN - 1] == 0.0  # the mean of none
    losses = losses_of(flown)
    assert list(losses) == list(range(1, STEPS + 1))
    broken = [step for step, value in losses.items() if math.isnan(value)]
    assert broken == ([BROKEN] if guard else list(range(BROKEN, STEPS + 1)))
    assert len(flown.events("step_skipped")) == guard
    must_say_nan(flown)


@pytest.mark.parametrize("guard", [False, True])
def test_a_step_that_the_loss_scaler_of_accelerate_skips_is_recorded_with_its_nan(guard: bool, tmp_path: Path) -> None:
    from accelerate import Accelerator
    from accelerate.optimizer import AcceleratedOptimizer

    Accelerator(cpu=True)
    model = tiny_model()
    plain = torch.optim.AdamW(model.parameters(), lr=0.01)
    # On a GPU, `prepare` gives the scaler of fp16; one of the CPU takes the same way.
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    optimizer = AcceleratedOptimizer(plain, scaler=scaler)
    left_out = []
    with flying(tmp_path, guard=guard) as flown:
        for step, batch in enumerate(batches(STEPS), start=1):
            optimizer.zero_grad()
            loss = mse(model, batch) * (math.nan if step == BROKEN else 1.0)
            scaler.scale(loss).backward()
            optimizer.step()
            if optimizer.step_was_skipped:
                left_out.append(step)
    assert left_out == [BROKEN]
    losses = losses_of(flown)
    assert list(losses) == list(range(1, STEPS + 1))
    assert [step for step, value in losses.items() if math.isnan(value)] == [BROKEN]
    must_say_nan(flown)
