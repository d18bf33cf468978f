from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_stability.courier.sinks.event_sink import StallWatch
from mlflow_stability.vocabulary.result import Finding, Severity


def heard(watch: StallWatch, step: int, now: float) -> Finding | None:
    """A step whose duration was not measured, heard at once by clocks that agree."""
    return watch.heard(step, now, None, now)


def after_steps(count: int = 20, seconds: float = 0.5) -> tuple[StallWatch, float]:
    watch, now = StallWatch(), 1000.0
    for step in range(1, count + 1):
        assert heard(watch, step, now) is None
        now += seconds
    return watch, now - seconds


def test_no_step_for_a_minute_is_a_stall_while_the_process_lives() -> None:
    watch, last = after_steps()
    assert watch.look(last + 59) is None
    stall = watch.look(last + 61)
    assert stall is not None
    assert (stall.kind, stall.severity, stall.step) == ("stall", Severity.CRITICAL, 20)
    assert "more than 60 s since step 20" in stall.message
    assert stall.remedies


def test_a_stall_has_the_same_description_at_every_look() -> None:
    watch, last = after_steps()
    assert watch.look(last + 61) == watch.look(last + 3000)


def test_slow_steps_are_not_a_stall() -> None:
    watch, last = after_steps(seconds=30.0)
    assert watch.look(last + 299) is None
    assert watch.look(last + 301) is not None


def test_a_stall_after_which_training_continued_is_a_pause() -> None:
    watch, last = after_steps()
    pause = heard(watch, 21, last + 100)
    assert pause is not None
    assert pause.severity is Severity.INFO
    assert "100 s after step 20; then training continued" in pause.message
    assert watch.look(last + 130) is None


def test_a_stall_before_the_end_is_reported_when_the_training_ends() -> None:
    watch, last = after_steps()
    pause = watch.ended(last + 100, last + 100)
    assert pause is not None
    assert (pause.kind, pause.severity, pause.step) == ("stall", Severity.INFO, 20)
    assert "No step for 100 s after step 20; then the training ended." in pause.message


@pytest.mark.parametrize(("wall", "clock"), [(59.0, 59.0), (7200.0, 3.0), (3.0, 7200.0)])
def test_an_end_soon_after_a_step_is_not_a_pause_whatever_the_clocks_show(wall: float, clock: float) -> None:
    watch, last = after_steps()
    assert watch.ended(last + wall, last + clock) is None


def test_a_pause_for_evaluation_in_every_epoch_is_reported_once() -> None:
    watch, now = after_steps()
    findings: list[Finding] = []
    step = 20
    for _ in range(10):
        now += 90
        for _ in range(50):
            step += 1
            event = heard(watch, step, now)
            findings += [event] if event else []
            now += 0.5
        now -= 0.5
    assert len(findings) == 1
    assert watch.look(now + 120) is None
    assert watch.look(now + 300) is not None


def test_no_stall_is_reported_before_the_usual_step_time_is_known() -> None:
    watch, last = after_steps(3)
    assert watch.look(last + 100_000) is None


@pytest.mark.parametrize("seconds", [0.0, -50.0])
def test_a_clock_that_was_turned_back_is_not_a_pause(seconds: float) -> None:
    watch, last = after_steps()
    assert heard(watch, 21, last + seconds) is None


@pytest.mark.parametrize("by", [7200.0, -7200.0])
def test_a_clock_that_is_set_makes_neither_a_stall_nor_a_pause(by: float) -> None:
    watch, clock = StallWatch(), 50.0
    for step in range(1, 60):
        clock += 0.5
        wall = 1000.0 + clock + (by if step > 20 else 0.0)
        assert watch.heard(step, wall, 0.5, clock) is None
        assert watch.look(clock + 50) is None
    assert watch.look(clock + 61) is not None


def test_a_pause_is_as_long_as_the_training_measured_it() -> None:
    watch, last = after_steps()
    pause = watch.heard(21, last + 7300, 100.0, last + 100)
    assert pause is not None
    assert "No step for 100 s after step 20" in pause.message


def test_a_journal_that_is_read_late_is_not_a_stall() -> None:
    watch = StallWatch()
    for step in range(1, 21):
        watch.heard(step, 1000.0 + step, 1.0, 9000.0)
    assert watch.look(9059.0) is None
    assert watch.look(9061.0) is not None


@given(st.lists(st.floats(0.001, 500), min_size=1, max_size=60))
def test_reading_a_journal_again_gives_the_same_pauses(waits: list[float]) -> None:
    def events_of_watch() -> list[Finding | None]:
        watch, now = StallWatch(), 0.0
        events = []
        for step, wait in enumerate(waits):
            now += wait
            events.append(heard(watch, step, now))
        return events

    assert events_of_watch() == events_of_watch()
