from __future__ import annotations

import gc
import threading

import pytest
import torch
from recovery.restorable import OPTIMIZERS
from torch import nn

from mlflow_stability.recovery.state.restore import restore_state
from mlflow_stability.recovery.state.state_copy import copy_state
from mlflow_stability.recovery.state.training_parts import TrainingParts
from mlflow_stability.session.autopilot.training_rollback import StaleGraphs


@pytest.mark.parametrize("optimizer", ["sgd momentum", "adamw foreach"])
def test_a_gan_survives_a_rollback_between_its_two_backward_passes(optimizer: str) -> None:
    maker, critic = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    halves = [OPTIMIZERS[optimizer](item)[0] for item in (maker, critic)]
    parts = TrainingParts(tuple(halves), (maker, critic))
    stale = StaleGraphs()
    for step in range(3):
        made = maker(torch.randn(8, 4))
        halves[1].zero_grad()
        loss = critic(made.detach()).mean() - critic(torch.randn(8, 4)).mean()
        assert not stale.is_stale(loss)
        loss.backward()
        halves[1].step()
        if step == 0:
            copy = copy_state(parts, 0)
        other = critic(made).mean()  # built on the critic as it is now
        if step == 1:
            restore_state(copy, parts)
            stale.restored()
        halves[0].zero_grad()
        assert stale.is_stale(other) == (step == 1)
        other.backward()
        halves[0].step()


def test_an_old_graph_is_known_only_for_a_while_and_a_new_one_never_is() -> None:
    weight, stale = nn.Parameter(torch.ones(2)), StaleGraphs()
    old = (weight * 2).sum()
    assert not stale.is_stale(old)
    stale.restored()
    assert stale.is_stale(old + weight.sum())
    assert not stale.is_stale((weight * 2).sum())
    assert not stale.is_stale(weight.sum())
    gc.collect()


def test_a_graph_of_another_thread_is_not_old_and_one_of_the_last_steps_is() -> None:
    weight, stale = nn.Parameter(torch.ones(2)), StaleGraphs()
    old = [(weight * 2).sum() for _ in range(100)]  # one for each step
    stale.restored(100)
    output: list[torch.Tensor] = []
    other = threading.Thread(target=lambda: output.append(weight * 2))
    other.start()
    other.join()
    assert not stale.is_stale(output[0].sum())
    assert stale.is_stale(old[-1])
    assert stale.is_stale(output[0].sum() + old[-5])
