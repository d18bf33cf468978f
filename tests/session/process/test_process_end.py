from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from io import StringIO

import pytest

from mlflow_stability.errors import TrainingDiverged
from mlflow_stability.session.process_end import EndingWatch, closing_of


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch) -> Iterator[EndingWatch]:
    monkeypatch.setattr(sys, "excepthook", lambda *_: None)
    watch = EndingWatch()
    watch.install()
    yield watch
    watch.remove()


@pytest.mark.parametrize(
    ("error", "outcome", "detail"),
    [
        (ValueError("no data"), "crashed", "ValueError: no data"),
        (TrainingDiverged("Stopped. Do this.", "loss is 60"), "stopped", "loss is 60"),
        (TrainingDiverged("Stopped."), "stopped", "Stopped."),
        (KeyboardInterrupt(), "interrupted", "Ctrl-C"),
        (MemoryError("big"), "out_of_memory", "MemoryError: big"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: 8 GB"), "out_of_memory", None),
        (RuntimeError("shapes do not match"), "crashed", "RuntimeError: shapes do not match"),
        (
            RuntimeError("not \x1b[1mloaded\x1b[0m:\n\tMissing keys"),
            "crashed",
            "RuntimeError: not loaded: Missing keys",
        ),
        (type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory"), "out_of_memory", None),
    ],
)
def test_what_an_exception_means_for_the_run(error: BaseException, outcome: str, detail: str | None) -> None:
    closing = closing_of(error)
    assert closing.outcome == outcome
    assert detail is None or closing.detail == detail


@pytest.mark.slow
def test_a_very_long_message_is_cut() -> None:
    assert len(closing_of(ValueError("x" * 10_000)).detail) == 500


def test_an_uncaught_exception_is_detected(ending: EndingWatch) -> None:
    sys.excepthook(ValueError, ValueError("no data"), None)
    assert ending.closing.outcome == "crashed"


@pytest.mark.parametrize(
    ("status", "outcome"), [((), "finished"), ((0,), "finished"), ((3,), "exited"), (("oh",), "exited")]
)
def test_sys_exit_exits_as_usual_and_is_detected(ending: EndingWatch, status: tuple[object, ...], outcome: str) -> None:
    with pytest.raises(SystemExit) as left:
        sys.exit(*status)
    assert left.value.args == status
    assert ending.closing.outcome == outcome


@pytest.mark.parametrize(("status", "outcome"), [((), "finished"), ((0,), "finished"), ((3,), "exited")])
def test_the_exit_of_python_itself_is_detected_too(
    ending: EndingWatch, status: tuple[object, ...], outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", StringIO())  # it closes the standard input
    with pytest.raises(SystemExit) as left:
        exit(*status)
    assert left.value.code == (status[0] if status else None)
    assert ending.closing.outcome == outcome


@pytest.mark.parametrize("by_sys", [True, False])
def test_an_exit_after_ctrl_c_that_was_caught_is_an_interruption(
    by_sys: bool, ending: EndingWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", StringIO())
    leave = sys.exit if by_sys else exit
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        with pytest.raises(SystemExit):
            leave(1)
    assert ending.closing.outcome == "interrupted"


def test_a_caught_exit_is_not_the_end_of_the_process(ending: EndingWatch) -> None:
    with pytest.raises(SystemExit):
        sys.exit(3)
    ending.still_running()
    assert ending.closing.outcome == "finished"


def test_sys_is_unchanged_afterwards() -> None:
    def hooks() -> tuple[object, ...]:
        return sys.excepthook, sys.exit, threading.excepthook, type(exit).__call__, repr(exit)

    before = hooks()
    watch = EndingWatch()
    for _ in range(2):
        watch.install()
    assert sys.exit is not before[1]
    watch.remove()
    assert hooks() == before


def test_a_later_hook_of_other_code_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    watch = EndingWatch()
    watch.install()
    ours = sys.excepthook

    def theirs(*args: object) -> None:
        ours(*args)  # type: ignore[arg-type]

    sys.excepthook = theirs
    watch.remove()
    assert sys.excepthook is theirs
