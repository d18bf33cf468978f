"""Tensors of a script's own class are made in a pass whose operations are counted as they are in any other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from mlflow_stability.probes.flop_count import FlopCounter


def inherited() -> Any:
    return type("Inherited", (torch.Tensor,), {})


def calls_it() -> Any:
    class Calls(torch.Tensor):
        @staticmethod
        def __new__(cls: Any, numbers: list[float]) -> Any:
            return super().__new__(cls, numbers)

    return Calls


def below() -> Any:
    return type("Below", (calls_it(),), {})


def goes_round_it() -> Any:
    class GoesRound(torch.Tensor):
        @staticmethod
        def __new__(cls: Any, numbers: list[float]) -> Any:
            return torch.tensor(numbers).as_subclass(cls)

    return GoesRound


KINDS = [inherited, calls_it, below, goes_round_it]


@pytest.mark.parametrize("kind_of", KINDS)
@pytest.mark.parametrize("in_the_middle", [False, True])
def test_its_objects_are_made_and_what_is_done_with_them_is_counted(
    kind_of: Callable[[], Any], in_the_middle: bool
) -> None:
    kind, counter = kind_of(), FlopCounter()
    own = dict(vars(kind))
    hooks = dict(vars(Tensor))
    assert counter.enter()
    try:
        if in_the_middle:
            kind = kind_of()
        made = kind([1.0, 2.0])
        assert _get_current_dispatch_mode() is counter
        product = made.as_subclass(torch.Tensor)[None] @ torch.ones(2, 3)
    finally:
        counter.leave()
    assert type(made) is kind
    assert made.tolist() == [1.0, 2.0]
    assert product.tolist() == [[3.0] * 3]
    assert counter.flops == 2 * 2 * 3
    assert type(kind([3.0])) is kind
    assert dict(vars(Tensor)) == hooks
    if not in_the_middle:
        assert dict(vars(kind)) == own


def test_a_mode_of_the_script_on_top_of_ours_sees_what_it_always_sees() -> None:
    class Seeing(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    seen: list[str] = []
    kind, counter = inherited(), FlopCounter()
    assert counter.enter()
    try:
        with Seeing(), pytest.raises(RuntimeError, match="Creating a new Tensor subclass"):  # type: ignore[no-untyped-call]
            kind([1.0])
    finally:
        counter.leave()
    assert seen == ["aten.lift_fresh.default"]
