from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from session.interrupting import Moments

from mlflow_stability.errors import JournalError
from mlflow_stability.journal.journal import (
    JournalFollower,
    JournalWriter,
    encode,
    encode_layout,
    encode_step,
    frame,
    read_journal,
)
from mlflow_stability.vocabulary.measured.signal import Signal, StepReading
from mlflow_stability.vocabulary.run import Closing, Note, Opening, Reset

LOSS, NORM = Signal("loss"), Signal("grad_norm", "blöck.3.注意")
OPENING = Opening("r1", 1, 0.0, "host", 0.0)


def reading(step: int, *signals: Signal) -> StepReading:
    signals = signals or (LOSS, NORM)
    return StepReading(step, signals, tuple(step + number / 8 for number in range(len(signals))), 0, float(step))


def a_journal(folder: Path, records: int = 8) -> tuple[Path, list[object]]:
    """A journal of several kinds of records, and what it says."""
    writer = JournalWriter(folder, OPENING)
    result: list[object] = [OPENING]
    for step in range(1, records + 1):
        record = Reset(step, 1, "asked", 0.0) if step == 5 else reading(step, *((LOSS,) if step % 3 else (LOSS, NORM)))
        assert writer.append(record)
        result.append(record)
    writer.append(Closing("finished"))
    writer.close()
    return folder / "journal", [*result, Closing("finished")]


def test_what_was_appended_is_what_is_read(tmp_path: Path) -> None:
    path, records = a_journal(tmp_path / "r")
    assert read_journal(path) == records


def test_folders_and_files_are_for_their_owner_only(tmp_path: Path) -> None:
    path, _ = a_journal(tmp_path / "r")
    modes = [stat.S_IMODE(item.stat().st_mode) for item in (path.parent, path, path.parent / "last_words.json")]
    assert modes == [0o700, 0o600, 0o600]


def test_reading_can_stop_at_any_place_and_a_fork_continues_from_there(tmp_path: Path) -> None:
    path, records = a_journal(tmp_path / "r")
    ends = [entry.end for entry in JournalFollower(path).read()]
    for number, end in enumerate(ends, 1):
        follower = JournalFollower(path)
        before = follower.read(until=end)
        after = follower.fork().read()
        assert ([item.record for item in before], [item.record for item in after]) == (
            records[:number],
            records[number:],
        )


def test_reading_in_small_portions_gives_the_same(tmp_path: Path) -> None:
    path, records = a_journal(tmp_path / "r")
    follower = JournalFollower(path)
    result: list[object] = []
    while entries := follower.read(limit=2):
        assert len(entries) <= 2
        result += [entry.record for entry in entries]
    assert result == records


def test_a_journal_cut_at_any_byte_gives_the_records_before_it(tmp_path: Path) -> None:
    path, records = a_journal(tmp_path / "r")
    whole = path.read_bytes()
    ends = [entry.end for entry in JournalFollower(path).read()]
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        follower = JournalFollower(path)
        assert [entry.record for entry in follower.read()] == records[: sum(end <= cut for end in ends)]
        path.write_bytes(whole)  # the rest of the line comes later
        assert [entry.record for entry in follower.read()] == records[sum(end <= cut for end in ends) :]
        assert follower.broken_lines == 0


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(torn=st.integers(0, 7), keep=st.floats(0, 1))
def test_a_line_cut_at_any_byte_loses_only_itself(
    tmp_path_factory: pytest.TempPathFactory, torn: int, keep: float
) -> None:
    folder = tmp_path_factory.mktemp("torn") / "r"
    writer = JournalWriter(folder, OPENING)
    records: list[object] = []
    missed = None
    for step in range(8):
        record = reading(step, *((LOSS,) if step % 3 else (LOSS, NORM)))
        if step == torn:
            before = os.fstat(writer._fd).st_size
            writer.append(record)
            whole = os.fstat(writer._fd).st_size - before
            kept = min(int(keep * whole), whole - 2)  # the disk took this much of it
            os.ftruncate(os.open(folder / "journal", os.O_WRONLY), before + kept)
            writer._torn = True
            writer._layouts.clear()
            missed = record
        else:
            assert writer.append(record)
            records.append(record)
    result = read_journal(folder / "journal")[1:]
    assert missed not in result
    assert result == records


