from __future__ import annotations

import abc
import functools
import io
import logging
import threading
import types
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from mlflow_stability.probes.forward import writable_state
from mlflow_stability.probes.forward.forward_rerun import WrittenTensors, kept
from mlflow_stability.probes.forward.writable_state import WritableState


class Plain(nn.Module):
    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        self.inside = nn.Linear(2, 2)
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.inside(x)
        return output


class Pair(NamedTuple):
    numbers: list[int]
    other: dict[str, Any]


class Named(dict[str, Any]):
    """Does not let itself be written to in the usual way."""

    def __setitem__(self, key: str, value: Any) -> None:
        raise TypeError("frozen")

    def clear(self) -> None:
        raise TypeError("frozen")


def state_of(model: nn.Module, *args: Any) -> WritableState:
    return WritableState(model, args, {}, with_hooks=True)


calls = 0
last_shape = "none"
history: list[int] = []


class CountsGlobally(Plain):
    def forward(self, x: Tensor) -> Tensor:
        global calls, last_shape
        calls += 1
        last_shape = str(tuple(x.shape))
        history.append(calls)
        return super().forward(x)


def test_global_numbers_and_texts_are_restored_and_global_containers_are_left_alone() -> None:
    model = CountsGlobally()
    state = state_of(model, torch.ones(1, 2))
    assert not state.refusal
    model(torch.ones(1, 2))
    assert (calls, last_shape) == (1, "(1, 2)")
    assert state.restore()
    assert (calls, last_shape, history) == (0, "none", [1])
    assert not state.restore()


def generator() -> Iterator[int]:
    yield 1


def closure() -> Callable[[], int]:
    calls = [0]
    return lambda: calls[0]


OPAQUE: dict[str, Callable[[], Any]] = {
    "is of type generator, whose state cannot be put back": generator,
    "is of type list_iterator, whose state cannot be put back": lambda: iter([1]),
    "is of type lock, whose state cannot be put back": threading.Lock,
    "is of type StringIO, whose state cannot be put back": io.StringIO,
    "is of type RecursiveScriptModule, whose state cannot be put back": lambda: torch.jit.script(nn.ReLU()),
    "is a NumPy array of 8 bytes and type object": lambda: np.array([object()]),
    "is a function with variables of its own (a closure)": closure,
}


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@pytest.mark.parametrize("words", OPAQUE)
def test_state_that_cannot_be_restored_is_refused_by_its_name(words: str) -> None:
    hidden = OPAQUE[words]()
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


def test_a_method_that_may_write_variables_around_its_class_is_refused() -> None:
    calls: list[int] = []

    class Counting(Plain):
        def forward(self, x: Tensor) -> Tensor:
            calls.append(1)
            return super().forward(x)

    class Abstract(Plain, abc.ABC):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)

    assert state_of(Counting()).refusal == "Counting.forward is a function with variables of its own (a closure)"
    assert state_of(Abstract()).refusal == ""


class Recorder:
    def __init__(self) -> None:
        self.outputs: list[Tensor] = []

    def record(self, _module: nn.Module, _args: object, output: Tensor) -> None:
        self.outputs.append(output)


def test_hooks_are_restored_as_objects_and_refused_as_functions_of_the_script() -> None:
    model, recorder = Plain(), Recorder()
    model.inside.register_forward_hook(recorder.record)
    state = state_of(model)
    assert state.refusal == ""
    model(torch.ones(1, 2))
    assert state.restore()
    assert recorder.outputs == []
    model.inside.register_forward_pre_hook(lambda *_: None)
    words = "a hook of Plain.inside is a function of the script, which may write anything"
    assert state_of(model).refusal == words
    assert WritableState(model, (), {}, with_hooks=False).refusal == ""


def test_a_lightning_module_reads_its_trainer_and_logs_nothing() -> None:
    class LightningModule(Plain):
        def log(self, name: str, value: float) -> None:
            self._trainer.append(value)

        def forward(self, x: Tensor) -> Tensor:
            self.log("x", 1.0)
            return super().forward(x)

    logged: list[float] = []
    model = LightningModule(_trainer=logged, _fabric=generator())
    state = state_of(model)
    assert state.refusal == ""
    with kept(state, WrittenTensors()):
        model(torch.ones(1, 2))
    assert logged == []
    model(torch.ones(1, 2))
    assert logged == [1.0]


def test_a_model_that_holds_too_many_values_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writable_state, "MAX_VALUES", 500)
    assert state_of(Plain(kept=list(range(10)))).refusal == ""
    assert state_of(Plain(kept=list(range(1000)))).refusal == "it holds more than 500 values"
    assert state_of(Plain(kept=[[number] for number in range(300)])).refusal == "it holds more than 500 values"


def test_every_kind_of_container_is_restored_with_the_same_objects_in_the_same_order() -> None:
    kept: dict[str, Any] = {
        "list": [1, [2]],
        "dict": {"a": 1, "b": [2]},
        "ordered": OrderedDict(a=1, b=2),
        "default": defaultdict(list, a=[1]),
        "frozen": Named(a=[1]),
        "set": {1, 2},
        "deque": deque([1, 2], maxlen=2),
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
    model = Plain(rows=1000, shape=torch.Size([1, 2]))
    state = state_of(model)
    model.rows, model.shape = int("1000"), torch.Size([1, int("2")])  # type: ignore[assignment]
    assert not state.restore()


nested = st.recursive(
    st.integers() | st.text(max_size=3) | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=12,
)


@pytest.mark.slow
@given(kept=nested, other=nested, data=st.data())
def test_any_change_to_nested_containers_is_reversed(kept: Any, other: Any, data: st.DataObject) -> None:
    model = Plain(kept=kept)
    before = repr(kept)
    state = state_of(model)

    def spoil(value: Any) -> None:
        if isinstance(value, list):
            for item in value:
                spoil(item)
            value.insert(data.draw(st.integers(0, len(value))), other)
        elif isinstance(value, dict):
            for item in list(value.values()):
                spoil(item)
            value["new"] = other

    spoil(kept)
    state.restore()
    assert repr(kept) == before
    assert model.kept is kept


def test_replaced_modules_buffers_and_memory_are_restored() -> None:
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
