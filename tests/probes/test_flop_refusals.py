"""Models whose operations cannot be counted in passing are left alone, with a reason."""

from __future__ import annotations

import pytest
import torch
import torch._dynamo
from torch import nn

from mlflow_stability.probes.flop_refusals import refusal


@pytest.fixture(autouse=True)
def nothing_compiled() -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


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


def test_a_model_that_may_call_compiled_functions_is_not() -> None:
    model = nn.Linear(2, 2)
    assert refusal(model) == ""
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    assert "a part of it is compiled" in refusal(model)
