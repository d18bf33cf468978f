"""One reader feeds all sinks: each record to each of them, once and in order, decoded once while they keep up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from courier.staging import Training, reading
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlflow_stability.courier.sinks import sink as sinks
from mlflow_stability.courier.sinks.sink import JournalReader, Sink
from mlflow_stability.journal import journal
from mlflow_stability.journal.journal import JournalWriter, Record
from mlflow_stability.vocabulary.measured.signal import StepReading
from mlflow_stability.vocabulary.run import Opening

STEPS = 60


class Counting(Sink):
    """Takes at most `room` records between two calls of `flush`."""

    def __init__(self, until: int = 0, room: int = 1 << 30) -> None:
        super().__init__(until)
        self.taken: list[tuple[int, int]] = []
        """The step of each, and where its record begins."""
        self.room, self.waiting = room, 0

    @property
    def full(self) -> bool:
        return self.waiting >= self.room

    def take(self, record: Record) -> None:
        self.waiting += 1
        if isinstance(record, StepReading):
            self.taken.append((record.step, self.until))

    @property
    def steps(self) -> list[int]:
        return [step for step, _ in self.taken]


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Training]:
    training = Training(tmp_path / ".mlflow-stability", "sqlite:///never-opened.db")
    yield training
    training.end()


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps that were decoded."""
    steps: list[int] = []
    decode = journal.decode_step

    def counted(*line: object) -> StepReading:
        text = decode(*line)  # type: ignore[arg-type]
        steps.append(text.step)
        return text

    monkeypatch.setattr(journal, "decode_step", counted)
    monkeypatch.setattr(sinks, "READ_AT_ONCE", 7)
    return steps


def test_a_record_is_decoded_once_for_all_sinks(training: Training, decoded: list[int]) -> None:
    sinks = [Counting() for _ in range(4)]
    reader = JournalReader(training.journal.folder)
    reader.add(*sinks)
    for last in range(0, STEPS, 5):
        training.train(last + 1, last + 5)
        while reader.advance():
            pass
    assert all(sink.steps == list(range(1, STEPS + 1)) and not sink.more for sink in sinks)
    assert decoded == list(range(1, STEPS + 1))


def test_a_sink_that_is_full_delays_no_other_and_misses_nothing(training: Training, decoded: list[int]) -> None:
    quick, slow = Counting(), Counting(room=5)
    reader = JournalReader(training.journal.folder)
    reader.add(quick, slow)
    training.train(1, STEPS)
    while reader.advance():
        pass
    assert quick.steps == list(range(1, STEPS + 1))
    assert slow.more
    assert len(slow.steps) < 10
    while slow.more:
        slow.waiting = 0
        reader.advance()
    assert slow.steps == quick.steps
    decoded.clear()
    training.train(STEPS + 1, STEPS + 3)
    slow.waiting = 0
    reader.advance()
    assert decoded == [STEPS + 1, STEPS + 2, STEPS + 3], "they are not read together again"


def test_the_others_wait_for_a_sink_with_patience_so_that_nothing_is_decoded_twice(
    training: Training, decoded: list[int]
) -> None:
    quick, patient = Counting(), Counting(room=5)
    patient.patience = 60.0
    reader = JournalReader(training.journal.folder)
    reader.add(quick, patient)
    training.train(1, STEPS)
    while reader.advance():
        pass
    assert quick.steps == patient.steps
    assert len(quick.steps) < 10
    assert not reader.advance()
    assert patient.more, "it is still full, and was not asked"
    while patient.more:
        patient.waiting = 0
        reader.advance()
    assert quick.steps == patient.steps == decoded == list(range(1, STEPS + 1))


def test_sinks_that_come_later_get_all_and_join_the_others(training: Training, decoded: list[int]) -> None:
    reader, first = JournalReader(training.journal.folder), Counting()
    reader.add(first)
    training.train(1, STEPS)
    while reader.advance():
        pass
    late, later = Counting(), Counting(until=first.taken[40][1])
    reader.add(late, later)
    while reader.advance():
        pass
    assert late.taken == first.taken
    assert later.taken == first.taken[40:]
    decoded.clear()
    training.train(STEPS + 1, STEPS + 1)
    reader.advance()
    assert decoded == [STEPS + 1]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    turns=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 2), st.booleans()), min_size=1, max_size=40),
    rooms=st.tuples(*[st.integers(1, 30)] * 3),
)
def test_whoever_is_full_or_killed_when_gets_every_record_once(
    tmp_path_factory: pytest.TempPathFactory, turns: list[tuple[int, int, bool]], rooms: tuple[int, int, int]
) -> None:
    folder = tmp_path_factory.mktemp("journal") / "r"
    journal = JournalWriter(folder, Opening("r", 1, 0.0, "here", 0.0))
    reader, sinks, step = JournalReader(folder), [Counting(room=room) for room in rooms], 0
    reader.add(*sinks)
    for steps, emptied, killed in turns:
        for _ in range(steps):
            step += 1
            journal.append(reading(step))
        reader.advance()
        if killed:  # the next courier goes on where each sink was
            reader = JournalReader(folder)
            for sink in sinks:
                sink.more = True
            reader.add(*sinks)
        sinks[emptied].waiting = 0
    while any(sink.more for sink in sinks) or reader.advance():
        for sink in sinks:
            sink.waiting = 0
        reader.advance()
    assert all(sink.steps == list(range(1, step + 1)) for sink in sinks)
    journal.close()
