"""Models whose operations cannot be counted in passing are left alone, with a reason."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import nn

from mlflow_stability.probes.flop_refusals import anything_compiled, refusal


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    gc.collect()  # classes of tensors


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


def plus_one(x: torch.Tensor) -> torch.Tensor:
    return x + 1


@pytest.mark.parametrize("fullgraph", [False, True])
def test_what_was_given_to_the_compiler_is_known_before_and_after_it_ran(fullgraph: bool) -> None:
    assert not anything_compiled()
    compiled = torch.compile(plus_one, backend="eager", fullgraph=fullgraph)
    assert anything_compiled()
    compiled(torch.ones(2))
    assert anything_compiled()
    torch._dynamo.reset()  # it will be compiled again at its next call
    assert anything_compiled()


def test_a_module_that_is_compiled_in_place_is_known_before_it_ran() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    model[0].compile(backend="eager", fullgraph=True)
    assert "a part of it is compiled" in refusal(model)


def test_what_torch_keeps_from_the_compiler_is_not_compiled() -> None:
    assert not anything_compiled()
    torch._dynamo.disable(plus_one)(torch.ones(2))
    optimizer = torch.optim.AdamW(nn.Linear(2, 2).parameters())
    optimizer.zero_grad()
    optimizer.step()
    assert not anything_compiled()


def test_a_model_nested_to_the_limit_is_not_counted() -> None:
    model: nn.Module = nn.Linear(2, 2)
    for _ in range(200):
        model = nn.Sequential(model)
    assert "nested" in refusal(model)


def inherited() -> type:
    return type("Inherited", (torch.Tensor,), {})


def calls_it() -> type:
    class Calls(torch.Tensor):
        @staticmethod
        def __new__(cls: Any, numbers: list[float]) -> Any:
            return super().__new__(cls, numbers)

    return Calls


def goes_round_it() -> type:
    class GoesRound(torch.Tensor):
        @staticmethod
        def __new__(cls: Any, numbers: list[float]) -> Any:
            return torch.tensor(numbers).as_subclass(cls)

    return GoesRound


@pytest.mark.parametrize(("made", "fragile"), [(inherited, True), (calls_it, True), (goes_round_it, False)])
def test_where_tensors_of_a_scripts_own_class_could_not_be_made_nothing_is_counted(
    made: Callable[[], type], fragile: bool
) -> None:
    kind = made()
    assert (kind.__qualname__ in refusal(nn.Linear(2, 2))) is fragile
    assert type(kind([1.0, 2.0])) is kind
