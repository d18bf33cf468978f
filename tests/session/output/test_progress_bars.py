"""Lines of ours on a terminal that shows progress bars: each in rows of its own, and the bars drawn again."""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import rich.logging
import rich.progress
from lightning.pytorch.callbacks.progress.tqdm_progress import Tqdm
from session.output.screen import shown_terminal
from tqdm.auto import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm
from transformers.utils import logging as transformers_logging

from mlflow_stability.session.terminal_lines import write_line

OURS = "mlflow-stability: loss 9 at step {}."


@contextmanager
def logging_to(*handlers: logging.Handler) -> Iterator[None]:
    """As in a script: pytest has handlers of its own during a test."""
    root = logging.getLogger()
    before, root.handlers = root.handlers, list(handlers)
    try:
        yield
    finally:
        root.handlers = before


def line(step: int) -> None:
    write_line(logging.WARNING, "loss %d at step %d.", 9, step)


def ours(rows: list[str]) -> list[str]:
    """Our rows, after a look at every row that has a word of ours in it."""
    result = [row for row in rows if "loss 9" in row]
    assert all(row.startswith("mlflow-stability: loss 9 at step ") for row in result), rows
    return result


def bar_rows(rows: list[str], title: str) -> list[str]:
    return [row for row in rows if title in row]


@pytest.mark.parametrize("make", [tqdm, Tqdm, transformers_logging.tqdm])
@pytest.mark.parametrize("to", ["stdout", "stderr"])
@pytest.mark.parametrize("handled", [False, True])
def test_a_bar_of_tqdm_is_drawn_again_below_the_line(
    make: Any, to: str, handled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shown_terminal(monkeypatch) as terminal:
        handlers = [logging.StreamHandler()] if handled else []
        with logging_to(*handlers), make(total=4, desc="train", file=getattr(sys, to), leave=True) as bar:
            for step in range(4):
                bar.update()
                line(step)
    rows = terminal.rows()
    assert ours(rows) == [OURS.format(step) for step in range(4)]
    (bar_row,) = bar_rows(rows, "train")
    assert "100%" in bar_row
    assert rows[-1] == bar_row


def test_nested_bars_stay_below_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    with shown_terminal(monkeypatch) as terminal, logging_to(), tqdm(total=2, desc="epochs") as outer:
        for epoch in range(2):
            with tqdm(total=3, desc=f"steps of {epoch}", leave=False) as inner:
                for step in range(3):
                    inner.update()
                    line(10 * epoch + step)
            outer.update()
    rows = terminal.rows()
    assert len(ours(rows)) == 6
    assert [row.split(":")[0] for row in rows[6:]] == ["epochs"]


def test_bars_of_two_streams_of_one_terminal_are_both_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The handler was made before the script put another object in the place of stderr."""
    with shown_terminal(monkeypatch) as terminal:
        handler = logging.StreamHandler(sys.stderr)
        with os.fdopen(os.dup(terminal.descriptor), "w", buffering=1) as another, logging_to(handler):
            monkeypatch.setattr(sys, "stderr", another)
            with tqdm(total=2, desc="train") as bar:
                bar.update()
                line(1)
                bar.update()
    rows = terminal.rows()
    assert ours(rows) == [OURS.format(1)]
    assert len(bar_rows(rows, "train")) == 1


def test_a_handler_that_prints_through_tqdm_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        shown_terminal(monkeypatch) as terminal,
        logging_to(logging.StreamHandler()),
        logging_redirect_tqdm(),
        tqdm(total=2, desc="train") as bar,
    ):
        bar.update()
        line(1)
        bar.update()
    rows = terminal.rows()
    assert ours(rows) == [OURS.format(1)]
    assert len(bar_rows(rows, "train")) == 1


def test_a_thread_that_logs_through_tqdm_and_one_of_ours_do_not_wait_for_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with (
        shown_terminal(monkeypatch) as terminal,
        logging_to(logging.StreamHandler()),
        logging_redirect_tqdm(),
        tqdm(total=200, desc="train", mininterval=0) as bar,
    ):
        other = threading.Thread(target=lambda: [line(step) for step in range(20)], daemon=True)
        other.start()
        for step in range(20):
            logging.getLogger("script").warning("epoch %d", step)
            bar.update()
        other.join(20)
        assert not other.is_alive()
    assert len(ours(terminal.rows())) == 20


@pytest.mark.parametrize("handled", [False, True])
def test_a_bar_of_rich_stays_below_the_line(handled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with shown_terminal(monkeypatch) as terminal:
        handlers = [logging.StreamHandler()] if handled else []
        console = rich.console.Console(file=sys.stdout)
        with logging_to(*handlers), rich.progress.Progress(console=console) as progress:
            task = progress.add_task("train", total=3)
            for step in range(3):
                progress.advance(task)
                progress.refresh()
                line(step)
    rows = terminal.rows()
    assert ours(rows) == [OURS.format(step) for step in range(3)]
    (bar_row,) = bar_rows(rows, "train")
    assert rows[-1] == bar_row


@pytest.mark.parametrize("end", ["", "\r"])
def test_a_line_that_the_script_draws_itself_is_not_written_into(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = "\r" if not end else ""
    with shown_terminal(monkeypatch) as terminal, logging_to():
        for step in range(3):
            print(f"{begin}[=== ] {step} of 3, a long text that is written over and over", end=end, flush=True)
            if step == 1:
                line(step)
        print()
        line(5)
    rows = terminal.rows()
    assert ours(rows) == [OURS.format(1), OURS.format(5)]
    assert re.fullmatch(r"\[=== \] 2 of 3, .* over and over", rows[-2])
    assert len(rows) == (3 if end else 4)


def test_an_unfinished_line_of_the_script_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    with shown_terminal(monkeypatch) as terminal, logging_to():
        for text in ("x", "epoch 3: ", "y" * 79, "z" * 80):
            print(text, end="", flush=True)
            line(1)
    assert [row for row in terminal.rows() if row not in ours([row])] == ["x", "epoch 3:", "y" * 79, "z" * 80]


def test_where_stderr_is_a_file_it_has_no_spaces_of_ours(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with logging_to(), tqdm(total=2, desc="train") as bar:
        bar.update()
        line(1)
    written = re.split("[\r\n]", capsys.readouterr().err)
    assert OURS.format(1) in written
    assert "train" in written[-2] or "train" in written[-1]


class BrokenBar(tqdm):  # type: ignore[type-arg]
    def clear(self, *_: Any, **__: Any) -> None:
        raise TypeError("clear() of this class takes something else")


def test_a_bar_that_fails_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with shown_terminal(monkeypatch) as terminal, logging_to(), BrokenBar(total=2, desc="train") as bar:
        bar.update()
        line(1)
    assert ours(terminal.rows()) == [OURS.format(1)]
