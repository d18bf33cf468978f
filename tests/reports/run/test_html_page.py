from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from findings import changed
from hypothesis import given, settings
from reports.hostile import hostile_reports
from reports.samples import ALL, BAD, GOOD, SEVERAL, broken, spike

from mlflow_stability.reports.escape import plain
from mlflow_stability.reports.html_kit.pages import run_page as render
from mlflow_stability.reports.report import Report

VOID = {"meta", "line", "rect", "path", "br"}
TAGS = VOID | {
    *("html", "head", "title", "style", "body", "main", "header", "article", "section", "footer", "figure"),
    *("figcaption", "div", "span", "p", "small", "strong", "code", "bdi", "a", "h1", "h2", "h3", "ol", "ul", "li"),
    *("dl", "dt", "dd", "table", "thead", "tbody", "tr", "th", "td", "svg"),
}
ATTRIBUTES = {
    *("lang", "charset", "name", "content", "http-equiv", "id", "class", "style", "href", "title", "role"),
    *("aria-label", "viewbox", "preserveaspectratio", "x", "y", "x1", "x2", "y1", "y2", "width", "height", "d"),
    "data-label",
}


class Page(HTMLParser):
    """What a browser would see: tags, attributes, text; and whether every tag is closed in its turn."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.links: list[str] = []
        self.ids: list[str] = []
        self.text: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)
        self.links += [value or "" for name, value in attrs if name == "href"]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def text_of(page: Page) -> str:
    return " ".join(" ".join(page.text).split())


@pytest.mark.parametrize("report", ALL)
def test_a_page_is_well_formed_and_every_link_leads_to_a_place_in_it(report: Report) -> None:
    page = Page(render(report))
    assert page.tags <= TAGS
    assert page.attributes <= ATTRIBUTES
    assert {link.removeprefix("#") for link in page.links} <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))


def test_a_page_tells_everything_about_a_broken_run() -> None:
    text = text_of(Page(render(BAD)))
    for part in (
        "Broken: train_loss became NaN at step 960",
        "1 critical, 1 warning, 1 info",
        "nan_detected",
        "info oscillation steps 420 to 480, worst at 430, in train_loss, experimental",
        "Likely cause overflow : The loss was infinite one step before it was NaN.",
        "Ruled out learning rate: constant at 3e-4",
        "Look at the batch of this step.",
        "Gradients: no gradient norm was logged.",
        "5 lines were no JSON.",
    ):
        assert part in text


def test_advice_is_given_once_for_each_kind_of_finding() -> None:
    twice = replace(broken(), findings=(spike(), changed(spike(), start=500)), remedies=())
    assert text_of(Page(render(Report((twice,))))).count("Look at the batch of this step.") == 1


def test_a_page_of_several_runs_begins_with_all_of_them() -> None:
    page = Page(render(SEVERAL))
    assert "#run-2" in page.links
    assert "gone.csv : There is no gone.csv." in text_of(page)


def test_the_list_of_several_runs_has_their_names_and_causes() -> None:
    text = text_of(Page(render(SEVERAL)))
    assert "good.jsonl logs/good.jsonl healthy" in text
    assert "bad.jsonl logs/bad.jsonl broken overflow (likely) 999" in text


def test_cause_and_actions_come_before_curves_and_findings() -> None:
    text = render(BAD)
    order = [text.index(item) for item in (">Likely cause<", ">What to do<", '<figure class="chart"', ">Findings<")]
    assert order == sorted(order)


def test_a_page_loads_no_external_resources() -> None:
    text = render(BAD)
    assert not re.search(r"https?:|url\(|@import|<script|src=", text)
    assert "default-src 'none'" in text


def test_the_same_report_gives_the_same_page() -> None:
    assert render(SEVERAL) == render(SEVERAL)
    assert render(GOOD) != render(BAD)


@pytest.mark.slow
@settings(max_examples=40)
@given(hostile_reports())
def test_no_name_becomes_a_tag_or_an_attribute(report: Report) -> None:
    text = render(report)
    page = Page(text)
    assert page.tags <= TAGS
    assert page.attributes <= ATTRIBUTES
    assert all(link.startswith("#run-") for link in page.links)
    assert all(line.isprintable() for line in text.split("\n"))
    for diagnosis in report.diagnoses:
        assert " ".join(plain(str(diagnosis.cannot_tell[0])).split()) in text_of(page)
