"""Models whose operations cannot be counted in passing are left alone, with a reason."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mlflow_stability.probes.flop_refusals import refusal


def test_a_plain_model_is_counted() -> None:
    assert refusal(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Embedding(3, 3, max_norm=1.0))) == ""


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@pytest.mark.parametrize(
    ("model", "words"),
    [
        (nn.DataParallel(nn.Linear(2, 2)), "over devices"),
        (nn.Sequential(nn.LazyLinear(3)), "no shape yet"),
        (torch.compile(nn.Linear(2, 2), backend="eager"), "compiled"),
        (nn.Sequential(torch.compile(nn.Linear(2, 2), backend="eager")), "compiled"),  # type: ignore[arg-type]
    ],
)
def test_a_model_that_cannot_be_seen_through_is_not(model: nn.Module, words: str) -> None:
    assert words in refusal(model)


def test_a_module_that_is_compiled_in_place_is_known_before_it_ran() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    model[0].compile(backend="eager", fullgraph=True)
    assert refusal(model).startswith("a part of it is compiled")


def test_a_model_nested_to_the_limit_is_not_counted(usual_recursion_limit: int) -> None:
    model: nn.Module = nn.Linear(2, 2)
    for _ in range(200):
        model = nn.Sequential(model)
    assert "nested" in refusal(model)
