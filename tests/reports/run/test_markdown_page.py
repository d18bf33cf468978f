from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from markdown_it import MarkdownIt
from reports.hostile import TEXTS, hostile_reports
from reports.samples import BAD, SEVERAL

from mlflow_stability.reports.escape import markdown, plain
from mlflow_stability.reports.formats.markdown import run as render
from mlflow_stability.reports.report import Report

STRUCTURE = re.compile(r"^(# Training diagnosis|## .*|### [A-Z].*|\|.*\||- .*|\*\*.*|[0-9].*|)$")


def cells(line: str) -> int:
    return len(re.findall(r"(?<!\\)\|", re.sub(r"\\\\", "", line))) - 1


def test_a_run_is_reported_from_its_verdict_to_the_advice() -> None:
    text = render(BAD)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    assert titles == [
        "Training diagnosis",
        "bad.jsonl",
        "Likely cause",
        "What to do",
        "Findings",
        "Ruled out",
        "Curves",
        "Not checked",
        "Notes",
    ]
    assert "**Broken:** train_loss became NaN at step 960" in text
    assert "| CRITICAL | nan_detected | steps 960 to 999, attempt 2, in train_loss (decoder), not recovered |" in text


def test_several_runs_have_a_table_and_what_could_not_be_read_is_named() -> None:
    text = render(SEVERAL)
    assert "| good.jsonl (logs/good.jsonl) | healthy |  | 999 | none |" in text
    assert "- gone.csv: There is no gone.csv." in text


@settings(max_examples=50)
@given(hostile_reports())
def test_no_name_becomes_structure(report: Report) -> None:
    lines = render(report).splitlines()
    tables = [line for line in lines if line.startswith("|")]
    assert {cells(line) for line in tables} <= {4, 5, 6}
    assert sum(line.startswith("## ") for line in lines) == len(report.diagnoses) + bool(report.failures)
    assert sum(line.startswith("# ") for line in lines) == 1
    for line in lines:
        assert STRUCTURE.match(line), line
        assert not re.search(r"(?<!\\)<", re.sub(r"\\\\", "", line)), line


@pytest.mark.parametrize("around", ["- {}", "## {}", "| a |\n| --- |\n| {} |", "**b:** {}"])
@settings(max_examples=80)
@given(text=TEXTS)
def test_a_reader_of_markdown_sees_the_very_text(around: str, text: str) -> None:
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    tokens = parser.parse(around.format(markdown(f"x{text}" if not plain(text).strip() else text)))
    parts = [token for token in tokens if token.type == "inline"][-1].children or []
    assert {part.type for part in parts} <= {"text", "text_special", "strong_open", "strong_close"}
    seen = "".join(part.content for part in parts).removeprefix("b:").strip()
    assert seen == (plain(text).strip() or "x")
