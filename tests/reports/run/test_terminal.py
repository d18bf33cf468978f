from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from findings import changed
from hypothesis import given, settings
from reports.hostile import hostile_reports
from reports.samples import (
    ALL,
    BAD,
    GOOD,
    MIXED,
    NOTHING,
    SEVERAL,
    broken,
    healthy,
    nan,
    oscillation,
    run_of_a_store,
    spike,
)
from rich.console import Console

from mlflow_stability.reports.report import Report
from mlflow_stability.reports.run_terminal import render, show, show_gist
from mlflow_stability.reports.terminal_kit import TerminalWriter, written
from mlflow_stability.vocabulary.result import Sketch

OUR_OWN_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def shown(report: Report, *, width: int = 80, colour: bool = False, verbose: bool = False, unicode: bool = True) -> str:
    text = io.StringIO()
    console = Console(file=text, width=width, highlight=False, force_terminal=colour)
    show(TerminalWriter(console, unicode=unicode, verbose=verbose), report)
    return text.getvalue()


def test_a_broken_run_is_reported_from_its_verdict_to_the_advice() -> None:
    text = shown(BAD)
    for part in (
        "Broken: train_loss became NaN at step 960",
        "1 critical, 1 warning, 1 info",
        "WARNING loss_spike  step 300, in train_loss, recovered",
        "CRITICAL nan_detected",
        "overflow: The loss was infinite one step before it was NaN.",
        "Ruled out\n  -  learning rate: constant at 3e-4",
        "1.  Train in bf16 instead of fp16.",
        "Gradients: no gradient norm was logged.",
        "5 lines were no JSON.",
    ):
        assert part in text


@pytest.mark.parametrize("quoted", [False, True])
def test_the_origin_of_a_nan_is_shown_unless_the_cause_names_it(quoted: bool) -> None:
    text = "the first non-finite value comes from log in head, which produced 7 infinite."
    birth = changed(oscillation(), kind="nan_origin", message=f"Step 420: {text}", experimental=False)
    run = broken()
    assert run.cause is not None
    cause = run.cause
    if quoted:
        cause = replace(cause, evidence=(f"T{text[1:]}",), repeats=((birth.kind, birth.start),))
    run = replace(run, findings=(*run.findings, birth), cause=cause)
    lines = " ".join(shown(replace(BAD, diagnoses=(run,))).split())
    assert lines.count("comes from log in head") == 1
    assert ("INFO nan_origin" in lines) is not quoted


def test_the_marks_are_below_the_curve_at_their_steps() -> None:
    lines = shown(BAD).splitlines()
    marks = next(line for line in lines if re.fullmatch(r" +1 +2━*", line))
    share = (marks.index("1") - 10) / (78 - 10)
    assert share == pytest.approx(0.3, abs=0.02)
    assert (marks.index("2") - 10) / (78 - 10) == pytest.approx(0.96, abs=0.02)


def test_the_broken_curve_is_shown_in_addition_to_the_first() -> None:
    other = replace(broken(), sketches=(replace(healthy().sketches[0], metric="total"), *broken().sketches))
    text = shown(Report((other,)))
    assert "\ntotal " in text
    assert "\ntrain_loss " in text
    assert "\ntrain_loss " not in shown(Report((replace(other, findings=()),)))


def test_findings_for_information_are_named_and_shown_when_asked_for() -> None:
    assert "for your information: oscillation" in shown(BAD)
    assert "INFO oscillation" not in shown(BAD)
    text = shown(BAD, verbose=True)
    assert "INFO oscillation  steps 420 to 480" in text
    assert "-> Look at the batch of this step." in text
    assert "loss 5.71, z 31.2" in text


def test_of_several_runs_the_healthy_ones_are_in_the_table_alone() -> None:
    text = shown(SEVERAL)
    assert "2 files: 1 critical, 1 warning, 1 info" in text
    assert "logs/good.jsonl" in text
    assert "Healthy: train_loss fell" not in text
    assert "1 run without warnings is only listed in the table" in text
    assert "Healthy: train_loss fell" in shown(SEVERAL, verbose=True)


def test_the_findings_of_several_runs_are_counted_by_type_the_worst_first() -> None:
    runs = (
        replace(healthy("a.csv"), findings=(spike(),)),
        replace(healthy("b.csv"), findings=(spike(), nan())),
        healthy("c.csv"),
    )
    rows = shown(Report(runs)).partition("Findings by type\n")[2].splitlines()[:2]
    assert [" ".join(row.split()) for row in rows] == [
        "nan_detected 1 CRITICAL, in 1 run of 3",
        "loss_spike 2 WARNING, in 2 runs of 3",
    ]
    assert "Findings by type" not in shown(Report(runs[1:2]))


