from __future__ import annotations

import math
from dataclasses import replace

import pytest
from diagnosis.cards import made
from rich.cells import cell_len

from mlflow_stability.diagnosis.compare import comparison_of
from mlflow_stability.diagnosis.parameters import differences_of
from mlflow_stability.reports import comparison_phrases as wording
from mlflow_stability.reports import comparison_terminal
from mlflow_stability.reports.report_format import render_comparison
from mlflow_stability.vocabulary.result import (
    JUDGED_LIVE,
    Association,
    Cohort,
    Interval,
    Mark,
    Sensitivity,
    Severity,
    SurvivalCurve,
)


def test_names_that_differ_only_at_the_end_stay_distinct_in_80_columns() -> None:
    long = "a-sweep-of-tiny-models-whose-names-are-long-and-differ-in-"
    cards = [made(f"{long}{end}", {"lr": end}) for end in ("one", "two", "drei")]
    text = comparison_terminal.render(comparison_of(cards), width=80)
    assert all(f"…{end}" in text or f"-{end} " in text for end in ("one", "two", "drei"))
    wide = comparison_terminal.render(comparison_of([made(f"学習{number}" * 30, {}) for number in range(2)]), width=80)
    assert max(map(cell_len, wide.splitlines())) <= 80
    plain = comparison_terminal.render(comparison_of(cards), width=80, unicode=False)
    assert plain.isascii()
    assert ".." in plain


def test_a_baseline_gate_that_many_runs_pass_is_reported() -> None:
    cards = [made(f"run-{number}", {"seed": number}) for number in range(9)]
    text = comparison_terminal.render(comparison_of(cards, baseline=cards[0]), width=80)
    assert "Against the baseline run-0: passed" in text
    assert "8 of 8 not worse." in text


def test_of_very_many_worse_runs_some_are_listed_and_all_are_counted() -> None:
    cards = [made("baseline", {}), *(made(f"run-{number}", {"lr": number}, lost=9) for number in range(200))]
    comparison = comparison_of(cards, baseline=cards[0])
    gate = comparison_terminal.render(comparison, width=80).partition("Against the baseline")[2]
    assert gate.count("worse  run-") == 10
    assert "190 more; --verbose shows them" in gate
    assert comparison_terminal.render(comparison, verbose=True).count("worse  run-") == 200


@pytest.mark.parametrize(
    ("form", "count", "expected"),
    [
        ("terminal", 28, "13 more runs; --verbose shows them\n"),
        ("markdown", 63, "13 more runs; --output-format csv lists all.\n"),
        ("html", 113, "13 more runs; --output-format csv lists all.</p>"),
    ],
)
def test_a_table_that_leaves_runs_out_says_so_at_its_end(form: str, count: int, expected: str) -> None:
    comparison = comparison_of([made(f"run-{number}", {"lr": number}) for number in range(count)])
    text = comparison_terminal.render(comparison) if form == "terminal" else render_comparison(comparison, form)
    assert expected in text
    assert text.index("more runs") > text.index(f"run-{count - 1}")
    assert "more runs" not in comparison_terminal.render(comparison, verbose=True)


@pytest.mark.parametrize("form", ["terminal", "markdown", "html"])
def test_an_unstable_run_is_named_by_the_id_that_diagnose_takes(form: str) -> None:
    run_id = "0123456789abcdef" * 2
    cards = [replace(made("wild", {}, lost=300), source=run_id), made("calm", {})]
    comparison = comparison_of(cards)
    text = comparison_terminal.render(comparison) if form == "terminal" else render_comparison(comparison, form)
    assert run_id in text


def test_markdown_says_why_as_the_others_do() -> None:
    card = replace(made("wild", {}, lost=300), verdict="It diverged.", cause_statement="The rate was 100 times it.")
    assert "The rate was 100 times it." in render_comparison(comparison_of([card, made("calm", {})]), "markdown")


@pytest.mark.parametrize("explains", ["", "the NaN at step 251"])
def test_a_cause_in_the_verdict_is_not_repeated(explains: str) -> None:
    origin = "The batch itself was non-finite: args[0] is float32 8x4."
    verdict = f"Unstable: NaN at step 251; loss fell. Step 251: {origin}"
    card = replace(made("wild", {}, lost=300), verdict=verdict, cause_statement=origin)
    card = replace(card, cause_explains=explains)
    text = comparison_terminal.render(comparison_of([card, made("calm", {})]), width=200)
    assert text.count("The batch itself was non-finite") == 1


def test_the_numbers_of_long_trainings_fit_into_80_columns() -> None:
    card = replace(
        made("a-run-with-a-name", {}, lost=1_234_567, last=2_000_000),
        marks=tuple(
            Mark("loss_spike", Severity.WARNING, 1_000_000 + 9000 * number, 1_000_000 + 9000 * number + 1234, True)
            for number in range(12)
        ),
        spike_score=0.00123,
        rolled_back=12_345,
        skipped=1_234,
        steps_per_second=1234.5,
        overhead=0.0123,
    )
    text = comparison_terminal.render(comparison_of([card, made("b", {})]), width=80)
    for number in ("1,000,000", "0.1%", "1,234,567", "12/12 in 1,234", "12,345", "1234/s", "1.2%"):
        assert number in text
    assert max(map(len, text.splitlines())) <= 80