def test_foreign_bytes_between_the_lines_are_counted_and_skipped(tmp_path: Path) -> None:
    path, records = a_journal(tmp_path / "r")
    lines = path.read_bytes().splitlines(keepends=True)
    rubbish = [b"\x00\xff\n", b"\n", b"deadbeef []\n", b"x" * 5000 + b"\n"]
    path.write_bytes(b"".join(item for line in lines for item in (line, rubbish[len(line) % 4])))
    follower = JournalFollower(path)
    assert [entry.record for entry in follower.read()] == records
    assert follower.broken_lines > 0


def test_a_journal_of_a_later_format_is_refused_with_advice(tmp_path: Path) -> None:
    (tmp_path / "journal").write_bytes(encode(Opening("r", 1, 0.0, "h", 0.0, schema=99)))
    with pytest.raises(JournalError, match="format 99; this version reads up to 1"):
        read_journal(tmp_path / "journal")


def test_a_forked_child_writes_nothing(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path / "r", OPENING)
    writer.append(reading(1))
    size = (tmp_path / "r" / "journal").stat().st_size
    child = os.fork()
    if child == 0:
        kept = writer.append(reading(2)) or writer.append(Closing("crashed"))
        writer.close()
        os._exit(1 if kept else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (tmp_path / "r" / "journal").stat().st_size == size
    assert writer.append(reading(2))
    assert [type(record).__name__ for record in read_journal(tmp_path / "r" / "journal")] == [
        "Opening",
        "StepReading",
        "StepReading",
    ]


def test_names_are_written_once_and_every_layout_is_found_again(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path / "r", OPENING)
    result = [reading(step, *((LOSS, NORM) if step % 2 else (NORM,))) for step in range(1, 50)]
    for record in result:
        writer.append(record)
    path = tmp_path / "r" / "journal"
    assert path.read_bytes().count("注意".encode()) == 2
    assert read_journal(path)[1:] == result


def test_a_million_observations_are_kept_in_seconds(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path / "r", OPENING)
    signals = tuple(Signal("grad_norm", f"blocks.{number}.attn") for number in range(200))
    values = tuple(1.0 / (number + 3) for number in range(200))
    began = time.process_time()
    for step in range(5000):
        writer.append(StepReading(step, signals, values, 0, 1.7e9))
    assert time.process_time() - began < 5
    assert writer.bytes_written < 100e6


def test_a_note_that_could_not_be_kept_claims_no_missing_steps(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path / "r", OPENING)
    writer.append(reading(1))
    writer._failed("No space left on device")
    assert not writer.append(Note("grad_norm", "before clipping"))
    writer._retry_at = 0.0  # ten seconds later, and there is space again
    assert writer.append(reading(2))
    assert read_journal(tmp_path / "r" / "journal") == [OPENING, reading(1), reading(2)]


def test_ctrl_c_while_a_line_is_written_loses_that_line_at_most(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path / "r", OPENING)
    kept, at = [], 0
    while True:
        at += 1
        moments, record = Moments(at), reading(3 * at, Signal(f"loss_{at}"))
        interrupted = True
        try:
            with moments.counted():
                writer.append(record)
            interrupted = False
        except KeyboardInterrupt:
            pass
        kept += [reading(3 * at + 1, Signal(f"loss_{at}")), reading(3 * at + 2, Signal(f"loss_{at}"))]
        assert all(writer.append(item) for item in kept[-2:])
        if not interrupted:
            break
    follower = JournalFollower(tmp_path / "r" / "journal")
    records = [item.record for item in follower.read()]
    assert at > 10
    assert follower.broken_lines == 0
    assert [value for value in records if value in kept] == kept


@pytest.mark.parametrize(
    "payload",
    [
        b'["step",1]',
        b'["step","x",0,1.0,0,[1.0]]',
        b'["step",1,0,1.0,{},[1.0]]',
        b'["layout",0,7]',
        b'["note",{"value":"without a key"}]',
        b'["event",{"step":1}]',
        b'["open","x"]',
        b"[[]]",
    ],
)
def test_a_whole_line_without_the_form_of_a_record_is_skipped_and_counted(tmp_path: Path, payload: bytes) -> None:
    file = tmp_path / "journal"
    file.write_bytes(
        encode(OPENING) + encode_layout(0, (LOSS,)) + frame(payload) + encode_step(reading(1, LOSS), 0) + frame(payload)
    )
    follower = JournalFollower(file)
    assert [entry.record for entry in follower.read()] == [OPENING, reading(1, LOSS)]
    assert follower.broken_lines == 2
