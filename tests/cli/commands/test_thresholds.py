from __future__ import annotations

from dataclasses import fields

import pytest

from mlflow_stability.cli.main import run
from mlflow_stability.kinds.catalog import DETECTORS, ON_REQUEST, RULES, name_of


def said_by(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(["thresholds", *arguments]) == 0
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_every_threshold_of_every_detector_and_rule_is_printed_with_its_default(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    text = said_by(capsys)
    for detector in (*DETECTORS, *ON_REQUEST):
        assert name_of(detector) in text or not fields(detector)
        for field in fields(detector):
            default = getattr(detector(), field.name)
            shown = str(default) if isinstance(default, bool) else f"{default:g}"
            assert f"{field.name} = {shown}" in text
    for rule in RULES:
        assert rule.__name__ in text
        assert all(f"{field.name} = " in text for field in fields(rule))


def test_those_of_one_type_are_its_rules_too_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    text = said_by(capsys, "divergence")
    for title in ("divergence:classic", "divergence:start", "FinalRiseRule"):
        assert title in text
    assert "loss_spike" not in text


def test_what_is_decided_by_no_number_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert "No thresholds" in said_by(capsys, "killed")


def test_an_unknown_type_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["thresholds", "los_spike"]) == 2
    assert "loss_spike" in capsys.readouterr().err
