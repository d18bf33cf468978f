from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_stability.alerts.alert import (
    OUTLETS_VARIABLE,
    Alert,
    OutletSettings,
    alerts_from_environment,
    outlet_settings,
    pop_from_environment,
    read_alerts,
)
from mlflow_stability.alerts.message import AlertMessage, RunLink
from mlflow_stability.errors import SettingsError
from mlflow_stability.vocabulary.result import Severity

SECRET = "T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ"
URL = f"slack://{SECRET}"


def call(message: AlertMessage) -> None:
    """A function of the user's."""


def test_a_url_a_function_or_several_are_alerts_with_defaults() -> None:
    assert read_alerts(URL) == (Alert(URL),)
    assert [item.service for item in read_alerts([URL, "console", call])] == ["slack", "console", "call"]
    assert [item.in_training for item in read_alerts([URL, call])] == [False, True]
    alert = Alert(URL, severity="critical", rules="loss_spike")  # type: ignore[arg-type]
    assert (alert.severity, alert.rules) == (Severity.CRITICAL, ("loss_spike",))


def test_addresses_come_from_the_environment_where_the_script_names_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_alerts(()) == ()
    monkeypatch.setenv("MLFLOW_STABILITY_ALERTS", f"{URL}, mailto://me:pw@example.com?to=a@b.c,d@e.f console")
    assert [alert.service for alert in alerts_from_environment()] == ["slack", "mailto", "console"]
    assert alerts_from_environment()[1].to == "mailto://me:pw@example.com?to=a@b.c,d@e.f"
    assert [alert.service for alert in read_alerts(())] == ["slack", "mailto", "console"]
    assert [alert.service for alert in read_alerts("console")] == ["console"]
    monkeypatch.setenv("HOOK", URL)
    assert read_alerts("env:HOOK")[0].to == URL


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        ("slack", "alerts: to must be a URL such as"),
        (SECRET, "got another text"),
        ("env:NOT_SET", "NOT_SET is not set"),
        (3, "alerts must be URLs"),
        ([3], "alerts: to must be a URL"),
        (None, "alerts must be URLs"),
    ],
)
def test_what_is_no_address_is_refused_and_not_shown(given_: Any, expected: str) -> None:
    with pytest.raises(SettingsError) as refused:
        read_alerts(given_)
    assert expected in str(refused.value)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("loss_spik", "Did you mean 'loss_spike'?"),
        ("grad_nrm>10", "Did you mean 'grad_norm'?"),
        ("loss>nan", "finite number"),
        ("loss", "event type"),
    ],
)
def test_a_rule_that_could_never_be_met_is_refused(rule: str, expected: str) -> None:
    with pytest.raises(SettingsError, match=expected):
        Alert(URL, rules=(rule,))


def test_conditions_on_validation_losses_and_layers_are_rules() -> None:
    assert Alert(URL, rules=("val_loss_wiki>3", "grad_norm@blocks.0>10", "mfu<0.2")).rules


def test_an_address_is_in_no_representation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK", URL)
    settings = outlet_settings(read_alerts([URL, "env:HOOK"]), "")
    assert SECRET not in repr(read_alerts([URL, "env:HOOK"]))
    assert SECRET not in repr(settings)
    assert [channel.key for channel in settings.channels] == ["slack", "slack_2"]


def test_apprise_is_asked_for_kindly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    with pytest.raises(SettingsError, match=r"pip install 'mlflow-stability\[alerts\]'"):
        read_alerts(URL)
    assert read_alerts(["console", call])


def test_settings_reach_the_courier_by_its_environment_and_are_not_left_there(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = outlet_settings([Alert(URL, Severity.CRITICAL, ("divergence",), 5.0), Alert(call)], "/dev/tty")
    assert len(sent.channels) == 1
    monkeypatch.setenv(OUTLETS_VARIABLE, sent.text())
    assert pop_from_environment() == sent
    assert pop_from_environment() == OutletSettings()


@given(st.text(), st.text(), st.lists(st.text(max_size=300), max_size=4))
def test_a_text_keeps_the_link_however_long_the_rest_is(message: str, name: str, remedies: list[str]) -> None:
    run = RunLink("abc", name[:40], "http://tracking/#/runs/abc")
    result = AlertMessage("loss_spike", Severity.WARNING, 3, 1, 9, message * 50, tuple(remedies), 0.0, {}, run)
    assert result.text().endswith(run.text())
    assert len(result.text(1e9)) <= 1500
