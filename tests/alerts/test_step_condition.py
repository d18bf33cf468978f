from __future__ import annotations

from typing import Any

import pytest
from findings import at_step
from waiting import wait_until

from mlflow_stability.alerts.alert import Alert, outlet_settings
from mlflow_stability.alerts.callback_thread import CallbackAlerts, StepCondition
from mlflow_stability.alerts.message import AlertMessage, RunLink
from mlflow_stability.alerts.router import AlertRouter
from mlflow_stability.errors import SettingsError
from mlflow_stability.vocabulary.measured.signal import Signal, StepReading
from mlflow_stability.vocabulary.result import Severity

WARNED: list[str] = []


def reading(step: int, **values: float) -> StepReading:
    return StepReading(step, tuple(map(Signal, values)), tuple(values.values()), 0, float(step))


def low_mfu(signals: Any) -> bool:
    return bool(signals["mfu"] < 0.3)


def condition(when: Any, message: str = "", warned: list[str] | None = None) -> StepCondition:
    result = WARNED if warned is None else warned
    return StepCondition(when, Severity.WARNING, message, lambda text, *words: result.append(text % words))


def test_a_function_of_the_signals_makes_an_event_with_its_message_and_severity() -> None:
    met = condition(low_mfu, "MFU is {mfu:.2f}")
    assert met.met(reading(1, loss=2.0)) is None, "not measured yet"
    assert met.met(reading(10, mfu=0.4)) is None
    event = met.met(reading(20, mfu=0.213))
    assert event is not None
    assert (event.kind, event.step, event.severity) == ("low_mfu", 20, Severity.WARNING)
    assert event.message == "MFU is 0.21"


def test_signals_that_are_measured_at_different_steps_are_seen_together() -> None:
    met = condition(lambda signals: signals["mfu"] < 0.3 and signals["loss"] > 5)
    assert met.met(reading(10, mfu=0.2)) is None
    event = met.met(reading(11, loss=6.0))
    assert event is not None
    assert (event.kind, event.message) == ("condition", "condition is met at step 11.")


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        (lambda signals: signals["mfuu"] > 1, "there is no signal 'mfuu'. Did you mean 'mfu'?"),
        (lambda signals: 1 / 0, "it raised ZeroDivisionError: division by zero."),
    ],
)
def test_a_function_that_does_not_work_is_reported_once(when: Any, expected: str) -> None:
    warned: list[str] = []
    met = condition(when, warned=warned)
    assert [met.met(reading(step, loss=1.0)) for step in (1, 2, 3)] == [None] * 3
    assert len(warned) == 1
    assert expected in warned[0]


def test_with_a_condition_no_events_are_sent_but_those_of_rules() -> None:
    got: list[AlertMessage] = []
    alerts = CallbackAlerts(
        [Alert(got.append, when=low_mfu, message="MFU is {mfu:.2f}", severity=Severity.CRITICAL)],
        lambda: RunLink("abc"),
        lambda *_: None,
    )
    assert alerts.needs_readings
    alerts.tell(at_step(5, "nan_detected", Severity.CRITICAL, "loss is NaN at step 5.", time=5.0))
    alerts.see(reading(20, mfu=0.2))
    wait_until(lambda: got)
    alerts.close(30)
    assert [(finding.kind, finding.severity, finding.message) for finding in got] == [
        ("low_mfu", Severity.CRITICAL, "MFU is 0.20")
    ]


def test_an_alert_with_a_condition_is_sent_by_the_training_itself(capsys: pytest.CaptureFixture[str]) -> None:
    alert, result = Alert("console", when=low_mfu), list[str]()
    assert outlet_settings([alert, Alert("console")], "").channels[0].key == "console"
    assert len(outlet_settings([alert, Alert("console")], "").channels) == 1
    alerts = CallbackAlerts([alert], lambda: None, lambda text, *words: result.append(text % words))
    alerts.see(reading(20, mfu=0.2))
    alerts.close(30)
    assert len(result) == 1
    assert "WARNING: low mfu at step 20" in result[0] or "WARNING: low MFU at step 20" in result[0]


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"when": 3}, "when must be a function of the newest value of each signal"),
        ({"message": "MFU is {mfu}"}, "message= is for alerts with when="),
        ({"when": low_mfu, "message": "{mfuu}"}, "there is no signal 'mfuu'"),
        ({"rules": "rollback", "severity": "critical"}, "no rollback is CRITICAL, so the rule 'rollback' would never"),
        ({"severity": "error"}, "severity must be Severity.INFO, Severity.WARNING or Severity.CRITICAL; got 'error'"),
    ],
)
def test_what_cannot_be_meant_is_refused(more: dict[str, Any], expected: str) -> None:
    with pytest.raises(SettingsError) as refused:
        Alert("console", **more)
    assert expected in str(refused.value)


def test_a_rule_for_a_type_that_is_always_info_fires_when_it_is_named() -> None:
    router = AlertRouter(("rollback", "loss_spike"), Severity.WARNING)
    assert router.take(at_step(5, "rollback", Severity.INFO, "Rolled back."), 1.0)
    assert not router.take(at_step(5, "loss_spike", Severity.INFO, "loss 9."), 1.0)
    assert router.take(at_step(5, "loss_spike", Severity.WARNING, "loss 9."), 1.0)
    assert not AlertRouter((), Severity.WARNING).take(at_step(5, "rollback", Severity.INFO, "Rolled back."), 1.0)
