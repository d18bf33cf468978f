from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path

import mlflow
import pytest
import torch
from scenarios.flying import flying
from torch import nn

from mlflow_stability.vocabulary.result import Finding

State = dict[str, torch.Tensor]


def make_model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def train(model: nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(12):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()


def renamed(state: State) -> State:
    return {f"module.{name}": tensor for name, tensor in state.items()}


def of_two(model: nn.Module, state: State) -> None:
    make_model().load_state_dict(renamed(state), strict=False)  # this module is gone
    model.load_state_dict({**renamed(state), "0.bias": state["0.bias"]}, strict=False)


def then_into_a_part(model: nn.Module, state: State) -> None:
    model.load_state_dict(renamed(state), strict=False)
    model.get_submodule("2").load_state_dict({"bias": state["2.bias"], "other": state["0.bias"]}, strict=False)


def then_into_the_owner(model: nn.Module, state: State) -> None:
    model.get_submodule("0").load_state_dict(renamed(state), strict=False)
    model.load_state_dict(state)


def into_each_part(model: nn.Module, state: State) -> None:
    for part in (model.get_submodule("0"), model.get_submodule("2")):
        part.load_state_dict({"gain": state["0.bias"]}, strict=False)
    model.load_state_dict(state)


def in_files(model: nn.Module, state: State) -> None:
    for names in (("0.weight", "0.bias"), ("2.weight", "2.bias"), ()):
        model.load_state_dict({**{name: state[name] for name in names}, "vision": state["0.bias"]}, strict=False)


def in_entries(model: nn.Module, state: State) -> None:
    for name, tensor in {**state, "position_ids": state["0.bias"]}.items():
        model.load_state_dict({name: tensor}, strict=False)


def after_another_was_loaded_in_part(model: nn.Module, state: State) -> None:
    other = make_model()
    other.load_state_dict({"0.bias": state["0.bias"]}, strict=False)
    model.load_state_dict(state)
    model.load_state_dict(renamed(state), strict=False)


def then_by_hand(model: nn.Module, state: State) -> None:
    model.load_state_dict(renamed(state), strict=False)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            tensor.copy_(state[name])


MESSAGE = (
    "load_state_dict(strict=False) loaded nothing into Sequential: it has none of the {} names in the state dict. "
    "The first there is {}, its own 0.weight."
)
LOADS: dict[str, tuple[Callable[[nn.Module, State], object], str]] = {
    "a prefix": (
        lambda model, state: model.load_state_dict(renamed(state), strict=False),
        MESSAGE.format(4, "module.0.weight"),
    ),
    "a state inside": (
        lambda model, state: model.load_state_dict(state_dict={"model": state, "epoch": 3}, strict=False),  # type: ignore[dict-item]
        MESSAGE.format(2, "model"),
    ),
    "all of it": (lambda model, state: model.load_state_dict(state), ""),
    "a few of many": (lambda model, state: model.load_state_dict({"0.bias": state["0.bias"]}, strict=False), ""),
    "an empty state": (lambda model, _: model.load_state_dict({}, strict=False), ""),
    "a second try": (
        lambda model, state: [model.load_state_dict(given, strict=False) for given in (renamed(state), state)],
        "",
    ),
    "some beside others": (of_two, ""),
    "then into a part": (then_into_a_part, ""),
    "then by hand": (then_by_hand, ""),
    "then into the owner": (then_into_the_owner, ""),
    "into each part": (into_each_part, ""),
    "several files": (in_files, ""),
    "entry by entry": (in_entries, ""),
    "after all of it": (after_another_was_loaded_in_part, MESSAGE.format(4, "module.0.weight")),
}


@pytest.mark.parametrize("name", LOADS)
def test_a_state_that_has_no_name_of_the_module_is_found_unless_something_is_loaded_later(
    tmp_path: Path, name: str
) -> None:
    torch.manual_seed(0)
    load, message = LOADS[name]
    with flying(tmp_path) as flown:
        model = make_model()
        load(model, make_model().state_dict())
        train(model)
    assert [(event.step, event.message) for event in flown.events("nothing_loaded")] == (
        [(10, message)] if message else []
    )


def test_a_run_that_follows_does_not_answer_for_modules_of_an_earlier_one(
    tmp_path: Path, sqlite_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", sqlite_uri)
    kept = []
    with flying(tmp_path) as flown:
        for fails in (True, False):
            with mlflow.start_run():
                kept.append(model := make_model())
                if fails:
                    model.load_state_dict(renamed(model.state_dict()), strict=False)
                train(model)
    findings = [[event.kind for event in recording if isinstance(event, Finding)] for recording in flown.recordings]
    assert findings == [["nothing_loaded"], []]


def test_a_module_may_be_given_by_name(tmp_path: Path) -> None:
    model = make_model()
    with flying(tmp_path):
        result = partial(nn.Module.load_state_dict, self=model)(state_dict=renamed(model.state_dict()), strict=False)
    assert len(result.missing_keys) == len(result.unexpected_keys) == 4


def test_modules_whose_writes_are_not_counted_are_no_error(tmp_path: Path) -> None:
    with torch.inference_mode():
        frozen = nn.Linear(4, 8)
    emptied, lazy = nn.Linear(4, 8), nn.LazyLinear(8)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with flying(tmp_path) as flown:
        for module in (frozen, emptied, lazy, nn.Linear(4, 8, device="meta")):
            module.load_state_dict({"module.weight": torch.ones(8, 4)}, strict=False)
        del emptied.weight, emptied.bias
        lazy(torch.ones(2, 4))
        for _ in range(12):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
    assert [event.step for event in flown.events("nothing_loaded")] == [10]


def test_an_error_of_load_state_dict_passes(tmp_path: Path) -> None:
    with flying(tmp_path), pytest.raises(RuntimeError, match="Unexpected key"):
        make_model().load_state_dict(renamed(make_model().state_dict()))


OWN = (
    "load_state_dict() changed nothing in Sequential: the state dict has the tensors of the module itself, not copies "
    "of them."
)


def best_of_three(keep: Callable[[State], State]) -> nn.Module:
    model = make_model()
    for epoch in range(3):
        train(model)
        if epoch == 1:
            best = keep(model.state_dict())
    model.load_state_dict(best)
    return model


def reset_between(model: nn.Module) -> None:
    first = model.state_dict()
    for _ in range(2):
        train(model)
        model.load_state_dict(first)


def update_target(source: Callable[[nn.Module, nn.Module], nn.Module], write: bool = False) -> None:
    model, target = make_model(), make_model()
    for _ in range(3):
        train(model)
        state = source(model, target).state_dict()
        if write:
            for name, tensor in model.state_dict().items():
                state[name].copy_(tensor)
        target.load_state_dict(state)


def saved_in_place(model: nn.Module) -> None:
    train(model)
    state = model.state_dict()
    for tensor in state.values():
        tensor.mul_(0.5)
    model.load_state_dict(state)


def shared(model: nn.Module) -> None:
    other = make_model()
    train(model)
    state = model.state_dict()
    train(model)
    other.load_state_dict(state, assign=True)


OWN_STATES: dict[str, tuple[Callable[[], object], bool]] = {
    "the best state without a copy": (lambda: best_of_three(lambda state: state), True),
    "in another dict": (lambda: best_of_three(lambda state: {name: held.cpu() for name, held in state.items()}), True),
    "a copy": (lambda: best_of_three(copy.deepcopy), False),
    "clones": (lambda: best_of_three(lambda state: {name: held.clone() for name, held in state.items()}), False),
    "the initial state": (lambda: reset_between(make_model()), True),
    "a target network from itself": (lambda: update_target(lambda _, target: target), True),
    "a target network": (lambda: update_target(lambda model, _: model), False),
    "averaged in place": (lambda: update_target(lambda _, target: target, write=True), False),
    "written at once": (lambda: saved_in_place(make_model()), False),
    "assigned to another": (lambda: shared(make_model()), False),
}


@pytest.mark.parametrize("name", OWN_STATES)
def test_a_state_dict_that_is_no_copy_is_found_when_it_is_loaded(tmp_path: Path, name: str) -> None:
    torch.manual_seed(0)
    run, is_found = OWN_STATES[name]
    with flying(tmp_path) as flown:
        run()
    messages = [event.message for event in flown.events("nothing_loaded")]
    assert messages == ([OWN] if is_found else [])


def test_a_state_dict_is_found_at_the_last_step_before_it_is_loaded(tmp_path: Path) -> None:
    with flying(tmp_path) as flown:
        best_of_three(lambda state: state)
    assert [event.step for event in flown.events("nothing_loaded")] == [36]
