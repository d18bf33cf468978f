from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from html.parser import HTMLParser

import pytest
from jsonschema import Draft202012Validator
from markdown_it import MarkdownIt
from reports.comparisons import ALL, HOSTILE, many, two

from mlflow_stability.reports import comparison_terminal
from mlflow_stability.reports.formats.json import schema
from mlflow_stability.reports.report_format import FORMATS, render_comparison
from mlflow_stability.vocabulary.result import Comparison

Made = Callable[[], Comparison]


@pytest.mark.parametrize("form", list(FORMATS))
@pytest.mark.parametrize("made", ALL)
def test_every_form_can_be_written_and_is_the_same_each_time(made: Made, form: str) -> None:
    assert render_comparison(made(), form) == render_comparison(made(), form)


@pytest.mark.parametrize("made", ALL)
def test_the_json_keeps_to_its_schema(made: Made) -> None:
    Draft202012Validator.check_schema(schema("comparison"))
    Draft202012Validator(schema("comparison")).validate(json.loads(render_comparison(made(), "json")))


def test_the_json_has_the_runs_in_order_and_what_could_not_be_read() -> None:
    document = json.loads(render_comparison(many(), "json"))
    assert document["runs"][0]["unstable"] is False
    assert document["runs"][-1]["lost"] is True
    assert document["runs"][-1]["final_loss"] in ("nan", "inf") or document["runs"][-1]["final_loss"] > 1
    assert document["errors"][0]["source"] == "gone.csv"
    assert document["gate"]["passed"] is False
    assert (document["asked"], document["interrupted"]) == (20, True)


def test_the_csv_has_a_row_for_each_run_and_a_column_for_each_parameter_that_differs() -> None:
    rows = list(csv.DictReader(io.StringIO(render_comparison(many(), "csv"))))
    assert len(rows) == 18
    assert {row["param:optimizer"] for row in rows[:-1]} == {"adamw", "sgd"}
    assert rows[-1]["error"]
    assert not any(cell.lstrip().startswith(("=", "@")) for row in rows for cell in row.values())


@pytest.mark.parametrize("made", ALL)
@pytest.mark.parametrize("verbose", [True, False])
@pytest.mark.parametrize("unicode", [True, False])
def test_a_terminal_of_80_columns_is_wide_enough(made: Made, verbose: bool, unicode: bool) -> None:
    text = comparison_terminal.render(made(), verbose=verbose, width=80, unicode=unicode)
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text
    assert unicode or text.isascii()


def test_a_comparison_shows_the_worse_run_the_first_difference_and_associations() -> None:
    text = " ".join(comparison_terminal.render(two(), width=80).split())
    for part in ("2 runs: 1 lost, 1 stable.", "First difference", "failed", "worse wild", "diverged at step"):
        assert part in text
    text = " ".join(comparison_terminal.render(many(), width=80).split())
    for part in ("Over seeds", "Time to divergence", "Learning rate", "Interrupted: 18 of 20", "lr=0.003"):
        assert part in text
    assert "1. 1." not in text


def test_what_a_run_brought_along_stays_text_in_markdown() -> None:
    text = render_comparison(many(), "markdown")
    tokens = MarkdownIt("commonmark", {"html": True}).enable("table").parse(text)
    inline = [child for token in tokens for child in token.children or []]
    kinds = {token.type for token in (*tokens, *inline)}
    assert not kinds & {"html_block", "html_inline", "code_inline", "link_open", "em_open"}
    assert "alert('x')" in text


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.pictures: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        if tag not in ("meta", "line", "path", "img"):
            self.open.append(tag)
        if tag == "img":
            self.pictures.append(dict(attrs)["src"] or "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("line", "path"):
            assert self.open.pop() == tag


@pytest.mark.parametrize("made", ALL)
def test_the_page_is_whole_and_needs_no_script_and_no_network(made: Made) -> None:
    page = render_comparison(made(), "html")
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert not tags.seen & {"script", "link", "iframe"}
    assert all(picture.startswith("data:image/png;base64,") for picture in tags.pictures)
    assert "://" not in page
    assert HOSTILE not in page
    assert "nan%" not in page.lower()


def test_of_a_thousand_runs_the_page_shows_the_most_and_the_least_stable() -> None:
    from dataclasses import replace

    from mlflow_stability.diagnosis.compare import comparison_of

    cards = [replace(card, source=f"{card.source}-{n}") for n in range(20) for card in many().cards]
    page = render_comparison(comparison_of(cards), "html")
    assert len(page) < 600_000
    assert f"{len(cards) - 100} more" in page
