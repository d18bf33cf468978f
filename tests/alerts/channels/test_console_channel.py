from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mlflow_stability.alerts.channels import ChannelError, ConsoleChannel
from mlflow_stability.alerts.message import TEST_MESSAGE

WHERE = "from mlflow_stability.alerts.channels import console_file; print(console_file())"


def test_a_file_that_errors_go_to_is_written_to_by_its_path(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    with log.open("wb") as errors:
        finished = subprocess.run([sys.executable, "-c", WHERE], stdout=subprocess.PIPE, stderr=errors, check=True)
    assert finished.stdout.decode().strip() == str(log)
    ConsoleChannel(str(log), lambda _: None).send(TEST_MESSAGE)
    assert log.read_text().startswith("mlflow-stability alert: INFO: test message\n")


def test_a_pipe_is_not_kept_open_but_written_to_by_the_training() -> None:
    finished = subprocess.run([sys.executable, "-c", WHERE], capture_output=True, check=True)
    assert finished.stdout.decode().strip() == ""
    relayed: list[str] = []
    ConsoleChannel("", relayed.append).send(TEST_MESSAGE)
    assert "test message" in relayed[0]


def test_a_terminal_is_written_to() -> None:
    master, terminal = os.openpty()
    try:
        ConsoleChannel(os.ttyname(terminal), lambda _: None).send(TEST_MESSAGE)
        assert b"test message" in os.read(master, 1000)
    finally:
        os.close(master)
        os.close(terminal)


def test_a_terminal_that_was_closed_is_an_error() -> None:
    with pytest.raises(ChannelError, match="No such file"):
        ConsoleChannel("/dev/pts/99999", lambda _: None).send(TEST_MESSAGE)