def test_runs_that_are_all_healthy_are_a_table() -> None:
    text = shown(Report((healthy("a.csv"), healthy("b.csv"))))
    assert text.count("healthy") == 2
    assert "Healthy: train_loss fell" not in text


def test_a_healthy_run_alone_is_shown_in_full() -> None:
    assert "Healthy: train_loss fell from 4.50 to 1.50" in shown(GOOD)
    assert re.search(r"^  findings +none *$", shown(GOOD), re.MULTILINE)


def test_a_folder_that_all_lie_in_is_named_once() -> None:
    folder = "a/folder/with/a/long/name/"
    text = shown(Report((healthy(f"{folder}a.csv"), healthy(f"{folder}b/b.csv"))))
    assert text.count(folder) == 1
    assert "\na.csv " in text
    assert "\nb/b.csv " in text


def test_of_runs_that_cannot_be_judged_the_table_is_followed_by_why() -> None:
    unclear = replace(run_of_a_store(), verdict="Cannot tell: loss has 3 points, 8 are needed.")
    text = shown(Report((healthy("a.csv"), unclear)))
    assert "clever-loon-12  loss has 3 points, 8 are needed." in text


@pytest.mark.parametrize("width", [80, 100, 40])
@pytest.mark.parametrize("report", ALL)
def test_no_line_is_wider_than_the_terminal(report: Report, width: int) -> None:
    assert max((len(line) for line in shown(report, width=width, verbose=True).splitlines()), default=0) <= width


def test_a_terminal_without_unicode_gets_ascii_alone() -> None:
    odd = replace(broken(), name="Köln → 損失", notes=("×",))
    assert shown(Report((odd,)), unicode=False).isascii()
    assert "K\\xf6ln" in shown(Report((odd,)), unicode=False)


def test_colour_says_nothing_that_words_do_not() -> None:
    assert OUR_OWN_ESCAPES.sub("", shown(BAD, colour=True)) == shown(BAD)
    assert "\x1b[" not in render(BAD)


def test_text_for_a_file_has_no_space_at_the_ends_of_lines() -> None:
    text = render(SEVERAL)
    assert text == "".join(f"{line.rstrip()}\n" for line in text.splitlines())
    assert not text.startswith("\n")


def test_a_curve_without_a_finite_value_and_one_of_one_point_can_be_shown() -> None:
    nothing = Sketch("loss", (0, 1), (float("nan"),) * 2, (float("nan"),) * 2)
    assert "no finite value" in shown(Report((replace(broken(), curves=(), sketches=(nothing,)),)))
    sketch = Sketch("loss", (7,), (1.0,), (1.0,))
    assert "1 at step 7" in shown(Report((replace(healthy(), curves=(), sketches=(sketch,)),)))


def test_of_many_episodes_the_worst_are_shown_and_the_others_counted() -> None:
    many = [changed(spike(), start=step, peak=step, end=step) for step in range(0, 1000, 50)]
    report = Report((replace(broken(), findings=(*many, nan(), oscillation())),))
    text = shown(report)
    assert "  12  CRITICAL nan_detected" in text
    assert "not shown: loss_spike (9)" in text
    assert "for your information: oscillation" in text
    assert "•" in text
    assert "  22  INFO oscillation" in shown(report, verbose=True)


def test_a_report_without_runs_says_so() -> None:
    assert shown(NOTHING).strip() == "0 runs: no findings"
    assert "cannot tell" in shown(MIXED)


@pytest.mark.slow
@settings(max_examples=40)
@given(hostile_reports())
def test_no_name_controls_the_terminal(report: Report) -> None:
    text = OUR_OWN_ESCAPES.sub("", shown(report, colour=True, verbose=True))
    assert all(line.isprintable() for line in text.split("\n"))
    for diagnosis in report.diagnoses:
        if "[bold red]x[/]" in diagnosis.verdict:
            assert "[bold" in text


def test_the_gist_is_the_verdict_and_the_likely_cause() -> None:
    text = written(lambda console: show_gist(TerminalWriter(console), broken(), "What came of it"), 80)
    assert text.startswith("What came of it\n  Broken: train_loss became NaN")
    assert "Likely cause: overflow: The loss was infinite" in text
    assert "cause" not in written(lambda console: show_gist(TerminalWriter(console), healthy(), "What came of it"), 80)
