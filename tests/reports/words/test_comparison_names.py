from __future__ import annotations

from dataclasses import replace

import pytest
from diagnosis.cards import made
from hypothesis import given
from hypothesis import strategies as st

from mlflow_stability.diagnosis.compare import comparison_of
from mlflow_stability.reports import comparison_terminal
from mlflow_stability.reports.comparison_sections import names_of, with_distinct_names
from mlflow_stability.reports.formats.json import comparison_document
from mlflow_stability.reports.report_format import render_comparison
from mlflow_stability.vocabulary.result import Comparison, RunCard

IDS = ("aaaaaaaa11112222", "aaaaaaaa33334444", "bbbbbbbb55556666")


def three_of_one_name() -> Comparison:
    cards = [replace(made("lr=0.1", {"seed": n}, lost=n * 100 or None), source=item) for n, item in enumerate(IDS)]
    return comparison_of([*cards, made("alone", {})], baseline=cards[0])


@pytest.mark.parametrize("form", ["terminal", "markdown", "html"])
def test_runs_with_the_same_name_are_distinguished_by_their_ids(form: str) -> None:
    comparison = three_of_one_name()
    text = (
        comparison_terminal.render(comparison, width=120, verbose=True)
        if form == "terminal"
        else render_comparison(comparison, form)
    )
    shown = text.replace("&#61;", "=")
    for name in ("lr=0.1 (aaaaaaaa1)", "lr=0.1 (aaaaaaaa3)", "lr=0.1 (bbbbbbbb5)"):
        assert shown.count(name) >= 2  # in the table, and where its failure or its being the baseline is reported
    assert "alone (" not in text


def test_programs_get_the_names_as_they_are() -> None:
    assert [run["name"] for run in comparison_document(three_of_one_name())["runs"]].count("lr=0.1") == 3


def test_logs_of_one_name_are_called_by_as_much_of_their_paths_as_tells_them_apart() -> None:
    sources = [f"logs/{version}/metrics.csv" for version in ("version_0", "version_1")]
    names = names_of([RunCard(source, "metrics.csv") for source in sources])
    assert list(names.values()) == ["version_0/metrics.csv", "version_1/metrics.csv"]
    folders = names_of([RunCard("one/0/f3a", "calm"), RunCard("two/0/f3a", "calm")])
    assert list(folders.values()) == ["calm (one/0/f3a)", "calm (two/0/f3a)"]


@given(
    st.dictionaries(
        st.one_of(st.text("ab/.", min_size=1, max_size=6), st.text("0a", min_size=32, max_size=32)),
        st.text("ab ()", max_size=3),
        max_size=8,
    )
)
def test_runs_with_equal_names_always_get_distinct_names(named: dict[str, str]) -> None:
    cards = [RunCard(source, name) for source, name in named.items()]
    names = names_of(cards)
    alike = [card for card in cards if sum((c.name or c.source) == (card.name or card.source) for c in cards) > 1]
    assert len({names[item.source] for item in alike}) == len(alike)


def test_what_has_one_name_keeps_it() -> None:
    comparison = comparison_of([made("one", {}), made("two", {})])
    assert with_distinct_names(comparison).cards == comparison.cards
