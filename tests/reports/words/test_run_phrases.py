from __future__ import annotations

from dataclasses import replace

import pytest
from findings import changed
from reports.samples import BAD, GOOD, MIXED, SEVERAL, broken, healthy, nan, oscillation, run_of_a_store, spike

from mlflow_stability.reports import run_phrases as wording
from mlflow_stability.reports.report import Report
from mlflow_stability.vocabulary.result import Finding


@pytest.mark.parametrize(
    ("report", "read", "counts"),
    [
        (BAD, "1 file", "1 critical, 1 warning, 1 info"),
        (GOOD, "1 file", "no findings"),
        (SEVERAL, "2 files", "1 critical, 1 warning, 1 info"),
        (MIXED, "1 file and 1 run", "1 critical, 1 warning, 1 info"),
        (Report((run_of_a_store(),) * 2), "2 runs", "no findings"),
    ],
)
def test_what_was_read_and_found_is_counted(report: Report, read: str, counts: str) -> None:
    assert (wording.read(report), wording.counts(report)) == (read, counts)


def test_what_a_run_shows_is_counted_by_how_bad_it_is_and_what_is_not_there_is_left_out() -> None:
    assert wording.counts_of(broken()) == "1 critical, 1 warning, 1 info"
    assert wording.counts_of(replace(broken(), findings=(spike(), spike()))) == "2 warnings"
    assert wording.counts_of(healthy()) == "none"


@pytest.mark.parametrize(
    ("episode", "expected"),
    [
        (spike(), "step 300, in train_loss, recovered"),
        (oscillation(), "steps 420 to 480, worst at 430, in train_loss, experimental"),
        (nan(), "steps 960 to 999, attempt 2, in train_loss (decoder), not recovered"),
        (changed(spike(), metric="", place="blocks.3", recovered=None), "step 300, in blocks.3"),
        (changed(spike(), metric="loss_spike", recovered=None), "step 300"),
        (changed(spike(), metric="loss_spike", place="blocks.3", recovered=None), "step 300, in blocks.3"),
    ],
)
def test_an_episode_is_placed_in_half_a_sentence(episode: Finding, expected: str) -> None:
    assert wording.where(episode) == expected


def test_a_verdict_does_not_say_its_outcome_twice() -> None:
    assert wording.headline(healthy())[0] == "Healthy"
    assert wording.headline(healthy())[1].startswith("train_loss fell")
    assert wording.headline(replace(healthy(), verdict="All is well.")) == ("Healthy", "All is well.")
    assert wording.headline(replace(healthy(), outcome="out_of_memory", verdict="Out of memory: at 3."))[1] == "at 3."


def test_a_run_that_goes_on_has_not_ended() -> None:
    assert wording.ending(replace(broken(), ended="running")) == ("now", "running")
    assert wording.ending(replace(broken(), ended="out_of_memory")) == ("ended", "out of memory")
    assert wording.ending(replace(broken(), ended="")) is None


def test_an_exploded_loss_is_given_as_a_multiple_of_its_start() -> None:
    (reading,) = broken().curves
    assert wording.figures(replace(reading, change=0.35)).startswith("+35% from start to end")
    assert wording.figures(replace(reading, change=4.5e20)).startswith("4.5e+20 times the start at the end")
    assert wording.figures(replace(reading, change=45.0, first=-2.0)).startswith("+4500% from start to end")


def test_a_finding_that_is_its_own_cause_does_not_explain_itself() -> None:
    run = broken()
    assert run.cause is not None
    assert wording.explained(run) == "NaN at step 960"
    assert wording.explained(replace(run, cause=replace(run.cause, name="nan_detected"))) == ""
