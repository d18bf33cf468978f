from __future__ import annotations

import re
from functools import cache

import pytest
from manual.draw_findings import FOLDER, examples

from mlflow_stability.kinds.catalog import KINDS, documentation
from mlflow_stability.manual.pages import false_alarms_of, findings_page, measured
from mlflow_stability.vocabulary.result import Severity


@cache
def sections() -> dict[str, str]:
    return dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", findings_page(), re.MULTILINE | re.DOTALL))


def test_every_finding_that_can_be_a_false_alarm_says_how_often_it_was_one() -> None:
    for kind in KINDS:
        about = documentation(kind)
        judged = about.severities[-1] >= Severity.WARNING and bool(about.quantities)
        assert ("**Measured false alarms:**" in sections()[kind]) == judged, kind


def test_what_was_measured_names_findings_that_there_are_and_no_more_runs_than_were_judged() -> None:
    for item in measured():
        assert set(item.flagged) <= set(KINDS)
        assert all(0 < count <= item.runs for count in item.flagged.values())
        assert item.runs >= 100


def test_what_loss_curves_cannot_show_has_no_figure_from_them() -> None:
    of_loss, of_layers = false_alarms_of("loss_spike", ["loss"]), false_alarms_of("dead_units", ["activation_dead"])
    alone = [item.what for item in measured() if item.loss_alone]
    assert alone
    assert all(what in of_loss and what not in of_layers for what in alone)
    assert all(item.what in of_layers for item in measured() if not item.loss_alone)


def test_a_kind_that_was_not_looked_for_has_no_figure() -> None:
    assert false_alarms_of("unlucky_loss", ["loss"]) == ""


@pytest.mark.slow
def test_each_example_picture_shows_a_finding_that_a_recorded_run_has() -> None:
    assert {path.stem for path in FOLDER.glob("*.png")} == set(examples())


def test_a_finding_with_an_example_shows_it() -> None:
    shown = {kind for kind, text in sections().items() if f"](findings/{kind}.png)" in text}
    assert shown == {path.stem for path in FOLDER.glob("*.png")}
