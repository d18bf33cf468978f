"""What the output of a notebook's cell looks like in a browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browser.chromium import Chromium, find_chromium
from reports.comparisons import many
from reports.samples import broken

import mlflow_stability.reports.report_format  # noqa: F401 - registers the pages

PROGRAM = find_chromium()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="no Chromium here: apt-get install chromium"),
]
NOTEBOOK = """<!doctype html><meta charset="utf-8"><style>* {{ color: rgb(1, 2, 3) !important; font-size: 3px }}</style>
<div class="output"><div class="output_html rendered_html">{}</div></div>"""
"""A page with styles of its own, as notebooks have, around the output of a cell."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    assert PROGRAM is not None
    with Chromium(PROGRAM, tmp_path_factory.mktemp("profile")) as chromium:
        yield chromium


@pytest.mark.parametrize(
    ("result", "expected"),
    [(broken, "train_loss became NaN at step 960"), (many, "unstable")],
    ids=["diagnosis", "comparison"],
)
def test_the_output_of_a_cell_is_the_page_of_the_report(
    browser: Chromium, tmp_path: Path, result: Callable[[], Any], expected: str
) -> None:
    file = tmp_path / "notebook.html"
    file.write_text(NOTEBOOK.format(result()._repr_html_()), encoding="utf-8")
    browser.requests.clear()
    browser.complaints.clear()
    browser.open(file, 1000, "light")
    size = "document.querySelector('iframe').getBoundingClientRect()"
    width, height = browser.ask(f"[{size}.width, {size}.height]")
    assert width > 900
    assert height > 500
    text = " ".join(browser.ask_frame("document.body.innerText").split())
    assert expected in text
    assert browser.ask_frame("getComputedStyle(document.body).color") != "rgb(1, 2, 3)", "the page has its own styles"
    assert browser.ask_frame("document.scrollingElement.scrollWidth <= window.innerWidth")
    assert [request for request in browser.requests if request.startswith("http")] == []
    assert browser.complaints == []
