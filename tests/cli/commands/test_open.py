from __future__ import annotations

import stat
from pathlib import Path

import pytest
from analysis.logs import diverging, falling, write_log
from analysis.stored_runs import store_run

from mlflow_stability.cli.main import run

BROWSER = '#!/bin/sh\necho "$1" > opened\n'


@pytest.fixture(autouse=True)
def no_browser(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)


def test_the_page_of_a_run_is_kept_and_its_path_printed_where_there_is_no_browser(
    sqlite_uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = store_run(sqlite_uri, diverging(), name="lost")
    assert run(["open", "lost", "--tracking-uri", sqlite_uri]) == 0
    printed = capsys.readouterr()
    page = Path(printed.out.strip())
    assert page.name == f"{run_id}.html"
    assert ">Diverged:<" in page.read_text("utf-8")
    assert "No browser here" in printed.err
    before = page.stat().st_ino
    assert run(["open", "--last", "--no-browser", "--tracking-uri", sqlite_uri]) == 0
    assert capsys.readouterr() == (f"{page}\n", "")
    assert page.stat().st_ino == before


def test_the_page_is_opened_in_the_browser(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_log(tmp_path / "a log.jsonl", falling())
    browser = tmp_path / "browser"
    browser.write_text(BROWSER)
    browser.chmod(browser.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("BROWSER", str(browser))
    assert run(["open", "a log.jsonl", "--output", "page.html"]) == 0
    assert (tmp_path / "opened").read_text().strip() == (tmp_path / "page.html").as_uri()


def test_a_page_never_replaces_the_log_that_it_is_about(capsys: pytest.CaptureFixture[str]) -> None:
    log = write_log(Path("log.jsonl"), falling())
    before = Path(log).read_bytes()
    assert run(["open", "log.jsonl", "--output", "log.jsonl"]) == 2
    assert Path(log).read_bytes() == before


@pytest.mark.parametrize("typed", [[], ["a", "--last"]])
def test_the_command_takes_one_run(typed: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["open", *typed]) == 2
    assert "Give a run id, a run's name, the path of a log, or --last." in capsys.readouterr().err


def test_a_missing_file_is_reported_with_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["open", "gone.csv"]) == 2
    assert "No such file or folder: 'gone.csv'." in capsys.readouterr().err
