from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from courier.staging import Training
from servers.alert_services import ChatServer

from mlflow_stability.cli.main import run
from mlflow_stability.probes.hooks import torch_api

HERE = Path(".mlflow-stability")


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def silent_address() -> Iterator[str]:
    """A server that takes calls and never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(8)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def test_a_place_where_all_is_well_gives_code_0(sqlite_uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--tracking-uri", sqlite_uri]) == 0
    printed = capsys.readouterr().out
    assert "All checks passed." in printed
    assert torch.__version__ in printed
    assert not HERE.exists()


def test_checkpoints_of_a_training_that_was_delivered_are_no_trouble(
    sqlite_uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (HERE / "checkpoints" / "8f7d983df20a").mkdir(parents=True)
    assert run(["doctor", "--tracking-uri", sqlite_uri]) == 0
    assert "All checks passed." in capsys.readouterr().out


def test_a_store_that_mlflow_has_not_made_yet_is_fine_and_is_not_made(tmp_path: Path) -> None:
    assert run(["doctor"]) == 0
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_is_away_gives_code_2_and_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--tracking-uri", "http://me:hunter2@127.0.0.1:9"]) == 2
    text = " ".join(capsys.readouterr().out.split())
    assert "tracking server http://127.0.0.1:9 does not answer: Connection refused" in text
    assert "the journal keeps the data" in text
    assert "hunter2" not in text


@pytest.mark.slow
def test_a_store_that_never_answers_is_given_five_seconds(silent_address: str) -> None:
    run(["doctor"])  # MLflow is loaded by then
    began = time.monotonic()
    assert run(["doctor", "--tracking-uri", silent_address]) == 2
    assert time.monotonic() - began < 10


def test_a_journal_that_was_left_behind_gives_code_1_and_names_sync(
    sqlite_uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training = Training(tmp_path / HERE, sqlite_uri)
    training.train(1, 20)
    training.end()
    assert run(["doctor", "--tracking-uri", sqlite_uri]) == 1
    printed = capsys.readouterr().out
    assert f"{training.folder.name} was left behind" in printed
    assert "mlflow-stability sync" in printed


def test_a_training_in_progress_is_nothing_to_worry_about(
    sqlite_uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training = Training(tmp_path / HERE, sqlite_uri)
    training.train(1, 20)
    try:
        assert run(["doctor", "--tracking-uri", sqlite_uri]) == 0
    finally:
        training.end()
    assert f"{training.folder.name}: training and courier run" in capsys.readouterr().out


def test_a_journal_directory_that_cannot_be_made_gives_code_2(
    sqlite_uri: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a_file").touch()
    monkeypatch.setenv("MLFLOW_STABILITY_JOURNAL_DIR", str(tmp_path / "a_file" / "journals"))
    assert run(["doctor", "--tracking-uri", sqlite_uri]) == 2
    assert "cannot be written to" in capsys.readouterr().out


def test_the_kill_switch_is_seen(
    sqlite_uri: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_STABILITY_DISABLE", "1")
    assert run(["doctor", "--tracking-uri", sqlite_uri]) == 1
    assert "MLFLOW_STABILITY_DISABLE is set" in capsys.readouterr().out


def test_this_torch_has_every_symbol() -> None:
    assert torch_api.missing(load=True) == {}


def test_doctor_says_what_is_off_without_a_symbol(
    sqlite_uri: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lacking = replace(torch_api.SYMBOLS["get_total_norm"], where="torch.nn.utils.clip_grad:_gone")
    monkeypatch.setitem(torch_api.SYMBOLS, "get_total_norm", lacking)
    torch_api.forget()
    try:
        assert run(["doctor", "--tracking-uri", sqlite_uri]) == 2
    finally:
        torch_api.forget()
    text = " ".join(capsys.readouterr().out.split())
    assert "lacks torch.nn.utils.clip_grad:_gone" in text
    assert "Off without it: the gradient norm before clipping." in text


def test_alerts_are_tried_with_a_message_to_every_channel(
    sqlite_uri: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with ChatServer() as server:
        url = f"json://me:hunter2hunter2@{server.address}/hook"
        monkeypatch.setenv("MLFLOW_STABILITY_ALERTS", url)
        assert run(["doctor", "--tracking-uri", sqlite_uri, "--alerts"]) == 0
        assert [item.body["title"] for item in server.taken] == ["INFO: test message"]
        assert "JSON: a test message was sent" in capsys.readouterr().out
        server.answers = [500]
        assert run(["doctor", "--tracking-uri", sqlite_uri, "--alerts"]) == 2
    text = " ".join(capsys.readouterr().out.split())
    assert "error=500" in text
    assert "hunter2" not in text


def test_alerts_without_a_channel_say_what_to_set(sqlite_uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--tracking-uri", sqlite_uri, "--alerts"]) == 1
    assert "export MLFLOW_STABILITY_ALERTS=" in capsys.readouterr().out
