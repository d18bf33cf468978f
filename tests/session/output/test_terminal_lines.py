from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO

import pytest

from mlflow_stability.session.terminal_lines import ProgressLine
from mlflow_stability.session.training_output import (
    TrainingOutput,
)

LOGGER = logging.getLogger("mlflow_stability")


@contextmanager
def no_logging_set_up() -> Iterator[None]:
    """As in a script: pytest has handlers of its own during a test."""
    root = logging.getLogger()
    handlers, root.handlers = root.handlers, []
    try:
        yield
    finally:
        root.handlers = handlers


def test_without_logging_of_the_scripts_own_lines_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    output = TrainingOutput(silent=False)
    with no_logging_set_up():
        output.info("%d steps", 3)
        output.warn("once")
    assert capsys.readouterr().err == "mlflow-stability: 3 steps\nmlflow-stability: once\n"
    assert (LOGGER.level, LOGGER.handlers) == (logging.NOTSET, [])


def test_with_logging_of_the_scripts_own_they_go_there_and_nowhere_else(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    TrainingOutput(silent=False).info("%d steps", 3)
    assert caplog.messages == ["3 steps"]
    assert capsys.readouterr().err == ""


def test_a_level_that_the_script_has_chosen_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    output = TrainingOutput(silent=False)
    with caplog.at_level(logging.WARNING, "mlflow_stability"):
        output.info("not this")
        output.warn("this")
    assert caplog.messages == ["this"]


def test_a_closed_stderr_raises_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = StringIO()
    closed.close()
    for stream in (closed, None):
        monkeypatch.setattr(sys, "stderr", stream)
        with no_logging_set_up():
            TrainingOutput(silent=False).warn("nobody hears it")


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_one_line_that_makes_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, now = Terminal(), [100.0]
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    line = ProgressLine()
    line("metrics")
    assert terminal.getvalue() == "", "nothing for a wait that hardly anybody notices"
    for now[0] in (102.0, 102.1, 103.0):
        line("metrics, pictures")
    assert terminal.getvalue().count("\r") == 2
    assert terminal.getvalue().endswith("mlflow-stability: delivering to MLflow: metrics, pictures (3 s)")
    with no_logging_set_up():
        TrainingOutput(silent=False).info("a line")
    assert terminal.getvalue().endswith(" \rmlflow-stability: a line\n")


@pytest.mark.parametrize("silent", [True, False])
def test_there_is_no_progress_line_if_silent_or_without_a_terminal(
    silent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = Terminal() if silent else StringIO()
    monkeypatch.setattr(sys, "stderr", shown)
    line = ProgressLine(silent)
    monkeypatch.setattr("time.monotonic", lambda: 1e9)
    line("metrics")
    assert shown.getvalue() == ""


@pytest.mark.parametrize(
    ("form", "before"),
    [
        ("%(message)s", "mlflow-stability: "),
        ("%(asctime)s %(levelname)s - %(message)s", " WARNING - mlflow-stability: "),
        ("%(levelname)s:%(filename)s:%(message)s", "WARNING:terminal_lines.py:mlflow-stability: "),
        ("[%(name)s] %(message)s", "[mlflow_stability] "),
        ("{name} | {message}", "mlflow_stability | "),
    ],
)
def test_a_line_names_its_sender_once_whatever_the_format_is(form: str, before: str) -> None:
    written = StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(logging.Formatter(form, style="{" if "{" in form else "%"))
    with no_logging_set_up():
        logging.getLogger().addHandler(handler)
        TrainingOutput(silent=False).warn("%d %% of memory", 97)
    line = written.getvalue()
    assert line.endswith(f"{before}97 % of memory\n")
    assert line.lower().replace("_", "-").count("mlflow-stability") == 1


def test_a_filter_and_a_level_of_the_scripts_handlers_hold() -> None:
    kept, filtered = StringIO(), StringIO()
    handlers = [logging.StreamHandler(kept), logging.StreamHandler(filtered)]
    handlers[0].setLevel(logging.WARNING)
    handlers[1].addFilter(lambda record: "steps" not in record.getMessage())
    with no_logging_set_up():
        logging.getLogger().handlers = list(handlers)
        output = TrainingOutput(silent=False)
        output.info("%d steps", 3)
        output.warn("4 steps")
    assert (kept.getvalue(), filtered.getvalue()) == ("mlflow-stability: 4 steps\n", "")
