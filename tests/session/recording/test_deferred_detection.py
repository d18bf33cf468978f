from __future__ import annotations

import math
import os
import threading
import time
from functools import partial

import pytest
from findings import at_step
from waiting import wait_until

from mlflow_stability.session.recording import deferred_detection
from mlflow_stability.session.recording.deferred_detection import MOST, SECONDS, DeferredDetection
from mlflow_stability.vocabulary.measured.observation import StepReading
from mlflow_stability.vocabulary.measured.signal import Signal
from mlflow_stability.vocabulary.result.finding import Finding
from mlflow_stability.vocabulary.result.severity import Severity

LAYOUT = (Signal("loss"),)


@pytest.fixture
def nobody_else_judges(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the machine keeps a test waiting between two steps, the thread does not judge them."""
    monkeypatch.setattr(deferred_detection, "IDLE_SECONDS", 60.0)


def judging_threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "mlflow-stability judge"]


class Judged:
    """The steps that were judged, and by which thread."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.threads: set[str] = set()

    def has(self, steps: list[int]) -> bool:
        return self.steps == steps

    def __call__(self, step: StepReading) -> list[Finding]:
        self.steps.append(step.step)
        self.threads.add(threading.current_thread().name)
        return [at_step(step.step, "loss_spike", Severity.WARNING, "high")] if step.values[0] > 10 else []


def reading(step: int, when: float, loss: float = 1.0) -> StepReading:
    return StepReading(step, LAYOUT, (loss,), time=when)


@pytest.mark.usefixtures("nobody_else_judges")
def test_fast_steps_are_judged_many_at_a_time_in_their_order() -> None:
    judged = Judged()
    late = DeferredDetection(judged)
    for step in range(1, MOST + 1):
        assert late.take(reading(step, 100 + step / 1000)) == []
    assert judged.steps == [1], "the first has waited for long enough, as far as anybody knows"
    late.take(reading(MOST + 1, 100.05))
    assert judged.steps == list(range(1, MOST + 2))
    late.stop()


def test_slow_steps_are_judged_one_by_one() -> None:
    judged = Judged()
    late = DeferredDetection(judged)
    for step in range(1, 6):
        late.take(reading(step, 100 + step * SECONDS))
        assert judged.steps[-1] == step
    late.stop()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_is_judged_at_once_with_all_before_it(value: float) -> None:
    judged = Judged()
    late = DeferredDetection(judged)
    for step in range(1, 5):
        late.take(reading(step, 100 + step / 1000))
    late.take(reading(5, 100.005, value))
    assert judged.steps == [1, 2, 3, 4, 5]
    late.stop()


@pytest.mark.usefixtures("nobody_else_judges")
def test_what_is_found_in_a_step_that_waited_is_given_when_it_is_judged() -> None:
    late = DeferredDetection(Judged())
    late.take(reading(1, 100.0))
    assert late.take(reading(2, 100.001, 50.0)) == []
    assert [each.step for each in late.settle()] == [2]
    late.stop()


def test_a_training_that_stands_still_has_its_last_steps_judged_within_two_seconds() -> None:
    took: list[float] = []
    while min(took, default=2.0) >= 2.0 and len(took) < 10:  # a busy machine may let one wait for longer, but not all
        judged = Judged()
        late = DeferredDetection(judged)
        late.take(reading(1, 100.0))
        late.take(reading(2, 100.001))
        began = time.monotonic()
        wait_until(partial(judged.has, [1, 2]))
        took.append(time.monotonic() - began)
        assert judged.threads == {threading.current_thread().name, "mlflow-stability judge"}
        late.stop()
    assert min(took) < 2.0


def test_no_thread_is_left_when_it_is_stopped() -> None:
    assert not judging_threads()
    late = DeferredDetection(Judged())
    late.take(reading(1, 100.0))
    late.take(reading(2, 100.001))
    assert len(judging_threads()) == 1
    late.stop()
    assert not judging_threads()


def test_no_thread_is_there_while_the_process_forks_and_what_waits_is_judged_by_the_next_one() -> None:
    judged = Judged()
    late = DeferredDetection(judged)
    late.take(reading(1, 100.0))
    late.take(reading(2, 100.001))
    child = os.fork()
    if child == 0:
        os._exit(late._thread is not None)
    assert os.waitpid(child, 0)[1] == 0
    wait_until(lambda: judged.steps == [1, 2])
    late.stop()


def test_a_fork_begins_no_thread_where_nothing_waits() -> None:
    late = DeferredDetection(Judged())
    late.take(reading(1, 100.0))
    late.take(reading(2, 100.001))
    late.settle()
    child = os.fork()
    if child == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert not judging_threads()
    late.stop()


def test_where_no_thread_can_be_started_each_step_is_judged_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_more(_thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", none_more)
    judged = Judged()
    late = DeferredDetection(judged)
    for step in range(1, 4):
        late.take(reading(step, 100 + step / 1000))
    assert judged.steps == [1, 2, 3]
    late.stop()


def test_an_error_while_the_training_stands_still_is_raised_where_it_comes_next() -> None:
    failing = threading.Event()

    def judge(step: StepReading) -> list[Finding]:
        if step.step == 2:
            failing.set()
            raise ValueError("broken")
        return []

    late = DeferredDetection(judge)
    late.take(reading(1, 100.0))
    late.take(reading(2, 100.001))
    assert failing.wait(60)
    late.stop()
    with pytest.raises(ValueError, match="broken"):
        late.settle()
    assert late.settle() == []
