"""A step is an optimizer step, the first one is 1, and the record, the events, the diagnosis and the demo agree."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from scenarios.flown_history import recorded
from scenarios.flying import flying
from scenarios.watching import batches, tiny_model

from mlflow_stability.cli.commands.demo import final_of
from mlflow_stability.demo.processes import Training
from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.diagnosis.run_card import final_loss, run_card_of

BROKEN = 30
"""As the script counts, which enumerates from 0."""


@pytest.mark.slow
def test_what_a_script_calls_step_30_is_the_31st_step_everywhere(tmp_path: Path) -> None:
    model = tiny_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with flying(tmp_path, guard=True) as flown:
        for step, (inputs, targets) in enumerate(batches(60)):
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            (loss * math.nan if step == BROKEN else loss).backward()
            optimizer.step()
        assert flown.session.step == 60
    run = recorded(flown)
    (loss,) = [metric.series for metric in run.metrics if metric.name == "loss"]
    assert loss.steps.tolist() == list(range(1, 61))
    assert [int(value) for value in loss.steps[~torch.tensor(loss.values).isfinite().numpy()]] == [BROKEN + 1]
    assert {event.step for event in flown.events("nan_detected")} == {BROKEN + 1}
    diagnosis = diagnosis_of(run)
    assert [finding.start for finding in diagnosis.findings if finding.kind == "nan_detected"] == [BROKEN + 1]
    assert diagnosis.steps == (1, 60)
    assert "in 60 steps" in diagnosis.verdict


def test_the_final_loss_is_the_same_in_the_demo_and_in_a_comparison() -> None:
    from diagnosis.histories import falling, run_named

    losses = falling(400)
    losses[-1] = losses.min() / 2  # one lucky batch is not what the training ended at
    run = run_named(loss=losses)
    card = run_card_of(run, diagnosis_of(run))
    training = Training("its healthy twin", losses=losses.tolist())
    assert card.final_loss == final_loss(losses) == final_of(training)
    assert final_of(training) == pytest.approx(1.5, rel=0.05)


def test_a_training_that_died_ends_at_nan() -> None:
    losses = torch.cat([torch.linspace(3, 1, 50), torch.full((5,), math.nan)]).double().numpy()
    ended = final_loss(losses)
    assert ended is not None
    assert math.isnan(ended)
    assert final_loss(losses[:0]) is None
