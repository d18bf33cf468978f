from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import ExponentialLR
from torch.optim.swa_utils import AveragedModel

from mlflow_stability.errors import ChangingPartsError
from mlflow_stability.recovery.state.training_parts import TrainingParts
from mlflow_stability.session.autopilot import known_parts
from mlflow_stability.session.autopilot.known_parts import KnownParts, PartsChange


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many optimizers were given to each search."""
    counts: list[int] = []
    find: Callable[..., TrainingParts] = known_parts.find_parts

    def counted(optimizers: list[torch.optim.Optimizer], *others: object) -> TrainingParts:
        counts.append(len(optimizers))
        return find(optimizers, *others)

    monkeypatch.setattr(known_parts, "find_parts", counted)
    return counts


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))


def alive(parts: KnownParts) -> TrainingParts:
    result = parts.alive()
    assert result is not None
    return result


def test_an_ordinary_step_and_an_ordinary_snapshot_search_nothing(searches: list[int]) -> None:
    model, parts = net(), KnownParts()
    optimizer = SGD(model.parameters(), lr=0.1)
    assert parts.meet(optimizer, None) is PartsChange.ANOTHER
    assert [parts.meet(optimizer, None) for _ in range(3)] == [PartsChange.NONE] * 3
    assert [parts.look_again(None) for _ in range(3)] == [PartsChange.NONE] * 3
    assert parts.look_again(None, at_once=True) is PartsChange.NONE
    assert searches == [1]


def test_many_optimizers_of_one_model_are_all_known_after_one_search(searches: list[int]) -> None:
    model, parts = nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(40))), KnownParts()
    optimizers = [SGD([parameter], lr=0.1) for parameter in model.parameters()]
    schedule = ExponentialLR(optimizers[-1], 0.9)
    changes = [parts.meet(optimizer, None) for optimizer in optimizers]
    assert changes == [PartsChange.ANOTHER] + [PartsChange.OPTIMIZER] * 39
    assert alive(parts).optimizers == tuple(optimizers)
    assert alive(parts).models == (model,)
    assert searches == [1]
    assert parts.look_again(None) is PartsChange.NONE
    assert alive(parts).schedulers == (schedule,)
    assert searches == [1, 40]


def test_a_module_that_joins_with_a_parameter_group_is_a_part_at_the_next_step() -> None:
    model, head, parts = net(), nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 1)), KnownParts()
    optimizer = SGD(model[0].parameters(), lr=0.1)
    parts.meet(optimizer, None)
    optimizer.add_param_group({"params": list(model[2].parameters())})
    assert parts.meet(optimizer, None) is PartsChange.NONE  # of the same model
    optimizer.add_param_group({"params": list(head.parameters())})
    assert parts.meet(optimizer, None) is PartsChange.GROWN
    assert alive(parts).models == (model, head)
    assert parts.meet(optimizer, None) is PartsChange.NONE


def test_averages_that_are_created_later_are_found_and_follow_the_known_ones() -> None:
    model, parts = net(), KnownParts()
    first, optimizer = AveragedModel(model), SGD(model.parameters(), lr=0.1)
    parts.meet(optimizer, None)
    assert alive(parts).averaged == (first,)
    second = AveragedModel(model)
    frozen = copy.deepcopy(model).requires_grad_(False)
    assert parts.look_again(None) is PartsChange.NONE
    averaged = alive(parts).averaged
    assert averaged[0] is first
    assert {id(item) for item in averaged[1:]} == {id(second), id(frozen)}
    third = AveragedModel(model)
    parts.look_again(None)
    assert alive(parts).averaged == (*averaged, third)


def test_searches_for_later_modules_take_a_small_share_of_the_time(searches: list[int]) -> None:
    now = [0.0]

    def clock() -> float:
        now[0] += 0.1  # a search takes this
        return now[0]

    model, parts = net(), KnownParts(clock)
    optimizer = SGD(model.parameters(), lr=0.1)
    parts.meet(optimizer, None)
    kept = []
    for _ in range(8):
        kept.append(AveragedModel(model))
        parts.look_again(None)
    assert len(searches) == 1 + known_parts.FREE_SEARCHES
    now[0] += 25.0
    parts.look_again(None)
    assert len(alive(parts).averaged) == 8
    kept.append(AveragedModel(model))
    parts.look_again(None)
    assert len(alive(parts).averaged) == 8
    parts.look_again(None, at_once=True)
    assert len(alive(parts).averaged) == 9


def test_a_wrapper_that_is_made_for_each_pass_is_not_the_model(searches: list[int]) -> None:
    model, parts = net(), KnownParts()
    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in range(40):
        wrapper = nn.Sequential(nn.Sequential(model))
        parts.meet(optimizer, None)
        assert alive(parts).models in ((wrapper,), (model,))
        del wrapper
    assert alive(parts).models == (model,)
    assert searches == [1, 1]


def test_a_model_that_takes_the_place_of_another_one_is_found() -> None:
    first, parts = net(), KnownParts()
    optimizer = SGD(first[0].parameters(), lr=0.1)
    parts.meet(optimizer, None)
    second = nn.Sequential(first[0], nn.Linear(8, 1))
    del first
    optimizer.add_param_group({"params": list(second[1].parameters())})
    assert parts.meet(optimizer, None) is PartsChange.ANOTHER
    assert alive(parts).models == (second,)


def test_where_optimizers_come_and_go_too_fast_no_parts_are_known() -> None:
    parts = KnownParts()
    for _ in range(known_parts.MOST_SEARCHES):
        parts.meet(SGD(nn.Linear(2, 2).parameters(), lr=0.1), None)
    with pytest.raises(ChangingPartsError):
        parts.meet(SGD(nn.Linear(2, 2).parameters(), lr=0.1), None)
    assert parts.alive() is None
    assert not parts.are_there()
