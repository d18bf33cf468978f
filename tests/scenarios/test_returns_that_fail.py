"""Going back that fails, does not help, or has nowhere to go: the training goes on with the weights that it has."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from recovery.breaking import BreaksAt
from scenarios.flying import QUICK, Flown, flying
from scenarios.test_rescue import task, train
from torch import Tensor
from torch.optim import LBFGS, AdamW

from mlflow_stability.errors import TrainingDiverged
from mlflow_stability.recovery.state.restore import RestorePlan
from mlflow_stability.session.autopilot import states as keeping
from mlflow_stability.session.session import Session
from mlflow_stability.vocabulary.result import Severity

pytestmark = pytest.mark.scenario
AT_ONCE = dataclasses.replace(QUICK, rollback_after_skips=5)


def bits(model: torch.nn.Module, optimizer: AdamW) -> list[Tensor]:
    moments = [item for state in optimizer.state.values() for item in state.values()]
    return [parameter.detach().clone() for parameter in (*model.parameters(), *moments)]


def skipping_from(
    broken: int, steps: int, look: Callable[[int, list[Tensor]], None], kept: list[torch.nn.Module] | None = None
) -> list[float]:
    """Every loss from a step on is NaN, for a reason that is not in the weights; the model is added to `kept`."""
    model, next_loss = task()
    if kept is not None:
        kept.append(model)
    optimizer = AdamW(model.parameters(), lr=0.01)
    losses = []
    for number in range(1, steps + 1):
        loss = next_loss()
        (loss * math.nan if number >= broken else loss).backward()
        optimizer.step()
        optimizer.zero_grad()
        look(number, bits(model, optimizer))
        losses.append(loss.item())
    return losses


def test_weights_of_before_a_rollback_without_effect_are_put_back(tmp_path: Path) -> None:
    seen: dict[int, list[Tensor]] = {}
    with flying(tmp_path, rollback=dataclasses.replace(AT_ONCE, on_give_up="continue")) as flown:
        skipping_from(121, 140, seen.__setitem__)
    there, back = flown.events("rollback")
    (final,) = [event for event in flown.events("give_up") if event.severity is Severity.CRITICAL]
    assert (there.step, back.step, final.step) == (125, 130, 130)
    assert back.metrics["target"] == 125
    assert "not in the weights" in final.message
    assert back.message.startswith("Reverted the rollback: weights of step 125 restored (")
    assert not all(map(torch.equal, seen[127], seen[120]))
    for step in (124, 130, 140):
        assert all(map(torch.equal, seen[step], seen[120])), f"step {step} has other weights than step 120"
    assert flown.session.parts_off == {}


def test_a_training_that_is_stopped_has_the_weights_of_before_a_rollback_without_effect(tmp_path: Path) -> None:
    seen: dict[int, list[Tensor]] = {}
    kept: list[torch.nn.Module] = []

    def look(number: int, now: list[Tensor]) -> None:
        seen[number] = now

    policy = dataclasses.replace(AT_ONCE, on_give_up="raise")
    with flying(tmp_path, rollback=policy) as flown, pytest.raises(TrainingDiverged, match="not in the weights"):
        skipping_from(121, 140, look, kept)
    assert max(seen) == 129
    assert [event.metrics["target"] for event in flown.events("rollback")][-1] == 125
    assert all(map(torch.equal, kept[0].parameters(), seen[120]))


def breaks_off(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state fits, and an error comes when half of it has been put back."""
    breaking(monkeypatch, BreaksAt(7))


