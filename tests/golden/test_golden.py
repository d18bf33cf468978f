"""What the package says today is what the golden files say.

A difference is a change of what users read. Where it is meant: ``python tests/golden/remake.py``.
"""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from golden import golden_file
from golden.cases import GROUPS, run_names
from golden.difference_table import Difference, differences, table

MAX_BYTES = 2_000_000


def fail_if_different(group: str, before: dict[str, Any], after: dict[str, Any]) -> None:
    """Fail with the table of differences."""
    if result := differences(before, after):
        how = f"If this is meant, run: python tests/golden/remake.py {group}"
        pytest.fail(f"{group}.json differs from what the package says now.\n{table(result)}\n{how}", pytrace=False)


@pytest.mark.parametrize("group", GROUPS)
def test_output_is_that_of_the_golden_file(group: str) -> None:
    fail_if_different(group, golden_file.read(group), GROUPS[group]())


@pytest.mark.parametrize("group", GROUPS)
def test_a_golden_file_has_cases_and_the_layout_that_remake_writes(group: str) -> None:
    shapes = golden_file.read(group)
    assert shapes
    assert golden_file.file_of(group).read_text(encoding="utf-8") == golden_file.text_of(shapes)


@pytest.mark.parametrize("group", ["recorded_runs", "runs_judged_again"])
def test_every_recorded_run_is_a_case(group: str) -> None:
    assert sorted(golden_file.read(group)) == run_names()


def test_golden_files_are_small_and_name_no_folder_of_a_machine() -> None:
    assert sum(file.stat().st_size for file in golden_file.FOLDER.iterdir()) < MAX_BYTES
    for file in golden_file.FOLDER.iterdir():
        text = file.read_text(encoding="utf-8")
        for folder in ("/tmp", "/home", "/work", str(Path.home()), str(Path(__file__).parents[2])):
            assert folder not in text, file


def test_a_changed_output_fails_with_a_table() -> None:
    before = golden_file.read("recorded_runs")
    after = deepcopy(before)
    spike = after["loss_spike"]["findings"][0]
    assert spike["kind"] == "loss_spike"
    spike["severity"], spike["peak_step"] = "INFO", spike["peak_step"] + 1
    after["healthy"]["verdict"] += " Really."
    fail_if_different("recorded_runs", before, before)
    with pytest.raises(pytest.fail.Exception) as failure:
        fail_if_different("recorded_runs", before, after)
    rows = [[cell.strip() for cell in line.split("|")] for line in str(failure.value).splitlines()]
    assert ["case", "field", "before", "after"] in rows
    assert ["loss_spike", "findings[loss_spike@400].severity", "WARNING", "INFO"] in rows
    assert ["loss_spike", "findings[loss_spike@400].peak_step", "400", "401"] in rows
    assert ["healthy", "verdict", "… 600 steps; no warnings.", "… 600 steps; no warnings. Really."] in rows
    assert ["3 fields of 2 cases differ"] in rows
    assert "python tests/golden/remake.py recorded_runs" in str(failure.value)


def finding(kind: str, first_step: int, message: str = "It happened.") -> dict[str, Any]:
    return {"kind": kind, "severity": "WARNING", "first_step": first_step, "message": message}


SPIKE, PLATEAU, OTHER_SPIKE = finding("loss_spike", 7), finding("plateau", 9), finding("loss_spike", 7, "Again.")


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"a": 1.0}, {"a": 1.000001}, []),
        ({"a": 1.0}, {"a": 1.0001}, [("a", 1.0, 1.0001)]),
        ({"a": 2}, {"a": 3}, [("a", 2, 3)]),
        ({"a": 1}, {"a": True}, [("a", 1, True)]),
        ({"a": None}, {"a": "nan"}, [("a", None, "nan")]),
        ({"a": {"b": 1}}, {"a": {"b": 2}}, [("a.b", 1, 2)]),
        ({"text": ["x", "y"]}, {"text": ["x", "z"]}, [("text[2]", "y", "z")]),
        ({"f": [SPIKE]}, {"f": [OTHER_SPIKE]}, [("f[loss_spike@7].message", "It happened.", "Again.")]),
        ({"f": [PLATEAU, PLATEAU]}, {"f": [PLATEAU, {**PLATEAU, "x": 1}]}, [("f[plateau@9 #2].x", "(none)", 1)]),
        ({"f": [SPIKE, PLATEAU]}, {"f": [PLATEAU]}, [("f[loss_spike@7]", SPIKE, "(none)")]),
        ({"f": [PLATEAU]}, {"f": [SPIKE, PLATEAU]}, [("f[loss_spike@7]", "(none)", SPIKE)]),
        (
            {"f": [SPIKE, PLATEAU]},
            {"f": [PLATEAU, SPIKE]},
            [("f[plateau@9]", "(none)", PLATEAU), ("f[plateau@9]", PLATEAU, "(none)")],
        ),
    ],
)
def test_fields_that_differ_are_found(
    before: dict[str, Any], after: dict[str, Any], expected: list[tuple[str, Any, Any]]
) -> None:
    result = differences({"case": before}, {"case": after})
    assert [(first.field, shown(first.before), shown(first.after)) for first in result] == expected


def shown(value: Any) -> Any:
    """The value; in the place of one that is absent, what the table shows."""
    return value if isinstance(value, dict | str | int | float | None) else "(none)"


def test_a_case_that_is_missing_or_new_is_a_difference() -> None:
    rows = table(differences({"old": {"verdict": "Fine."}}, {"new": {"verdict": "Bad."}})).splitlines()
    assert [row.split() for row in rows[2:4]] == [
        ["old", "|", "(case)", "|", "Fine.", "|", "(none)"],
        ["new", "|", "(case)", "|", "(none)", "|", "Bad."],
    ]


def test_a_difference_that_cases_share_is_one_row_and_long_tables_are_cut() -> None:
    shared = [Difference(case, "verdict", "Fine.", "Good.") for case in ("a", "b", "c")]
    assert "a (+2 more) | verdict | Fine.  | Good." in table(shared)
    steps = [Difference("a", f"text[{step}]", f"Look at step {step}.", f"Inspect step {step}.") for step in (7, 30)]
    assert "a (+1 more) | text[7] | Look at step 7. | Inspect step 7." in table(steps)
    moved = [Difference("a", "findings[0].first_step", old, new) for old, new in ((7, 8), (7, 9))]
    assert len(table(moved).splitlines()) == 5
    many = [Difference("a", f"field {number}", 1, 2) for number in range(9)]
    assert table(many, most=4).splitlines()[-2:] == ["... and 5 more rows", "9 fields of 1 case differ"]
    assert table([]) == ""


def test_a_remade_file_is_read_back(tmp_path: Path) -> None:
    shapes = {"case": {"value": 0.1, "text": ["σ"], "nothing": None}}
    golden_file.write("group", shapes, tmp_path)
    assert golden_file.read("group", tmp_path) == shapes
    assert json.loads((tmp_path / "group.json").read_text(encoding="utf-8")) == shapes
