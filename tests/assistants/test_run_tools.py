from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from analysis.logs import diverging, ending_in_nan, falling, write_log
from analysis.stored_runs import store_run
from architecture.repository import ROOT
from hypothesis import given
from hypothesis import strategies as st

from mlflow_stability.assistants.run_tools import RunTools, thinned
from mlflow_stability.errors import RunNotFoundError, SettingsError

FIXTURES = ROOT / "mlruns_fixtures" / "0"
SMALL = 10_000


@pytest.fixture
def tools() -> RunTools:
    return RunTools()


@given(st.lists(st.floats(width=32), min_size=1, max_size=3000), st.integers(2, 500))
def test_thinning_keeps_every_extreme_and_where_values_are_not_finite(values: list[float], most: int) -> None:
    expected = np.array(values)
    kept = thinned(expected, most)
    assert len(kept) <= max(most, 5)
    assert kept == sorted(set(kept))
    assert {0, len(values) - 1} <= set(kept)
    finite = expected[np.isfinite(expected)]
    if len(finite):
        assert {finite.min(), finite.max()} <= set(expected[kept])
    assert (len(finite) < len(expected)) == (not np.isfinite(expected[kept]).all())


@pytest.mark.parametrize("run", sorted(item.name for item in FIXTURES.iterdir() if item.is_dir()))
def test_every_answer_about_a_recorded_run_is_small(run: str, tools: RunTools) -> None:
    path = str(FIXTURES / run)
    answers = (
        tools.diagnose_run(path),
        tools.list_findings(path, severity="info"),
        tools.load_series(path),
        tools.load_series(path, "loss", max_points=100),
        tools.run_checklist(path),
    )
    for answer in answers:
        assert len(json.dumps(answer, allow_nan=False)) < SMALL


def test_findings_are_listed_page_by_page(tools: RunTools) -> None:
    path = str(FIXTURES / "nan_bad_batch")
    every = tools.list_findings(path, severity="info")
    assert every["total"] == len(every["findings"]) == 4
    second = tools.list_findings(path, severity="info", limit=1, offset=1)
    assert second["findings"] == every["findings"][1:2]
    only = tools.list_findings(path, "nan_detected", "critical")
    assert [finding["issue_type"] for finding in only["findings"]] == ["nan_detected"]
    assert only["findings"][0]["metrics"]
    with pytest.raises(SettingsError, match="severity must be info, warning or critical; got 'bad'"):
        tools.list_findings(path, severity="bad")


def test_a_stretch_of_a_series_is_looked_at_closer(tools: RunTools) -> None:
    path = str(FIXTURES / "loss_spike")
    whole = tools.load_series(path, "loss", max_points=50)
    assert (whole["points"], whole["thinned_to"] <= 50) == (600, True)
    assert max(value for _, value in whole["series"]) == pytest.approx(7.467, abs=1e-3)
    closer = tools.load_series(path, "loss", first_step=395, last_step=405)
    assert [step for step, _ in closer["series"]] == list(range(395, 406))
    with pytest.raises(SettingsError, match=r"The run has no metric 'los'\. Did you mean 'loss'"):
        tools.load_series(path, "los")


@pytest.mark.slow
def test_runs_are_compared_by_name_and_as_the_last(sqlite_uri: str) -> None:
    tools = RunTools(sqlite_uri)
    lost, well = store_run(sqlite_uri, diverging(), name="lost", lr=0.1), store_run(sqlite_uri, falling(), name="well")
    for result in (tools.compare_runs(["lost", "well"], baseline="well"), tools.compare_runs(last=2, baseline="well")):
        assert result["summary"] == "2 runs: 1 lost, 1 stable."
        assert [row["source"] for row in result["runs_most_stable_first"]] == [well, lost]
        assert result["baseline"]["passed"] is False
        assert result["differences"]["lr"] == [None, "0.1"]
    assert tools.diagnose_run()["source"] == well


@pytest.mark.slow
def test_a_finding_or_a_cause_is_explained(tools: RunTools) -> None:
    assert tools.explain("loss-spike").startswith("## loss_spike\n")
    assert tools.explain("bad_batch").startswith("## bad_batch\n")
    assert "![" not in tools.explain("loss_spike")
    with pytest.raises(SettingsError, match=r"No such finding or cause: 'loss_spik'\. Did you mean 'loss_spike'"):
        tools.explain("loss_spik")


def test_what_cannot_be_answered_says_what_to_do(tools: RunTools) -> None:
    with pytest.raises(RunNotFoundError, match="There is no run yet"):
        tools.diagnose_run()
    with pytest.raises(SettingsError, match="No runs to compare"):
        tools.compare_runs()


def test_a_run_is_read_once_for_several_questions(tools: RunTools, tmp_path: Path) -> None:
    log = Path(write_log(tmp_path / "log.jsonl", ending_in_nan()))
    before = tools.diagnose_run(str(log))
    log.unlink()
    assert tools.diagnose_run(str(log)) == before
    assert tools.list_findings(str(log))["total"] > 0
