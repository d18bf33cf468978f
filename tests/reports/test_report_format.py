from __future__ import annotations

from pathlib import Path

import pytest
from reports.samples import BAD

from mlflow_stability.reports.report_format import ENDINGS, FORMATS, form_of, render


@pytest.mark.parametrize(
    ("form", "begins"),
    [
        ("rich", "bad.jsonl ─"),
        ("json", '{\n  "schema_version": 2'),
        ("csv", "source,name,"),
        ("markdown", "# Training diagnosis"),
        ("html", "<!doctype html>"),
    ],
)
def test_every_form_is_written_under_its_name(form: str, begins: str) -> None:
    text = render(BAD, form)
    assert text.startswith(begins)
    assert text.endswith("\n")


def test_the_ending_of_a_file_says_which_form_goes_in() -> None:
    assert form_of(Path("out/Report.HTML")) == "html"
    assert form_of(Path("report.txt")) == "rich"
    assert form_of(Path("report.pdf")) is None
    assert set(ENDINGS.values()) == set(FORMATS)
