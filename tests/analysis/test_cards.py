from __future__ import annotations

import os
import shutil
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from analysis.logs import falling
from analysis.stored_runs import store_run
from architecture.repository import ROOT

from mlflow_stability.analysis.cards import KEPT_DAYS, ROOMS, CardCache, fingerprint_of, fingerprint_of_rules
from mlflow_stability.analysis.compare import compare
from mlflow_stability.vocabulary.result import RunCard
from mlflow_stability.vocabulary.run import DAMAGED, RunHead

HEAD = RunHead("0123456789abcdef" * 2, "a-run", True, "state")
CARD = RunCard(HEAD.run_id, "a-run", outcome="healthy")


def test_a_user_without_a_home_folder_compares_without_memory(
    sqlite_uri: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    comparison = compare([store_run(sqlite_uri, falling(number)) for number in range(2)], tracking_uri=sqlite_uri)
    assert len(comparison.runs) == 2
    assert [record.getMessage() for record in caplog.records] == [
        "Summaries of runs are not cached: this user has no home folder. Set XDG_CACHE_HOME to choose another folder."
    ]


def test_what_was_not_asked_for_in_months_goes_and_so_does_what_was_never_finished(tmp_path: Path) -> None:
    cache = CardCache(None, tmp_path)
    cache.keep(HEAD, CARD)
    (kept,) = tmp_path.iterdir()
    old = time.time() - (KEPT_DAYS + 1) * 86_400
    for name in ("forgotten.json", "torn.new", "somebody-elses.txt"):
        (tmp_path / name).write_text("{}")
        os.utime(tmp_path / name, (old, old))
    (tmp_path / "in-the-making.new").write_text("{}")
    cache.tidy()
    assert {path.name for path in tmp_path.iterdir()} == {kept.name, "in-the-making.new", "somebody-elses.txt"}
    assert cache.find(HEAD) == CARD


def test_a_card_of_a_record_that_could_be_read_in_part_is_not_remembered(tmp_path: Path) -> None:
    cache = CardCache(None, tmp_path)
    cache.keep(HEAD, replace(CARD, notes=(f"{DAMAGED}: stability/record/0-1.parquet.",)))
    assert cache.find(HEAD) is None
    cache.keep(HEAD, CARD)
    assert cache.find(HEAD) == CARD


def copied(folder: Path) -> Path:
    for room in ROOMS:
        shutil.copytree(ROOT / "mlflow_stability" / room, folder / room, ignore=shutil.ignore_patterns("*.pyc"))
    return folder


def test_a_changed_rule_is_another_fingerprint(tmp_path: Path) -> None:
    package = copied(tmp_path / "package")
    before = fingerprint_of(package)
    assert before == fingerprint_of(ROOT / "mlflow_stability")
    rule = package / "diagnosis" / "two_runs.py"
    rule.write_text(rule.read_text() + "# another one\n")
    assert fingerprint_of(package) != before


def test_it_is_the_same_in_a_zip_file_and_empty_where_nothing_can_be_read(tmp_path: Path) -> None:
    package = copied(tmp_path / "package")
    archive = Path(shutil.make_archive(str(tmp_path / "packed"), "zip", package))
    with zipfile.ZipFile(archive) as packed:
        assert fingerprint_of(zipfile.Path(packed)) == fingerprint_of(package)
    assert fingerprint_of(tmp_path / "nowhere") == ""
    for file in package.rglob("*.py"):
        file.unlink()
    assert fingerprint_of(package) == ""


def test_it_is_found_once() -> None:
    assert fingerprint_of_rules()
    assert fingerprint_of_rules() is fingerprint_of_rules()
