from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
from analysis.logs import falling, write_log
from analysis.test_pair import recorded
from architecture.repository import ROOT
from servers.troubled_server import TroubledServer
from waiting import wait_until

from mlflow_stability.analysis.card_workers import DIED, cards_from_processes
from mlflow_stability.analysis.diagnose import cards_at
from mlflow_stability.vocabulary.result import RunCard


@pytest.fixture
def logs() -> list[str]:
    return [str(write_log(Path(f"{number}.jsonl"), falling(number)[:60])) for number in range(6)]


def read(sources: list[str], count: int = 1) -> dict[int, list[RunCard]]:
    return dict(cards_from_processes(sources, count, None, None))


def test_a_file_that_is_called_like_a_module_is_not_run_where_it_lies(logs: list[str]) -> None:
    for name in ("queue", "numpy", "mlflow"):
        Path(f"{name}.py").write_text(
            "open('was_run', 'w').close()\nraise RuntimeError('not the one that was meant')\n"
        )
    assert all(card.readable for cards in read(logs).values() for card in cards)
    assert not Path("was_run").exists()


@pytest.mark.slow
def test_a_process_that_dies_loses_only_the_run_that_it_was_reading(logs: list[str]) -> None:
    mine = set(psutil.Process().children())
    result: dict[int, list[RunCard]] = {}
    for number, cards in cards_from_processes(logs, 1, None, None):
        result[number] = cards
        if len(result) == 1:
            for child in set(psutil.Process().children()) - mine:
                child.kill()
                child.wait()
    assert sorted(result) == list(range(6))
    errors = [card.error for cards in result.values() for card in cards if card.error]
    assert errors == [DIED]
    assert set(psutil.Process().children()) == mine


@pytest.mark.parametrize("program", ["/nowhere/python", str(shutil.which("false")), ""])
def test_this_process_reads_the_runs_when_no_worker_starts(
    logs: list[str], program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", program)
    records = read(logs, 2)
    assert sorted(records) == list(range(6))
    assert all(card.readable for cards in records.values() for card in cards)


@pytest.mark.slow
def test_a_process_that_works_for_one_that_is_gone_ends_in_the_middle_of_a_run(
    troubled_server: TroubledServer,
) -> None:
    troubled_server.silent_at = "/runs/get"
    worker = subprocess.Popen(
        [sys.executable, "-c", "from mlflow_stability.analysis.card_workers import main; main()"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert worker.stdin is not None
    assert worker.stdout is not None
    settings = {"tracking_uri": troubled_server.url, "detectors": None, "curves": ["", ""]}
    worker.stdin.write(f"{json.dumps(settings)}\n{json.dumps('0123456789abcdef' * 2)}\n".encode())
    worker.stdin.flush()
    wait_until(lambda: any("/runs/get" in path for path in troubled_server.requests))
    worker.stdin.close()
    try:
        worker.wait(timeout=60)
    finally:
        worker.kill()
        worker.wait()
        worker.stdout.close()


@pytest.mark.slow
def test_files_fetched_by_a_process_are_removed_when_it_is_ended_in_the_middle_of_a_run(
    logs: list[str], troubled_server: TroubledServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = recorded(troubled_server.url, tmp_path / "made", "a-run")
    troubled_server.silent_at = ".parquet"
    troubled_server.requests.clear()
    room = tmp_path / "room"
    room.mkdir()
    monkeypatch.setenv("TMPDIR", str(room))
    monkeypatch.setattr(tempfile, "tempdir", str(room))
    reading = cards_from_processes([logs[0], run_id], 1, troubled_server.url, None)
    assert next(reading)[0] == 0
    wait_until(lambda: any(path.endswith(".parquet") for path in troubled_server.requests))
    assert [item for item in room.rglob("*") if item.is_dir()]
    reading.close()
    assert list(room.iterdir()) == []


def test_cards_made_by_a_different_copy_of_the_package_are_not_used(
    logs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    shutil.copytree(ROOT / "mlflow_stability", other / "mlflow_stability", ignore=shutil.ignore_patterns("__pycache__"))
    with (other / "mlflow_stability" / "diagnosis" / "verdict.py").open("a") as rule:
        rule.write("\n\ndef outcome_of(*_, **__):\n    return 'stuck'\n")
    ours = {card.outcome for source in logs for card in cards_at(source)}
    monkeypatch.syspath_prepend(str(other))
    assert {card.outcome for cards in read(logs).values() for card in cards} == ours
