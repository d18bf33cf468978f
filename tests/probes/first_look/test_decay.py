"""Weight decays that are too strong."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mlflow_stability.kinds.optimizer.clipping_and_decay import StrongDecayFacts
from mlflow_stability.probes.first_look.module_settings import strong_decay
from mlflow_stability.vocabulary.result import Action

PARAMETERS = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))]


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_the_group_whose_weights_shrink_most_is_named(kind: type[torch.optim.AdamW | torch.optim.SGD]) -> None:
    groups = [{"params": PARAMETERS[:1], "weight_decay": 5.0}, {"params": PARAMETERS[1:], "weight_decay": 10.0}]
    finding = strong_decay(kind(groups, lr=0.003), 10)
    assert finding is not None
    assert finding.facts == StrongDecayFacts(10.0, 0.003)
    assert finding.message == (
        "Weight decay 10 at learning rate 0.003 removes 3% of each weight per step: without gradients, weights halve "
        "in 23 steps."
    )


def test_where_the_weight_decay_is_usual_the_learning_rate_is_to_be_lowered() -> None:
    finding = strong_decay(torch.optim.AdamW(PARAMETERS, lr=0.3, weight_decay=0.1), 10)
    assert finding is not None
    assert [remedy.action for remedy in finding.remedies] == [Action.LOWER_LEARNING_RATE]


@pytest.mark.parametrize(
    "optimizer",
    [
        torch.optim.AdamW(PARAMETERS, lr=1e-3, weight_decay=1.0),
        torch.optim.SGD(PARAMETERS, lr=0.1, weight_decay=5e-4),
        torch.optim.Adam(PARAMETERS, lr=1e-2, weight_decay=5e-4),
        torch.optim.AdamW(PARAMETERS, lr=0.0, weight_decay=10.0),
    ],
    ids=["grokking", "images", "little in the gradient of Adam", "before the warm-up"],
)
def test_usual_decays_are_not_reported(optimizer: torch.optim.Optimizer) -> None:
    assert strong_decay(optimizer, 10) is None


def test_a_decay_in_the_gradient_of_adam_is_found_and_adamw_is_named() -> None:
    finding = strong_decay(torch.optim.Adam(PARAMETERS, lr=1e-3, weight_decay=0.1), 10)
    assert finding is not None
    assert finding.facts == StrongDecayFacts(0.1, 1e-3, is_l2=True)
    assert finding.message.startswith("Adam adds 0.1 times each weight to its gradient")
    assert [remedy.action for remedy in finding.remedies] == [Action.USE_ADAMW]
