"""A file size limit replaces a full disk: writes come short, then fail."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from mlflow_stability.journal.journal import (
    FINAL_STATUS,
    JournalFollower,
    JournalWriter,
    closing_from_page,
    read_journal,
)
from mlflow_stability.journal.layout import read_page
from mlflow_stability.vocabulary.measured.signal import Signal, StepReading
from mlflow_stability.vocabulary.run import Closing, Gap, Opening

OPENING = Opening("r1", 1, 0.0, "host", 0.0)
SIGNALS = (Signal("loss"), Signal("grad_norm"))


def reading(step: int) -> StepReading:
    return StepReading(step, SIGNALS, (step / 8, step / 3), 0, float(step))


def in_a_child(body: Callable[[], None]) -> None:
    """Run it where a limit does not bind this process."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            body()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def limit(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def test_the_end_of_a_training_with_a_long_error_is_kept_on_a_full_disk(tmp_path: Path) -> None:
    folder = tmp_path / "r"

    def training() -> None:
        writer = JournalWriter(folder, OPENING)
        limit(5000)
        while writer.append(reading(1)):
            continue
        assert not writer.append(Closing("crashed", "ValueError: " + "\x01é" * 20_000, step=499))

    in_a_child(training)
    closing = closing_from_page(read_page(folder / FINAL_STATUS))
    assert closing is not None
    assert (closing.outcome, closing.step) == ("crashed", 499)
    assert closing.detail.startswith("ValueError: \x01é")
    assert read_page(folder / FINAL_STATUS)["reason"] == "No space left on device"


def test_a_full_disk_stops_the_recording_and_leaves_earlier_records_readable(tmp_path: Path) -> None:
    folder = tmp_path / "r"

    def training() -> None:
        writer = JournalWriter(folder, OPENING)
        limit(5000)
        kept = [writer.append(reading(step)) for step in range(1, 500)]
        assert kept.index(False) > 10
        assert not any(kept[kept.index(False) :])
        assert writer.failure == "No space left on device"
        assert not writer.append(Closing("crashed", "ValueError: x", step=499))

    in_a_child(training)
    follower = JournalFollower(folder / "journal")
    records = [entry.record for entry in follower.read()]
    last = len(records) - 1
    assert records == [OPENING, *map(reading, range(1, last + 1))]
    words = read_page(folder / FINAL_STATUS)
    assert words["stopped_at"] == last + 1
    assert words["reason"] == "No space left on device"
    assert words["closing"]["outcome"] == "crashed"


def test_after_space_is_freed_the_record_says_what_is_missing_and_continues(tmp_path: Path) -> None:
    folder = tmp_path / "r"

    def training() -> None:
        writer = JournalWriter(folder, OPENING)
        limit(5000)
        for step in range(1, 500):
            writer.append(reading(step))
        limit(50_000)
        assert not writer.append(reading(500))  # it is not tried at every step
        writer._retry_at = 0.0
        assert writer.append(reading(501))
        assert writer.failure == ""
        assert writer.append(reading(502))

    in_a_child(training)
    records = read_journal(folder / "journal")
    gap = next(record for record in records if isinstance(record, Gap))
    steps = [record.step for record in records if isinstance(record, StepReading)]
    assert sorted({*steps, *range(gap.first_step, gap.last_step + 1)}) == list(range(1, 503))
    assert len(steps) + gap.last_step - gap.first_step + 1 == 502
    assert records[-2:] == [reading(501), reading(502)]
    assert gap.last_step == 500
    assert read_page(folder / FINAL_STATUS)["stopped_at"] is None


@pytest.mark.parametrize("page", [{}, {"closing": {}}, {"closing": {"step": 3}}, {"closing": ["finished"]}])
def test_a_page_without_an_outcome_has_no_closing(page: dict[str, object]) -> None:
    assert closing_from_page(page) is None
