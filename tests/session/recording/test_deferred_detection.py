from __future__ import annotations

import math
import os
import threading
import time
from functools import partial

import numpy as np
import pytest
from findings import at_step
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import wait_until

from mlflow_stability.kinds.panel import Panel
from mlflow_stability.session.recording import recording as deferred_detection
from mlflow_stability.session.recording.recording import (
    GROUP,
    MAX_WAITING_STEPS,
    SECONDS,
    DeferredDetection,
    GroupedDetection,
)
from mlflow_stability.vocabulary.facts import FollowedFacts
from mlflow_stability.vocabulary.measured.signal import Signal, StepReading
from mlflow_stability.vocabulary.result import Finding, Severity

LAYOUT = (Signal("loss"),)
SUDDEN = {"nan_detected", "inf_detected", "loss_spike", "gradient_explosion"}


@pytest.fixture
def nobody_else_judges(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the machine keeps a test waiting between two steps, the thread does not judge them."""
    monkeypatch.setattr(deferred_detection, "IDLE_SECONDS", 60.0)


def judging_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "mlflow-stability judge"]


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
    for step in range(1, MAX_WAITING_STEPS + 1):
        assert late.take(reading(step, 100 + step / 1000)) == []
    assert judged.steps == [1], "the first has waited for long enough, as far as anybody knows"
    late.take(reading(MAX_WAITING_STEPS + 1, 100.05))
    assert judged.steps == list(range(1, MAX_WAITING_STEPS + 2))
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
    assert [point.step for point in late.settle()] == [2]
    late.stop()


def test_the_last_steps_of_a_paused_training_are_judged_within_two_seconds() -> None:
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


def test_an_error_while_the_training_is_paused_is_raised_at_its_next_call() -> None:
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


TRAINED = (Signal("loss"), Signal("micro_batches"), Signal("grad_norm"), Signal("learning_rate"))


@st.composite
def trainings(draw: st.DrawFn) -> list[StepReading]:
    """A loss that falls with noise, and up to four stretches in it that are ill, odd or of another size."""
    steps, width = draw(st.integers(60, 400)), draw(st.sampled_from([0.01, 0.1, 0.5]))
    random = np.random.default_rng(draw(st.integers(0, 10)))
    losses = (1 + 3 * np.exp(-np.arange(steps) / 100)) * np.exp(width * random.standard_normal(steps))
    norms, counts = np.exp(0.2 * random.standard_normal(steps)), np.full(steps, 4.0)
    for _ in range(draw(st.integers(0, 4))):
        first, length = draw(st.integers(0, steps - 1)), draw(st.sampled_from([1, 3, 20]))
        ill = slice(first, first + length)
        what = draw(st.sampled_from([*"lgm", "nan"]))
        if what == "m":
            counts[ill], losses[ill] = 1.0, losses[ill] * draw(st.sampled_from([0.25, 1.0, 5.0]))
        elif what == "nan":
            losses[ill] = math.nan
        else:
            (losses if what == "l" else norms)[ill] *= draw(st.sampled_from([0.1, 2.0, 10.0, 1e4]))
    rate = 1e-3 * np.where(np.arange(steps) < draw(st.integers(0, steps)), 1.0, draw(st.sampled_from([1.0, 10.0])))
    rows = zip(losses, counts, norms, rate, strict=True)
    return [StepReading(number, TRAINED, tuple(map(float, row))) for number, row in enumerate(rows, 1)]


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(trainings())
def test_judged_in_groups_a_training_has_the_same_findings_and_sudden_ones_no_step_later(
    training: list[StepReading],
) -> None:
    at_once, in_groups = Panel(), Panel()
    grouped = GroupedDetection(in_groups.judge, in_groups.is_usual)
    wanted = [(step.step, finding) for step in training for finding in at_once.judge(step)]
    given_at = [(step.step, finding) for step in training for finding in grouped.take(step)]
    given_at += [(len(training), finding) for finding in grouped.settle()]
    assert [repr(finding) for _, finding in given_at] == [repr(finding) for _, finding in wanted]
    for (judged_at, finding), (found_at, _) in zip(given_at, wanted, strict=True):
        assert judged_at - found_at < GROUP
        followed = finding.facts_as(FollowedFacts)
        # What the loss since then has made a warning was found before: it is no sudden rise.
        if finding.kind in SUDDEN and (followed is None or followed.found_first is None):
            assert judged_at == found_at, finding.message


def test_most_steps_of_a_quiet_training_are_judged_in_groups() -> None:
    panel = Panel()
    judged: list[int] = []
    seen_at: list[int] = []

    def judge(step: StepReading) -> list[Finding]:
        judged.append(step.step)
        return panel.judge(step)

    grouped = GroupedDetection(judge, panel.is_usual)
    noise = np.random.default_rng(0).standard_normal((2, 1000))
    for number in range(1000):
        values = (math.exp(0.1 * noise[0, number]), 4.0, math.exp(0.1 * noise[1, number]), 1e-3)
        before = len(judged)
        grouped.take(StepReading(number + 1, TRAINED, values))
        if len(judged) > before:
            seen_at.append(number + 1)
    grouped.stop()
    assert len(seen_at) < 300
    assert judged == list(range(1, judged[-1] + 1))
