from __future__ import annotations

import os

from mlflow_stability.session.run_binding import MOST_NAMED, EarlierRecordings


def test_the_recordings_of_a_run_are_named_in_order_and_each_once() -> None:
    earlier = EarlierRecordings()
    assert (earlier.last_step("run"), earlier.of_run("run")) == (0, [])
    earlier.ended("run", "a", 30)
    earlier.ended("other", "x", 99)
    earlier.ended("run", "b", 55)
    earlier.ended("run", "a", 30)
    assert (earlier.last_step("run"), earlier.of_run("run")) == (55, ["a", "b"])


def test_of_very_many_recordings_the_newest_are_named() -> None:
    earlier = EarlierRecordings()
    for number in range(3 * MOST_NAMED):
        earlier.ended("run", str(number), number)
    assert earlier.of_run("run") == [str(number) for number in range(2 * MOST_NAMED, 3 * MOST_NAMED)]


def test_a_forked_child_continues_nothing_of_its_parent() -> None:
    earlier = EarlierRecordings()
    earlier.ended("run", "a", 30)
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        os.write(writer, f"{earlier.last_step('run')} {earlier.of_run('run')}".encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 100) == b"0 []"
    os.close(reader)
    os.close(writer)
    assert earlier.last_step("run") == 30
