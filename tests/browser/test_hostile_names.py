"""Pages about logs whose every text tries to run a script: a browser shows the texts, and nothing else happens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser.chromium import Chromium, find_chromium

from mlflow_stability.cli.main import run

PROGRAM = find_chromium()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="no Chromium here: apt-get install chromium"),
]
CODE = "window.owned=1;fetch(`http://127.0.0.1:1`)"
HOSTILE = [
    f"<script>{CODE}</script>",
    f"</script><script>{CODE}</script>",
    f"</title></style><script>{CODE}</script>",
    f'"><img src=x onerror="{CODE}">',
    f"' onmouseover='{CODE}' autofocus onfocus='{CODE}' x='",
    f"javascript:{CODE}",
    f"[link](javascript:{CODE})",
    f"<a href='javascript:{CODE}'>link</a>",
    f"<svg/onload={CODE}>",
    "<base href='http://127.0.0.1:1/'><meta http-equiv=refresh content='0;url=http://127.0.0.1:1'>",
    f"{{{{ {CODE} }}}}{{% raw %}}",
    "<iframe srcdoc='<script>parent.owned=1</script>'></iframe>",
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    assert PROGRAM is not None
    with Chromium(PROGRAM, tmp_path_factory.mktemp("profile")) as chromium:
        yield chromium


def recorded(folder: Path, number: int, losses: list[float]) -> Path:
    """A run in a store of files, with the texts wherever it takes one."""
    place, name = folder / "0" / f"{number:032x}", f"{HOSTILE[number]} {number}"
    for part in ("metrics", "params", "tags"):
        (place / part).mkdir(parents=True)
    meta = {"run_id": place.name, "run_name": json.dumps(name), "status": 3, "start_time": 1, "end_time": 900_000}
    (place / "meta.yaml").write_text("".join(f"{key}: {value}\n" for key, value in meta.items()))
    points = "".join(f"{1 + step * 1000} {loss} {step}\n" for step, loss in enumerate(losses))
    (place / "metrics" / "loss").write_text(points)
    for position, text in enumerate(HOSTILE):
        (place / "params" / f"p{position}").write_text(f"{text} {name}")
        (place / "metrics" / f"loss {text.replace('/', '_')}").write_text(points)
    (place / "tags" / "mlflow.runName").write_text(name)
    return place


def printed(folder: Path, losses: list[float]) -> Path:
    """A log of JSON lines, with the texts as names and values."""
    file = folder / f"run {HOSTILE[3].replace('/', '_')}.jsonl"
    rows = [
        {"step": step, "loss": loss, f"loss {HOSTILE[step % 4]}": loss, "note": HOSTILE[step % len(HOSTILE)]}
        for step, loss in enumerate(losses)
    ]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return file


@pytest.fixture(scope="module", params=["diagnose", "compare"])
def page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report or the comparison of these runs."""
    folder = tmp_path_factory.mktemp("hostile")
    falling = [2.0 / (1 + step / 20) for step in range(300)]
    broken = [*falling[:200], *(2.0 ** (step / 5) for step in range(50)), *[float("nan")] * 50]
    runs = [recorded(folder / "mlruns", number, (falling, broken)[number % 2]) for number in range(len(HOSTILE))]
    file = folder / f"{request.param}.html"
    assert run([request.param, *map(str, runs), str(printed(folder, broken)), "--output", str(file)]) in (0, 1)
    assert "window.owned" in file.read_text(encoding="utf-8")
    return file


def test_no_text_of_a_log_does_anything_in_a_page(browser: Chromium, page: Path) -> None:
    browser.requests.clear()
    browser.complaints.clear()
    browser.open(page, 1200, "light")
    browser.ask("document.querySelectorAll('*').forEach(each => { each.focus?.(); each.click?.() })")
    assert browser.ask("window.owned === undefined")
    assert browser.ask("document.querySelectorAll('script, img, iframe, base, form, [onload], [onfocus]').length") == 0
    assert browser.ask("[...document.links].every(each => each.getAttribute('href').startsWith('#'))")
    assert {address.partition("#")[0] for address in browser.requests} == {page.as_uri()}
    assert browser.complaints == []


def test_a_script_that_gets_into_a_page_is_not_run(browser: Chromium, page: Path) -> None:
    written = page.with_name(f"{page.stem} with a script.html")
    text = page.read_text(encoding="utf-8")
    written.write_text(text.replace("<main>", f"<main><script>{CODE}</script>", 1), encoding="utf-8")
    browser.open(written, 1200, "light")
    assert browser.ask("document.scripts.length") == 1
    assert browser.ask("window.owned === undefined")
    written.write_text(f"<main><script>{CODE}</script>", encoding="utf-8")
    browser.open(written, 1200, "light")
    assert browser.ask("window.owned") == 1
    # What it asks for fails a little later: no complaint of this page is left for the next test.
    while not all(any(part in text for text in browser.complaints) for part in ("ERR_UNSAFE_PORT", "Failed to fetch")):
        browser.ask("0")
