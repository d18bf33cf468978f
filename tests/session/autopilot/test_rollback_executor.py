from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
from findings import at_step

from mlflow_stability.errors import RestoreRefused
from mlflow_stability.recovery.rollback_state import Decision
from mlflow_stability.recovery.state.training_parts import TrainingParts
from mlflow_stability.session.autopilot.rollback_controller import RollbackExecutor
from mlflow_stability.session.guard import PartGuard
from mlflow_stability.vocabulary.result import Finding, Severity

PARTS = TrainingParts(())


class Controller:
    """With good states of these steps, of which some do not fit here."""

    ends_training = False

    def __init__(self, good: list[int], unfit: set[int]) -> None:
        self.good, self.unfit = good, unfit
        self.applied: list[int] = []
        self.given_up = 0

    def prepare(self, decision: Decision, step: int, parts: TrainingParts) -> None:
        self.target = decision.target
        if decision.target in self.unfit:
            raise RestoreRefused(f"The state of step {decision.target} does not fit. Nothing was changed.")

    def next_target(self, decision: Decision) -> int:
        self.good.remove(decision.target)
        return max((each for each in self.good if each < decision.target), default=-1)

    def retarget(self, decision: Decision, target: int) -> Decision:
        return dataclasses.replace(decision, target=target)

    def apply(self) -> None:
        self.applied.append(self.target)

    def undo(self) -> bool:
        return True

    def rolled_back(self, decision: Decision, step: int, attempt: int) -> Finding:
        return at_step(step, "rollback", Severity.WARNING, "")

    def nothing_fits(self, decision: Decision, step: int, why: str) -> Finding:
        self.given_up += 1
        return at_step(step, "give_up", Severity.WARNING, why)

    def forgo(self, decision: Decision, step: int, why: str, all_whole: bool) -> Finding:
        raise AssertionError("rollbacks are to go on")


class Together:
    """Agreement with another process that refuses the states of some steps."""

    def __init__(self, controller: Controller, unfit: set[int]) -> None:
        self._controller, self._unfit = controller, unfit
        self._refuses = True

    def agree(self, done: bool) -> bool:
        refused, self._refuses = self._refuses and self._controller.target in self._unfit, not self._refuses
        return done and not refused

    def told_by_first(self, step: int) -> int:
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
    controller = Controller([40, 60, 80], here)
    context: Any = SimpleNamespace(guard=PartGuard(True, lambda *_: None), settle=lambda: None)
    consensus: Any = Together(controller, there)
    executor = RollbackExecutor(controller, consensus, context, None, lambda _: None)  # type: ignore[arg-type]
    assert executor.run(Decision("rollback", target=80), 100, PARTS) is bool(target)
    assert controller.applied == target
    assert controller.given_up == (not target)
    assert controller.good == [each for each in (40, 60, 80) if target and each <= target[0]]
