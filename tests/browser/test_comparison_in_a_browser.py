from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from browser.chromium import Chromium, find_chromium
from diagnosis.cards import made
from reports.comparisons import many, two, two_with_layers

from mlflow_stability.diagnosis.compare import comparison_of
from mlflow_stability.reports.html_kit.pages import comparison_page as render
from mlflow_stability.vocabulary.result import Mark, Severity

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


def boxes(browser: Chromium, selector: str) -> list[dict[str, float]]:
    code = f"[...document.querySelectorAll('{selector}')].map(each => each.getBoundingClientRect().toJSON())"
    by_name: list[dict[str, float]] = browser.ask(code)
    return by_name


@pytest.mark.parametrize(("width", "scheme"), [(380, "dark"), (1200, "light")])
def test_a_comparison_draws_its_pictures_without_further_requests(
    browser: Chromium, tmp_path: Path, width: int, scheme: str
) -> None:
    page = tmp_path / "comparison.html"
    page.write_text(render(many()), encoding="utf-8")
    browser.requests.clear()
    browser.complaints.clear()
    browser.open(page, width, scheme)
    (plot,) = [box for box in boxes(browser, ".plot svg") if box["height"] > 100][:1]
    assert plot["width"] > 0.5 * width
    assert len(boxes(browser, ".run-line")) == 17
    assert all(box["width"] > 0.1 * plot["width"] for box in boxes(browser, ".run-line"))
    assert any(box["height"] > 0.3 * plot["height"] for box in boxes(browser, ".run-line"))
    assert len(boxes(browser, ".stairs")) >= 2
    assert len(boxes(browser, ".strip")) == 17
    assert len(boxes(browser, ".dot")) >= 17
    assert browser.ask("document.scrollingElement.scrollWidth <= window.innerWidth")
    assert browser.requests == [page.as_uri()]
    assert browser.complaints == []


def test_a_comparison_follows_the_colours_of_the_system(browser: Chromium, tmp_path: Path) -> None:
    page = tmp_path / "comparison.html"
    page.write_text(render(two()), encoding="utf-8")
    seen = {}
    for scheme in ("light", "dark"):
        browser.open(page, 1200, scheme)
        seen[scheme] = browser.ask("getComputedStyle(document.querySelector('.run-line.one')).stroke")
    assert seen["light"] != seen["dark"]
    assert len(boxes(browser, ".run-line")) == 2


@pytest.mark.parametrize(("width", "scheme"), [(380, "dark"), (1200, "light")])
def test_pictures_of_layers_fit_into_the_page(browser: Chromium, tmp_path: Path, width: int, scheme: str) -> None:
    page = tmp_path / "comparison.html"
    page.write_text(render(two_with_layers()), encoding="utf-8")
    browser.requests.clear()
    browser.complaints.clear()
    browser.open(page, width, scheme)
    pictures = boxes(browser, "img.layers")
    assert len(pictures) == 2
    assert all(0.8 * min(width, 900) < box["width"] <= width and box["x"] >= 0 for box in pictures)
    assert browser.ask("[...document.querySelectorAll('img.layers')].every(image => image.naturalWidth > 1000)")
    assert browser.ask("document.scrollingElement.scrollWidth <= window.innerWidth")
    assert [address for address in browser.requests if not address.startswith("data:image/png")] == [page.as_uri()]
    assert browser.complaints == []


def test_a_phone_shows_no_empty_rows(browser: Chromium, tmp_path: Path) -> None:
    page = tmp_path / "comparison.html"
    page.write_text(render(many()), encoding="utf-8")
    browser.open(page, 380, "light")
    code = (
        "[...document.querySelectorAll('.runs td')].filter(e => e.offsetHeight && e.textContent.trim() == '-').length"
    )
    assert browser.ask(code) == 0
    browser.open(page, 1200, "light")
    assert browser.ask(code) > 0


def test_no_column_is_cut_off_in_print(browser: Chromium, tmp_path: Path) -> None:
    kinds = ("learning_rate_jump", "gradient_explosion", "attention_collapse")
    marks = tuple(Mark(kind, Severity.WARNING, 7000, 7100 + number, True) for number, kind in enumerate(kinds))
    card = replace(made("a-name-of-some-length", {}, last=9000), marks=marks, outcome="unstable", rolled_back=11_111)
    page = tmp_path / "comparison.html"
    page.write_text(render(comparison_of([*many().cards, card])), encoding="utf-8")
    browser.open(page, 718, "light")  # A4 between its margins
    browser.call("Emulation.setEmulatedMedia", media="print")
    tables = boxes(browser, "table")
    browser.call("Emulation.setEmulatedMedia", media="")
    assert len(tables) > 2
    assert all(box["right"] <= 718 for box in tables)


def test_the_end_of_a_long_name_beside_a_strip_is_visible(browser: Chromium, tmp_path: Path) -> None:
    cards = [made(f"a-sweep-of-many-runs-whose-names-are-long-{end}", {}) for end in ("one", "two")]
    page = tmp_path / "comparison.html"
    page.write_text(render(comparison_of(cards)), encoding="utf-8")
    browser.open(page, 380, "light")
    for name, end in zip(
        boxes(browser, ".strips > span[title]"), boxes(browser, ".strips > span bdi:last-child"), strict=True
    ):
        assert end["x"] - name["x"] > 0
        assert end["right"] <= name["right"] + 1
