from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from findings import at_step
from waiting import wait_until

from mlflow_stability.alerts.alert import Alert
from mlflow_stability.alerts.callback_thread import MAX_QUEUED, CallbackAlerts
from mlflow_stability.alerts.message import AlertMessage, RunLink
from mlflow_stability.vocabulary.measured.signal import Signal, StepReading
from mlflow_stability.vocabulary.result import Finding, Severity

NAN = at_step(5, "nan_detected", Severity.CRITICAL, "loss is NaN at step 5.", time=5.0)
HANGS = 60.0
"""Seconds; a busy machine takes some to go on with a thread."""
SPIKE = at_step(6, "loss_spike", Severity.WARNING, "loss 9 at step 6.", time=6.0)


def alerts_to(
    function: Callable[[AlertMessage], object], warned: list[str] | None = None, **more: Any
) -> CallbackAlerts:
    result = warned if warned is not None else []
    return CallbackAlerts(
        [Alert(function, **more)], lambda: RunLink("abc"), lambda text, *words: result.append(text % words)
    )


def test_a_function_gets_the_message_on_one_daemon_thread_of_ours() -> None:
    got: list[tuple[AlertMessage, threading.Thread]] = []
    alerts = alerts_to(lambda message: got.append((message, threading.current_thread())))
    alerts.tell(NAN)
    wait_until(lambda: got)
    message, thread = got[0]
    assert (message.kind, message.first_step, message.run) == ("nan_detected", 5, RunLink("abc"))
    assert thread.daemon
    assert thread is not threading.main_thread()
    alerts.close(30)
    assert not thread.is_alive()


def test_the_end_sends_what_is_still_gathered() -> None:
    got: list[AlertMessage] = []
    alerts = alerts_to(got.append)
    alerts.tell(SPIKE)
    alerts.tell(SPIKE)
    alerts.close(30)
    assert [item.count for item in got] == [2]


@pytest.mark.slow
def test_a_function_that_hangs_never_makes_the_training_wait() -> None:
    called, release = threading.Event(), threading.Event()

    def hangs(message: AlertMessage) -> None:
        called.set()
        release.wait(HANGS)

    alerts = alerts_to(hangs, rules=("nan_detected", "loss>5"))
    alerts.tell(NAN)
    (thread,) = (entry for entry in threading.enumerate() if entry.name == "mlflow-stability alerts")
    assert called.wait(30)
    began = time.perf_counter()
    for step in range(3 * MAX_QUEUED):
        alerts.see(StepReading(step, (Signal("loss"),), (9.0,), 0, 0.0))
    assert time.perf_counter() - began < HANGS / 4
    assert len(alerts._queue.items) == MAX_QUEUED
    began = time.perf_counter()
    alerts.close(0.2)
    assert time.perf_counter() - began < HANGS / 4
    release.set()
    thread.join(30)
    assert not thread.is_alive()


def test_what_is_measured_reaches_a_function_without_waking_its_thread() -> None:
    got: list[AlertMessage] = []
    alerts = alerts_to(got.append, rules=("loss>5",))
    for step in range(1, 51):
        alerts.see(StepReading(step, (Signal("loss"),), (float(step),), 0, 0.0))
        assert not alerts._queue.wake.is_set()
    alerts.close(30)
    assert [item.first_step for item in got] == [6]


def test_a_function_that_raises_is_reported_once_and_called_again() -> None:
    warned: list[str] = []
    called: list[str] = []

    def fails(message: AlertMessage) -> None:
        called.append(message.kind)
        raise ValueError("no network")

    alerts = alerts_to(fails, warned)
    alerts.tell(NAN)
    alerts.tell(SPIKE)
    alerts.close(30)
    assert sorted(called) == ["loss_spike", "nan_detected"]
    assert len(warned) == 1
    assert "fails raised ValueError: no network" in warned[0]


def test_two_threads_that_tell_at_once_begin_one_thread() -> None:
    got: list[str] = []
    for _ in range(50):
        alerts = alerts_to(lambda message: got.append(message.kind))
        together = threading.Barrier(2)

        def tell(event: Finding, alerts: CallbackAlerts = alerts, together: threading.Barrier = together) -> None:
            together.wait(10)
            alerts.tell(event)

        telling = [threading.Thread(target=tell, args=(item,)) for item in (NAN, SPIKE)]
        for process in telling:
            process.start()
        for process in telling:
            process.join(10)
        alerts.close(10)
        assert not [thread for thread in threading.enumerate() if thread.name == "mlflow-stability alerts"]
    assert (got.count("nan_detected"), got.count("loss_spike")) == (50, 50)


def test_without_functions_there_is_no_thread() -> None:
    before = threading.active_count()
    alerts = CallbackAlerts([Alert("console")], lambda: None, lambda *_: None)
    alerts.tell(NAN)
    alerts.see(None)
    alerts.close(1)
    assert threading.active_count() == before