def has_no_room(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the training is now cannot be copied aside."""
    monkeypatch.setattr(keeping, "free_memory", lambda: 0)


def breaks_off_at_its_end(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """All has been put back, and then another process cannot."""
    whole = RestorePlan.apply

    def torn(plan: RestorePlan) -> Any:
        monkeypatch.setattr(RestorePlan, "apply", whole)
        whole(plan)
        raise MemoryError("no room at the end")

    monkeypatch.setattr(RestorePlan, "apply", torn)


def breaking(monkeypatch: pytest.MonkeyPatch, breaks: BreaksAt) -> None:
    whole = RestorePlan.apply

    def half(plan: RestorePlan) -> Any:
        with breaks:
            return whole(plan)

    monkeypatch.setattr(RestorePlan, "apply", half)


def loses_its_states(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    assert session._lifecycle is not None
    monkeypatch.setattr(session._lifecycle.control._states, "state_of", lambda step: {}[step])


@pytest.mark.slow
@pytest.mark.parametrize("trouble", [breaks_off, has_no_room, breaks_off_at_its_end, loses_its_states])
def test_a_rollback_that_fails_changes_nothing_and_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: Callable[[Session, pytest.MonkeyPatch], None]
) -> None:
    flown: Flown
    seen: dict[int, list[Tensor]] = {}

    def look(number: int, now: list[Tensor]) -> None:
        seen[number] = now
        if number == 120:
            trouble(flown.session, monkeypatch)

    with flying(tmp_path, strict=False, rollback=AT_ONCE) as flown:
        losses = skipping_from(121, 160, look)
        assert list(flown.session.parts_off) == ["rollback"]
    assert all(map(torch.equal, seen[160], seen[120]))
    assert flown.events("rollback") == []
    (event,) = flown.events("give_up")
    assert "Rollback from step 125 to step" in event.message
    assert "Nothing was changed: weights, buffers and optimizer state are those of step 125." in event.message
    assert event.severity is Severity.CRITICAL
    assert len(losses) == 160


def test_a_rollback_that_can_neither_be_made_nor_reverted_says_what_was_not_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flown: Flown
    seen: dict[int, list[Tensor]] = {}
    for_good = BreaksAt(7, times=1_000_000)
    monkeypatch.setattr(RestorePlan, "undo", within(for_good, RestorePlan.undo))

    def look(number: int, now: list[Tensor]) -> None:
        seen[number] = now
        if number == 120:
            breaking(monkeypatch, for_good)

    with flying(tmp_path, strict=False, rollback=AT_ONCE) as flown:
        skipping_from(121, 130, look)
        assert flown.session.good_steps == () or min(flown.session.good_steps) < 120
    (event,) = flown.events("give_up")
    wrong = sum(not torch.equal(*pair) for pair in zip(seen[130], seen[120], strict=True))
    assert 0 < wrong < len(seen[120])
    assert "Nothing was changed" not in event.message
    assert "Incomplete: these may now be" in event.message
    named = event.message.partition("RuntimeError: ")[2]
    # The tensor at which it broke off is named whether or not a part of it was written.
    assert named.startswith((f"{wrong} of {len(seen[120])} tensors", f"{wrong + 1} of {len(seen[120])} tensors"))


def within(breaks: BreaksAt, body: Callable[[RestorePlan], Any]) -> Callable[[RestorePlan], Any]:
    def undo(plan: RestorePlan) -> Any:
        with breaks:
            return body(plan)

    return undo


def test_a_return_that_fails_ends_the_training_where_that_was_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = dataclasses.replace(AT_ONCE, on_give_up="raise")
    flown: Flown

    def look(number: int, now: list[Tensor]) -> None:
        if number == 120:
            loses_its_states(flown.session, monkeypatch)

    with (
        flying(tmp_path, strict=False, rollback=policy) as flown,
        pytest.raises(TrainingDiverged, match="the rollback failed"),
    ):
        skipping_from(121, 160, look)


@pytest.mark.slow
def test_without_room_for_states_a_warning_says_that_the_training_cannot_be_rolled_back(tmp_path: Path) -> None:
    with flying(tmp_path, rollback=dataclasses.replace(QUICK, snapshot_budget=1000)) as flown:
        train(steps=260)
        assert flown.session.good_steps == ()
        assert not flown.session.rollback()
    assert flown.events("rollback") == []
    assert flown.events("give_up")
    assert all("o good state" in event.message for event in flown.events("give_up"))
    assert flown.session.parts_off == {}


@pytest.mark.slow
def test_without_room_for_states_in_memory_those_on_the_disk_are_gone_back_to(tmp_path: Path) -> None:
    policy = dataclasses.replace(QUICK, rollback_checkpoint_interval=50, snapshot_budget=1000)
    with flying(tmp_path, rollback=policy) as flown:
        losses, _ = train()
    assert flown.events("rollback")
    assert sum(losses[-40:]) / 40 < 0.1


def test_a_very_first_step_of_lbfgs_that_breaks_the_weights_is_taken_back(tmp_path: Path) -> None:
    model, next_loss = task()
    optimizer = LBFGS(model.parameters(), max_iter=4)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    asked = 0

    def closure() -> Tensor:
        nonlocal asked
        optimizer.zero_grad()
        loss = next_loss()
        (loss * math.nan if asked == 1 else loss).backward()
        asked += 1
        return loss

    with flying(tmp_path, guard=True) as flown:
        optimizer.step(closure)
        assert all(map(torch.equal, model.parameters(), before))
        optimizer.step(closure)
        assert not all(map(torch.equal, model.parameters(), before))
    assert [event.step for event in flown.events("step_skipped")] == [1]
