from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import jsonschema
import pytest
from reports.samples import broken, spike

from mlflow_stability.reports.formats import csv as csv_form
from mlflow_stability.reports.formats import json as json_form
from mlflow_stability.reports.report import Report
from mlflow_stability.reports.report_format import render

BATCH = "A bad batch at step 300: the loss jumped and came back."
DECIDING = "The loss was infinite one step before it was NaN."


@pytest.mark.parametrize("form", ["rich", "markdown", "html"])
def test_each_finding_has_its_cause_and_the_deciding_cause_has_a_section(form: str) -> None:
    text = " ".join(render(Report((broken(),)), form).replace("\\", "").replace("<bdi>", "").split())
    assert text.count(BATCH) == 1
    assert text.count(DECIDING) == 1
    assert text.index(DECIDING) < text.index("What to do") < text.index(BATCH)
    assert "Explains the NaN at step 960." in text
    for result in (
        "Likely cause",
        "Ruled out",
        "learning rate: constant at 3e-4",
        "Not checked",
        "gradient norm: not logged",
    ):
        assert result in text


@pytest.mark.parametrize("form", ["rich", "markdown", "html"])
def test_the_cause_of_the_run_is_not_repeated_at_its_finding(form: str) -> None:
    run = replace(broken(), findings=(spike(),), cause=spike().cause)
    text = " ".join(render(Report((run,)), form).replace("\\", "").replace("<bdi>", "").split())
    assert text.count(BATCH) == 1
    assert "Explains" not in text  # there is one finding


def test_json_has_the_cause_of_each_issue_and_of_the_run() -> None:
    document = json_form.document(Report((broken(),)))
    jsonschema.validate(document, json_form.schema("diagnosis"))
    (run,) = json.loads(json.dumps(document))["runs"]
    assert [finding["cause"] and finding["cause"]["name"] for finding in run["findings"]] == ["bad_batch", None, None]
    assert (run["cause"]["explains"], run["cause"]["step"]) == ("nan_detected", 960)
    assert run["cause"]["not_checked"] == ["gradient norm: not logged"]


def test_the_table_has_the_cause_of_each_issue() -> None:
    rows = list(csv.DictReader(io.StringIO(csv_form.run(Report((broken(),))))))
    assert [(row["cause"], row["cause_statement"]) for row in rows] == [("bad_batch", BATCH), ("", ""), ("", "")]
