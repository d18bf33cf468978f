from __future__ import annotations

import re

import pytest

from mlflow_stability.cli.main import run
from mlflow_stability.kinds.catalog import DETECTORS, KINDS, ON_REQUEST, documentation, name_of


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.slow
def test_without_a_kind_all_kinds_are_listed_with_a_sentence_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain"]) == 0
    text = capsys.readouterr().out
    for kind in KINDS:
        assert f"  {kind} " in text
    assert documentation("plateau").sentence in words(text)
    assert "also causes\n  overfitting, " in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("kind", [*KINDS, *map(name_of, ON_REQUEST)])
def test_everything_about_a_kind_is_printed(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", kind]) == 0
    text = capsys.readouterr().out
    result = words(text).lower()
    about = documentation(kind)
    for part in (about.sentence, about.sees, about.why, about.try_, about.wrong):
        assert words(part).lower() in result
    for threshold in about.thresholds:
        assert threshold.name in text
    assert max(len(line) for line in text.splitlines() if line.strip() != about.reference) <= 80
    if " " not in about.reference:  # an address is in one line, so that it can be opened
        assert f"  {about.reference}\n" in text


def test_rules_for_whole_curves_are_documented_too(capsys: pytest.CaptureFixture[str]) -> None:
    run(["explain", "divergence"])
    assert "What it sees in whole curves, afterwards" in capsys.readouterr().out
    run(["explain", "killed"])
    assert "whole curves" not in capsys.readouterr().out


def test_a_kind_may_be_typed_with_dashes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "Loss-Spike"]) == 0
    assert capsys.readouterr().out.startswith("loss_spike: ")


@pytest.mark.parametrize(("typed", "meant"), [("los_spike", "loss_spike"), ("nan_detect", "nan_detected")])
def test_the_error_for_an_unknown_kind_suggests_the_nearest(
    typed: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["explain", typed]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "Did you mean" in printed.err
    assert meant in printed.err


def test_the_error_for_a_kind_unlike_any_other_says_how_to_list_them_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "\x1b[2Jxyzzy"]) == 2
    errors = capsys.readouterr().err
    assert "lists them all" in words(errors)
    assert "\x1b" not in errors


@pytest.mark.parametrize("kind", KINDS)
def test_a_name_from_a_program_keeps_its_small_letters(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(["explain", kind])
    text = capsys.readouterr().out
    assert "Http" not in text
    assert not re.search(r"^ *[A-Z][a-z]+_[a-z_]+", text, re.MULTILINE)
    quantities = ", ".join(documentation(kind).quantities)
    assert f"Signals {quantities}" in words(text) or not quantities


def test_a_kind_is_listed_and_suggested_once(capsys: pytest.CaptureFixture[str]) -> None:
    run(["explain"])
    text = capsys.readouterr().out
    for kind in (*KINDS, *map(name_of, ON_REQUEST)):
        assert len(re.findall(rf"^  {kind} ", text, re.MULTILINE)) == 1, kind
    run(["explain", "learning_rate_out_of_rang"])
    assert capsys.readouterr().err.count("learning_rate_out_of_range") == 1


@pytest.mark.parametrize("kind", [detector.kind for detector in (*DETECTORS, *ON_REQUEST) if detector.experimental])
def test_an_experimental_kind_is_not_called_not_measured(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(["explain", kind])
    result = words(capsys.readouterr().out)
    assert "experimental: it changes no verdict and no exit code" in result
    assert "not measured yet" not in result
