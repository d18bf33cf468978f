from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from mlflow_stability.session.process_end import EndingWatch, ThreadEnd


def ended(body: Callable[[ThreadEnd], None]) -> list[tuple[int, bool, BaseException | None]]:
    """What is recorded of a thread that runs this: in which thread, whether it was alive, and what it had caught."""
    errors: list[tuple[int, bool, BaseException | None]] = []
    watch = ThreadEnd(lambda error: errors.append((threading.get_ident(), thread.is_alive(), error)))
    idents: list[int] = []

    def run() -> None:
        idents.append(threading.get_ident())
        body(watch)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert [row[0] for row in errors] == idents
    return errors


def watched(watch: ThreadEnd) -> None:
    for _ in range(3):
        watch.watch()


def test_the_end_of_a_thread_is_reported_once_from_the_thread_itself() -> None:
    ((_, alive, error),) = ended(watched)
    assert alive
    assert error is None


def test_the_main_thread_is_not_watched() -> None:
    errors: list[BaseException | None] = []
    watched(ThreadEnd(errors.append))
    assert errors == []


def test_what_the_outermost_function_caught_and_keeps_ended_the_training() -> None:
    kept: list[BaseException] = []

    def failing(watch: ThreadEnd) -> None:
        watched(watch)
        raise ValueError("no data")

    def snapshots(watch: ThreadEnd) -> None:
        failing(watch)

    errors: list[BaseException | None] = []
    watch = ThreadEnd(errors.append)

    def run() -> None:
        try:
            snapshots(watch)
        except ValueError as error:
            kept.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert errors == kept


def test_what_the_training_itself_has_dealt_with_did_not_end_it() -> None:
    kept: list[BaseException] = []

    def body(watch: ThreadEnd) -> None:
        watched(watch)
        try:
            raise KeyError("a batch that is not there")
        except KeyError as error:
            kept.append(error)

    ((_, _, error),) = ended(body)
    assert error is None


def test_the_next_thread_is_watched_as_well() -> None:
    errors: list[BaseException | None] = []
    watch = ThreadEnd(errors.append)
    for count in (1, 2):
        thread = threading.Thread(target=watched, args=(watch,))
        thread.start()
        thread.join()
        assert len(errors) == count


def test_a_watch_that_is_taken_off_says_nothing_of_a_thread_that_lives_on() -> None:
    errors: list[BaseException | None] = []
    watch: ThreadEnd | None = ThreadEnd(errors.append)
    go_on, looked = threading.Event(), threading.Event()

    def run(own: ThreadEnd) -> None:
        own.watch()
        del own
        looked.set()
        go_on.wait(10)

    assert watch is not None
    thread = threading.Thread(target=run, args=(watch,))
    thread.start()
    looked.wait(10)
    watch = None
    assert errors == []
    go_on.set()
    thread.join()


def test_an_exception_that_ends_a_thread_is_how_its_training_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda text: None)
    ending, result = EndingWatch(), []
    ending.install()
    watch = ThreadEnd(lambda error: result.append(ending.of_thread(error)))

    def failing() -> None:
        watch.watch()
        raise ValueError("no data")

    thread = threading.Thread(target=failing)
    thread.start()
    thread.join()
    ending.remove()
    assert [(item.outcome, item.detail) for item in result] == [("crashed", "ValueError: no data")]
