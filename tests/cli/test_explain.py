from __future__ import annotations

import pytest

from mlflow_stability.cli.main import run
from mlflow_stability.detectors.catalog import KINDS, ON_REQUEST, documentation, name_of


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def words(text: str) -> str:
    return " ".join(text.split())


def test_without_a_kind_all_are_listed_with_a_sentence_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain"]) == 0
    text = capsys.readouterr().out
    for kind in KINDS:
        assert f"  {kind} " in text
    assert documentation("plateau").sentence in words(text)
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("kind", [*KINDS, *map(name_of, ON_REQUEST)])
def test_everything_about_a_kind_is_said(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", kind]) == 0
    text = capsys.readouterr().out
    said = words(text).lower()
    about = documentation(kind)
    for part in (about.sentence, about.sees, about.why, about.try_, about.wrong):
        assert words(part).lower() in said
    for threshold in about.thresholds:
        assert threshold.name in text
    assert max(map(len, text.splitlines())) <= 80


def test_what_is_seen_in_whole_curves_is_documented_too(capsys: pytest.CaptureFixture[str]) -> None:
    run(["explain", "divergence"])
    assert "What it sees in whole curves, afterwards" in capsys.readouterr().out
    run(["explain", "killed"])
    assert "whole curves" not in capsys.readouterr().out


def test_a_kind_may_be_typed_with_dashes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "Loss-Spike"]) == 0
    assert capsys.readouterr().out.startswith("loss_spike: ")


@pytest.mark.parametrize(("typed", "meant"), [("los_spike", "loss_spike"), ("nan", "nan_detected")])
def test_an_unknown_kind_gives_the_nearest(typed: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", typed]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "Did you mean" in said.err
    assert meant in said.err


def test_what_is_like_nothing_gives_the_way_to_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "\x1b[2Jxyzzy"]) == 2
    said = capsys.readouterr().err
    assert "lists them all" in words(said)
    assert "\x1b" not in said