def test_the_lengths_of_runs_are_shown_if_they_differ() -> None:
    long, short = made("long", {}, last=399), replace(made("short", {}, last=129), ended="running")
    text = comparison_terminal.render(comparison_of([long, short]), width=80)
    assert "steps: length of the run" in text
    assert "130 so far" in text
    assert "length of the run" not in comparison_terminal.render(comparison_of([long, made("b", {}, last=399)]))


@pytest.mark.parametrize("form", ["terminal", "markdown", "html"])
def test_runs_without_a_repetition_are_not_listed_over_seeds(form: str) -> None:
    repeated = [made(f"s{seed}", {"lr": 0.1, "seed": seed}) for seed in range(3)]
    alone = [made(f"alone-{width}", {"lr": 0.1, "width": width, "seed": 1}) for width in (7, 8)]
    comparison = comparison_of([*repeated, *alone])
    text = comparison_terminal.render(comparison) if form == "terminal" else render_comparison(comparison, form)
    over_seeds = text[text.index("Over seeds") :]
    cell = {"terminal": "runs {};", "markdown": "| {} |", "html": ">{}<"}[form]
    assert cell.format(3) in over_seeds
    assert cell.format(1) not in over_seeds
    assert "Left out: 2 runs without a repetition." in over_seeds


def test_for_many_runs_a_missing_parameter_is_shown_as_not_set() -> None:
    few = [made(str(n), {"width": 8} if n else {}) for n in range(3)]
    assert wording.values(differences_of(few)[0]) == "- | 8 | 8"
    many = [made(str(n), {"width": 8} if n else {}) for n in range(9)]
    assert wording.values(differences_of(many)[0]) == "not set (1), 8 (8)"
    numbers = [made(str(n), {"width": n} if n else {}) for n in range(12)]
    assert wording.values(differences_of(numbers)[0]) == "11 values from 1 to 11, not set (1)"


def test_a_crash_is_named_without_a_dash_before_it() -> None:
    crashed = replace(made("crashed", {}), outcome="crashed", cause="exception")
    page = render_comparison(comparison_of([crashed, made("calm", {})]), "html")
    assert "<div><small>exception</small></div>" in page
    assert "- <small>" not in page


def test_no_interval_is_shown_if_all_runs_were_lost() -> None:
    assert wording.interval(Interval(math.inf, math.inf, math.inf)) == "Inf"
    assert wording.interval(Interval(math.inf, 0.5, math.inf)) == "Inf (0.5 to Inf)"


def test_one_step_is_no_steps() -> None:
    assert wording.survival(SurvivalCurve("all runs", 3, 3, (1,), (0.0,), last_step=9)).endswith(
        "half of them by 1 step"
    )


@pytest.mark.parametrize("form", ["terminal", "markdown", "html"])
def test_equal_notes_of_several_runs_are_shown_once(form: str) -> None:
    thinned = "The full record is gone."
    cards = [replace(made(f"run-{n}", {}), notes=(*((thinned,) if n < 5 else ()), JUDGED_LIVE)) for n in range(9)]
    cards[8] = replace(cards[8], notes=("It was deleted.",))
    comparison = comparison_of(cards)
    text = comparison_terminal.render(comparison) if form == "terminal" else render_comparison(comparison, form)
    assert f"5 runs: {thinned}" in text
    assert "run-8: It was deleted." in text
    assert JUDGED_LIVE not in text


@pytest.mark.parametrize("form", ["terminal", "markdown", "html"])
def test_parameters_associated_with_instability_are_the_first_differences(form: str) -> None:
    cards = [
        made(f"run-{n}", {"lr": (0.1, 0.2, 0.3, 3.0)[n % 4], **{f"innocent_{k}": n % 2 for k in range(20)}})
        for n in range(8)
    ]
    cohort = Cohort(8, 2, associations=(Association(("lr",), "lr above 2: 2 of 2 unstable.", 0.001),))
    comparison = replace(comparison_of(cards), cohort=cohort)
    text = comparison_terminal.render(comparison) if form == "terminal" else render_comparison(comparison, form)
    differs = text[text.index("Differences") :]
    assert differs.index("lr") < differs.index("innocent_0")


@pytest.mark.parametrize("form", ["terminal", "markdown", "html"])
def test_associations_with_instability_are_at_the_top_before_any_run(form: str) -> None:
    named = (Association(("lr",), "lr above 2: 2 of 2 unstable.", 0.001), Association(("warmup",), "And so on.", 0.002))
    comparison = comparison_of([made(f"run-{n}", {"lr": n}) for n in range(8)])
    for cohort, there in ((Cohort(8, 2, associations=named), True), (Cohort(8, 2), False)):
        changed = replace(comparison, cohort=cohort)
        text = comparison_terminal.render(changed) if form == "terminal" else render_comparison(changed, form)
        top = text[: text.index("run-0")]
        assert ("lr above 2: 2 of 2 unstable. Also associated: warmup." in top) is there


def test_the_effect_of_the_learning_rate_is_shown_with_the_number_of_runs() -> None:
    sensitivity = Sensitivity("lr", (0.1, 0.2, 0.4), (1.0, 2.0, 3.0), (0.0, 0.0, 1.0), (4, 3, 4), 0.1, 0.2, 1.0)
    best, _, stable = wording.sensitivity(sensitivity)
    assert best == "Best at 0.1 of 3 rates from 0.1 to 0.4 (lr, 11 runs)."
    assert stable == "All runs up to 0.2 were stable."
