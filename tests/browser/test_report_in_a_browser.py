from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from browser.chromium import Chromium, find_chromium
from reports.samples import SEVERAL, broken

from mlflow_stability.reports.html_kit.pages import run_page as render
from mlflow_stability.reports.report import Report

PROGRAM = find_chromium()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="no Chromium here: apt-get install chromium"),
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    assert PROGRAM is not None
    with Chromium(PROGRAM, tmp_path_factory.mktemp("profile")) as chromium:
        yield chromium


@pytest.fixture
def page(tmp_path: Path) -> Path:
    long_name = "a_metric_with_a_name_that_knows_no_end_" * 8
    hostile = replace(broken(), source=long_name, name=f"<script>alert('{long_name}')</script>")
    file = tmp_path / "report.html"
    file.write_text(render(Report((*SEVERAL.diagnoses, hostile), SEVERAL.failures)), encoding="utf-8")
    return file


def sizes_of(browser: Chromium, selector: str) -> list[tuple[float, float]]:
    sizes = f"[...document.querySelectorAll('{selector}')].map(each => each.getBoundingClientRect())"
    return [(width, height) for width, height in browser.ask(f"{sizes}.map(each => [each.width, each.height])")]


@pytest.mark.parametrize(("width", "scheme"), [(380, "dark"), (1200, "light")])
def test_a_report_draws_its_charts_without_further_requests(
    browser: Chromium, page: Path, width: int, scheme: str
) -> None:
    browser.requests.clear()
    browser.complaints.clear()
    browser.open(page, width, scheme)
    curves, plots = sizes_of(browser, ".envelope"), sizes_of(browser, ".plot svg")
    assert len(curves) == len(plots) == 3
    for (curve_width, curve_height), (plot_width, plot_height) in zip(curves, plots, strict=True):
        assert curve_width > 0.9 * plot_width > 0.5 * width
        assert curve_height > 0.8 * plot_height > 100
    assert browser.ask("document.scrollingElement.scrollWidth <= window.innerWidth")
    assert browser.requests == [page.as_uri()]
    assert browser.complaints == []


def test_a_report_follows_the_colours_of_the_system(browser: Chromium, page: Path) -> None:
    brightness = {}
    for scheme in ("light", "dark"):
        browser.open(page, 1200, scheme)
        colour = browser.ask("getComputedStyle(document.body).backgroundColor")
        brightness[scheme] = sum(int(part) for part in colour.removeprefix("rgb(").removesuffix(")").split(",")) / 3
    assert brightness["light"] > 240
    assert brightness["dark"] < 40


def test_the_browser_fixture_records_script_errors_and_requests(browser: Chromium, tmp_path: Path) -> None:
    page = tmp_path / "ill.html"
    page.write_text("<script>throw new Error('ill')</script><img src='gone.png'>", encoding="utf-8")
    browser.complaints.clear()
    browser.requests.clear()
    browser.open(page, 800, "light")
    assert any("ill" in complaint for complaint in browser.complaints)
    assert any(request.endswith("gone.png") for request in browser.requests)
