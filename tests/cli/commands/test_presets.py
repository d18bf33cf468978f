from __future__ import annotations

import pytest

from mlflow_stability.cli.main import run
from mlflow_stability.manual.pages import preset_rows, presets_page
from mlflow_stability.vocabulary.presets import PRESETS


def test_the_table_has_every_option_of_every_preset_in_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["presets"]) == 0
    printed = capsys.readouterr().out
    lines = [line.split() for line in printed.splitlines()]
    assert all(len(line) <= 80 for line in printed.splitlines())
    for _, name, values in preset_rows():
        if name.islower():
            assert [name, *values] in lines
    assert ["default", *PRESETS] in lines


def test_the_page_of_the_manual_has_the_same_rows() -> None:
    rows = [
        line.replace("`", "").strip("| ").split(" | ") for line in presets_page().splitlines() if line.startswith("| ")
    ]
    assert all([name, *values] in rows for _, name, values in preset_rows())
