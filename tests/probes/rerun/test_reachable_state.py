from __future__ import annotations

import functools
import io
import logging
import threading
import types
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from mlflow_stability.probes.rerun import reachable_state
from mlflow_stability.probes.rerun.reachable_state import ReachableState


class Plain(nn.Module):
    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        self.inside = nn.Linear(2, 2)
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.inside(x)
        return found


class Pair(NamedTuple):
    one: list[int]
    other: dict[str, Any]


class Named(dict[str, Any]):
    """Does not let itself be written to in the usual way."""

    def __setitem__(self, key: str, value: Any) -> None:
        raise TypeError("frozen")

    def clear(self) -> None:
        raise TypeError("frozen")


def state_of(model: nn.Module, *args: Any) -> ReachableState:
    return ReachableState(model, args, {}, with_hooks=True)


def generator() -> Iterator[int]:
    yield 1


OPAQUE = {
    "is a generator": generator,
    "is an iterator": lambda: iter([1]),
    "is a lock": threading.Lock,
    "is a file": lambda: io.StringIO(),
    "is a scripted module": lambda: torch.jit.script(nn.ReLU()),
    "is an array of objects": lambda: np.array([object()]),
}


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@pytest.mark.parametrize("words", OPAQUE)
def test_what_holds_something_unseen_is_refused_by_its_name(words: str) -> None:
    hidden = OPAQUE[words]()  # type: ignore[no-untyped-call]
    assert state_of(Plain(stream=hidden)).refusal == f"Plain.stream {words}"
    assert state_of(Plain(kept={"a": [types.SimpleNamespace(stream=hidden)]})).refusal == (
        f"Plain.kept['a'][0].stream {words}"
    )
    assert state_of(Plain(), [hidden]).refusal == f"args[0][0] {words}"


def test_what_models_usually_hold_is_no_obstacle() -> None:
    model = Plain(
        logger=logging.getLogger(__name__),
        folder=Path("x"),
        parent=weakref.ref(nn.Linear(1, 1)),
        act=nn.functional.gelu,
        norm=functools.partial(nn.LayerNorm, eps=1e-6),
        kind=nn.Linear,
        dtype=torch.float32,
        numbers=np.ones(3),
        cached=functools.lru_cache(len),
        handle=nn.Linear(2, 2).register_forward_hook(lambda *_: None),
    )
    assert state_of(model, torch.ones(1, 2), {"mask": None}).refusal == ""


def test_a_trainer_is_an_obstacle_only_where_the_pass_speaks_to_it() -> None:
    class LightningModule(Plain):
        def training_step(self, batch: Tensor) -> Tensor:
            self.log("loss", 1.0)
            found: Tensor = self(batch)
            return found

        def log(self, name: str, value: float) -> None:
            self._trainer.append(value)

    class Chatty(LightningModule):
        def forward(self, x: Tensor) -> Tensor:
            self.log("x", 1.0)
            return super().forward(x)

    assert state_of(LightningModule(_trainer=generator())).refusal == ""
    assert state_of(Chatty(_trainer=generator())).refusal == "it may write to its trainer"


def test_more_than_can_be_looked_at_in_a_moment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reachable_state, "MOST_OBJECTS", 100)
    assert "more than 100 objects" in state_of(Plain(kept=[[number] for number in range(1000)])).refusal
    monkeypatch.setattr(reachable_state, "MOST_ITEMS", 50)
    assert "more than 50 things" in state_of(Plain(kept=list(range(1000)))).refusal


def test_every_kind_of_container_holds_the_same_objects_in_the_same_order_again() -> None:
    kept: dict[str, Any] = {
        "list": [1, [2]],
        "dict": {"a": 1, "b": [2]},
        "ordered": OrderedDict(a=1, b=2),
        "default": defaultdict(list, a=[1]),
        "frozen": Named(a=[1]),
        "set": {1, 2},
        "deque": deque([1, 2], maxlen=2),
        "bytes": bytearray(b"ab"),
        "pair": Pair([1], {"x": 1}),
        "itself": [],
    }
    kept["itself"].append(kept)
    model = Plain(kept=kept)
    before, inner = repr(kept), kept["dict"]["b"]
    state = state_of(model)
    kept["list"][1].append(3)
    kept["list"][0] = 7
    del kept["dict"]["a"]
    kept["dict"]["b"] = [2]
    kept["ordered"].move_to_end("a")
    kept["default"]["b"].append(1)
    dict.__setitem__(kept["frozen"], "b", 2)
    kept["set"].add(3)
    kept["deque"].append(3)
    kept["bytes"] += b"c"
    kept["pair"].other["y"] = 2
    model.late = 1  # type: ignore[assignment]
    model.training = False
    del model.kept
    assert state.restore()
    assert repr(kept) == before
    assert kept["dict"]["b"] is inner
    assert model.kept is kept  # type: ignore[comparison-overlap]
    assert model.training
    assert not hasattr(model, "late")
    assert not state.restore()


def test_a_number_that_is_written_again_is_no_change() -> None:
    model = Plain(scale=0.5, shape=(1, 2))
    state = state_of(model)
    model.scale, model.shape = float("0.5"), (1, int("2"))  # type: ignore[assignment]
    assert not state.restore()


nested = st.recursive(
    st.integers() | st.text(max_size=3) | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=12,
)


@given(kept=nested, other=nested, data=st.data())
def test_whatever_is_done_to_nested_containers_is_undone(kept: Any, other: Any, data: st.DataObject) -> None:
    model = Plain(kept=kept)
    before = repr(kept)
    state = state_of(model)

    def spoil(value: Any) -> None:
        if isinstance(value, list):
            for each in value:
                spoil(each)
            value.insert(data.draw(st.integers(0, len(value))), other)
        elif isinstance(value, dict):
            for each in list(value.values()):
                spoil(each)
            value["new"] = other

    spoil(kept)
    state.restore()
    assert repr(kept) == before
    assert model.kept is kept


def test_modules_buffers_and_memory_that_were_exchanged_are_put_back() -> None:
    model = Plain()
    model.register_buffer("mean", torch.zeros(2))
    weight, inside, mean = model.inside.weight, model.inside, model.mean
    numbers = weight.detach().clone()
    state = state_of(model)
    weight.data = torch.ones(3, 3)
    model.inside.bias.requires_grad_(False)
    model.inside = nn.Linear(3, 3)
    model.mean = torch.ones(2)
    model.add_module("late", nn.ReLU())
    assert state.restore()
    assert model.inside is inside
    assert model.mean is mean
    assert torch.equal(weight, numbers)
    assert inside.bias.requires_grad
    assert "late" not in dict(model.named_modules())
