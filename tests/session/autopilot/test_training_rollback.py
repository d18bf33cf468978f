from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from mlflow_stability.errors import RestoreRefused
from mlflow_stability.probes.hooks.guarded_hooks import PartGuard
from mlflow_stability.recovery.rollback_state import Decision
from mlflow_stability.recovery.state.training_parts import TrainingParts
from mlflow_stability.session.autopilot.training_rollback import TrainingRollback
from mlflow_stability.vocabulary.result import Finding
from mlflow_stability.vocabulary.rollback_policy import RollbackPolicy

PARTS = TrainingParts(())


class FewStates:
    """Good states of these steps, of which some do not fit here."""

    def __init__(self, good: list[int], unfit: set[int]) -> None:
        self.good, self.unfit = good, unfit
        self.restored: list[int] = []

    def stage(self, target: int, parts: TrainingParts, step: int) -> None:
        self.target = target
        if target in self.unfit:
            raise RestoreRefused(f"The state of step {target} does not fit. Nothing was changed.")

    def abandon(self) -> None:
        pass

    def drop(self, step: int) -> None:
        self.good.remove(step)

    def rates_at(self, step: int) -> dict[int, tuple[float, ...]]:
        return {}

    def restore(self) -> None:
        self.restored.append(self.target)

    def undo(self) -> bool:
        return True

    def finish(self, target: int) -> int:
        return 0


class Deciding:
    """Chooses the next older state."""

    rollbacks = 0

    def __init__(self, states: FewStates) -> None:
        self._states = states
        self.rolled_back_at: list[int] = []

    def next_target(self, decision: Decision) -> int:
        return max((value for value in self._states.good if value < decision.target), default=-1)

    def retarget(self, decision: Decision, target: int) -> Decision:
        return dataclasses.replace(decision, target=target)

    def rolled_back(self, decision: Decision, step: int) -> None:
        self.rolled_back_at.append(step)

    def nothing_fits(self, decision: Decision) -> None:
        pass

    def not_restored(self) -> None:
        raise AssertionError("rollbacks are to go on")


class Together:
    """Agreement with another process that refuses the states of some steps."""

    def __init__(self, states: FewStates, unfit: set[int]) -> None:
        self._states, self._unfit = states, unfit
        self._refuses = True

    def agree(self, done: bool) -> bool:
        refused, self._refuses = self._refuses and self._states.target in self._unfit, not self._refuses
        return done and not refused

    def target_of_first(self, step: int) -> int:
        self._refuses = True
        return step

    def forget(self) -> None:
        pass


@pytest.mark.parametrize(
    ("here", "there", "target"),
    [
        (set(), set(), [80]),
        ({80}, set(), [60]),
        (set(), {80}, [60]),
        ({80}, {60}, [40]),
        ({80, 60, 40}, set(), []),
        (set(), {80, 60, 40}, []),
    ],
)
def test_a_state_that_one_process_refuses_is_refused_by_all_and_the_next_one_is_tried(
    here: set[int], there: set[int], target: list[int]
) -> None:
    states: Any = FewStates([40, 60, 80], here)
    decider: Any = Deciding(states)
    modifier: Any = SimpleNamespace(lasting=1.0, rolled_back=lambda easing: None)
    ranks: Any = Together(states, there)
    settings = SimpleNamespace(policy=RollbackPolicy())
    context: Any = SimpleNamespace(settings=settings, guard=PartGuard(True, lambda *_: None), settle=lambda: None)
    events: list[Finding] = []
    rollback = TrainingRollback(decider, states, modifier, ranks, context, None, events.append)
    assert rollback.run(Decision("rollback", target=80), 100, PARTS) is bool(target)
    assert states.restored == target
    assert decider.rolled_back_at == [100] * len(target)
    assert [event.kind for event in events] == ([] if target else ["give_up"])
    assert states.good == [number for number in (40, 60, 80) if target and number <= target[0]]
