from __future__ import annotations

import numpy as np
import pytest
from findings import at_step

from mlflow_stability.figures.dashboard_data import MAX_MARKS, Mark, MarkSketch, grouped
from mlflow_stability.figures.style import number_text, scale_of
from mlflow_stability.kinds.reported.rollback import RollbackFacts
from mlflow_stability.vocabulary.result import Finding, Severity


@pytest.mark.slow
def test_many_events_become_few_marks_and_none_is_lost() -> None:
    sketch = MarkSketch()
    for step in range(0, 20_000, 2):
        severity = Severity.CRITICAL if step == 7_778 else Severity.WARNING
        sketch.add_event(at_step(step, "loss_spike", severity, "spike"), step)
    marks = sketch.marks()
    assert len(marks) <= MAX_MARKS
    assert sum(mark.count for mark in marks) == 10_000
    assert sum(mark.severity == Severity.CRITICAL for mark in marks) == 1
    assert (marks[0].start, marks[-1].end) == (0, 19_998)


def test_a_rollback_knows_where_it_led_back_to_as_the_run_counts() -> None:
    sketch = MarkSketch()
    sketch.add_event(Finding.at(RollbackFacts("back", 30, 40, 20, 0.1, 1), 50, Severity.INFO), 1050)
    assert sketch.marks() == (Mark("rollback", Severity.INFO, 1050, 1050, target=1030),)


def test_neighbours_are_one_mark_and_others_are_not() -> None:
    marks = [Mark("x", Severity.INFO, step, step) for step in (1, 2, 3, 50)]
    assert [(process.start, process.end, process.count) for process in grouped(marks, 5)] == [(1, 3, 3), (50, 50, 1)]


def test_positive_values_get_a_logarithmic_scale_and_others_do_not() -> None:
    assert scale_of(np.array([0.1, 1000.0])).logarithmic
    assert not scale_of(np.array([-1.0, 1000.0])).logarithmic
    assert not scale_of(np.array([0.0, 3.0])).logarithmic
    assert scale_of(np.array([0.0, 3.0]), never_negative=True).logarithmic
    assert not scale_of(np.zeros(3), never_negative=True).logarithmic
    assert scale_of(np.array([np.nan, np.inf])) is None


def test_one_extreme_value_does_not_flatten_the_others_and_is_reported() -> None:
    values = np.append(np.linspace(-1, 1, 1000), 4e8)
    scale = scale_of(values)
    assert scale.top < 10
    assert scale.cut == 4e8


@pytest.mark.parametrize("values", [[5.0], [-5.0], [0.0], [1e-320], [1.7e308, -1.7e308], [1e-308, 1.7e308]])
def test_every_scale_has_room_and_finite_limits(values: list[float]) -> None:
    scale = scale_of(np.array(values))
    assert np.isfinite([scale.bottom, scale.top]).all()
    assert scale.bottom < scale.top


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.00025, "2.5e-4"),
        (3e-4, "3e-4"),
        (1e5, "1e5"),
        (12_000.0, "12,000"),
        (0.25, "0.25"),
        (0.0, "0"),
        (-1e-5, "-1e-5"),
    ],
)
def test_numbers_are_written_as_people_type_them(value: float, text: str) -> None:
    assert number_text(value) == text
