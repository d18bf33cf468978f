"""A number of bad values in a row are one finding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from mlflow_stability.detectors.detector import Point
from mlflow_stability.detectors.streak import OVER_AFTER, Streak, StreakByPlace, StreakDetector
from mlflow_stability.kinds.hardware.utilization import StepTimeFacts
from mlflow_stability.vocabulary.facts import Facts, LimitFacts


@dataclass(frozen=True, slots=True)
class HighFacts(LimitFacts):
    metrics: ClassVar = {"limit": "threshold", "x": "value"}

    def sentence(self, step: int, unit: str = "step", /) -> str:
        return f"{self.value:g} at {unit} {step}"


@dataclass(frozen=True, slots=True)
class High(StreakDetector):
    highest: float = 1.0
    rounds: int = 3

    kind = "high"
    quantities = ("x",)
    in_a_row = "rounds"

    def facts(self, _state: Streak, point: Point) -> Facts | None:
        return HighFacts(point.value, self.highest, in_a_row=self.rounds) if point.value > self.highest else None


@dataclass(frozen=True, slots=True)
class HighSomewhere(High):
    state_type = StreakByPlace


@dataclass(frozen=True, slots=True)
class HighAgainstBaseline(High):
    compared = ("x",)


def found_at(detector: High, values: str, place: str = "") -> list[int]:
    """The steps of findings: `#` is a high value, `.` a normal one, `?` one that is not finite."""
    state, steps = detector.begin(), []
    for step, sign in enumerate(values):
        value = {"#": 2.0, ".": 0.5, "?": float("nan")}[sign]
        state, event = detector.step(state, Point("x", place, step, value, finite=sign != "?"))
        if event is not None:
            assert (event.kind, event.metrics["x"], event.score) == ("high", 2.0, 2.0)
            steps.append(event.step)
    return steps


@pytest.mark.parametrize(
    ("values", "steps"),
    [
        ("##.##.##", []),
        ("###", [2]),
        ("########", [2]),
        ("###.##", [2]),
        ("###.###", [2, 6]),
        ("#?#?#", [4]),
    ],
)
def test_a_streak_is_one_finding_until_a_good_value(values: str, steps: list[int]) -> None:
    assert found_at(High(), values) == steps


@pytest.mark.parametrize(("good", "steps"), [(OVER_AFTER - 1, [2]), (OVER_AFTER, [2, 2 + OVER_AFTER + 3])])
def test_a_streak_by_place_is_over_after_some_good_values(good: int, steps: list[int]) -> None:
    assert found_at(HighSomewhere(), f"###{'.' * good}###", "layer") == steps


def test_places_that_share_trouble_are_one_finding() -> None:
    state, result = StreakByPlace(), []
    for step in range(40):
        for place in ("a", "b"):
            bad = step < 30 if place == "b" else 2 <= step < 4
            if state.reaches(place, 2, bad=bad):
                result.append((step, place))
    assert result == [(1, "b")]
    assert not state.is_found


def test_a_value_that_is_compared_is_judged_from_its_baseline_on() -> None:
    assert found_at(HighAgainstBaseline(), "######") == []


@pytest.mark.parametrize(
    ("facts", "exceeds"),
    [
        (HighFacts(6.0, 3.0), 2.0),
        (HighFacts(1.0, 3.0), 3.0),
        (HighFacts(0.0, 3.0), None),
        (HighFacts(float("inf"), 3.0), None),
        (StepTimeFacts(8.0, 2.0, 2.0), 2.0),
        (StepTimeFacts(1.0, 2.0, 0.5), None),
        (StepTimeFacts(1.0, 0.0, 2.0), None),
    ],
)
def test_facts_say_by_how_many_times_a_threshold_is_exceeded(facts: Facts, exceeds: float | None) -> None:
    assert facts.exceeds == exceeds
