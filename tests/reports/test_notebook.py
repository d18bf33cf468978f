from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from reports.comparisons import many, two
from reports.samples import broken, healthy

import mlflow_stability.reports.report_format  # noqa: F401 - registers the pages
from mlflow_stability.reports.report import Report
from mlflow_stability.reports.report_format import render, render_comparison


class Frames(HTMLParser):
    """The attributes of every element of a piece of HTML."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def page_in(html: str | None) -> str:
    assert html is not None
    ((tag, attributes),) = Frames(html).found
    assert tag == "iframe", "the notebook's styles and those of the page do not reach each other"
    assert attributes["sandbox"] is None, "no script, and nothing of the notebook's, is within its reach"
    assert attributes["srcdoc"] is not None
    return attributes["srcdoc"]


@pytest.mark.parametrize("diagnosis", [healthy(), broken(), replace(healthy(), name="<b>\"'&")])
def test_a_diagnosis_shows_itself_as_the_page_of_its_report(diagnosis: object) -> None:
    page = page_in(diagnosis._repr_html_())  # type: ignore[attr-defined]
    assert page.replace('<base href="about:srcdoc">', "", 1) == render(Report((diagnosis,)), "html")  # type: ignore[arg-type]


def test_a_comparison_shows_itself_as_the_page_of_its_report() -> None:
    page = page_in(many()._repr_html_())
    assert page.replace('<base href="about:srcdoc">', "", 1) == render_comparison(many(), "html")


@pytest.mark.parametrize("make", [healthy, broken, two, many])
def test_its_repr_is_short_and_plain(make: Callable[[], object]) -> None:
    shown = make()
    assert len(repr(shown)) < 600
    assert "\n" not in repr(shown)
    assert repr(shown).startswith((f"<Diagnosis of {getattr(shown, 'name', '')}: ", "<Comparison of "))
