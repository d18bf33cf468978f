import json
import math

import numpy as np
import pyarrow as pa
import pytest
from findings import at_step, changed
from hypothesis import given
from hypothesis import strategies as st

from mlflow_stability.tracking.artifacts import (
    events_name,
    events_order,
    line_of,
    lines_in,
    read_line,
)
from mlflow_stability.tracking.read.run_record import PartBuffer, joined, part_name, part_order, read_part
from mlflow_stability.vocabulary.measured.signal import Signal, StepReading
from mlflow_stability.vocabulary.result import Action, Remedy, Severity, Source
from mlflow_stability.vocabulary.run import Closing, Gap, Note, Opening, Reset

numbers = st.floats(allow_nan=False)
texts = st.text(max_size=30)
result = st.one_of(
    st.builds(
        at_step,
        st.integers(0, 2**40),
        texts,
        st.sampled_from(Severity),
        texts,
        texts,
        st.dictionaries(texts, numbers),
        remedies=st.lists(texts.map(lambda text: Remedy(Action.IN_WORDS, text=text)), max_size=3).map(tuple),
        attempt=st.integers(0, 9),
        time=numbers,
    ),
    st.builds(Reset, st.integers(0), st.integers(0), texts, numbers),
    st.builds(Gap, st.integers(0), st.integers(0), texts, numbers),
    st.builds(Note, texts, texts, st.integers(0), numbers),
    st.builds(Closing, texts, texts, st.integers(0), numbers, st.booleans()),
    st.builds(Opening, texts, st.integers(1), numbers, texts, numbers),
)


@given(result)
def test_a_line_restores_its_record(expected):
    line = line_of(expected)
    assert line.count("\n") == 1
    assert read_line(line) == expected


def test_the_lines_of_a_file_are_those_that_were_written():
    many = [Note("a", "caf\x85 noir"), Note("b", "first\u2028second\u2029third\r\n"), Note("c", "")]
    assert [read_line(line) for line in lines_in("".join(map(line_of, many)))] == many
    assert lines_in("") == []


def test_a_line_of_a_later_version_is_ignored():
    assert read_line('{"record": "portent", "step": 1}') is None
    assert read_line('{"record": "reset", "step": 1, "attempt": 0, "reason": "", "mood": "new"}') == Reset(1, 0, "")


def test_a_line_says_whether_a_finding_was_judged_or_reported():
    finding = at_step(7, "overfitting", Severity.WARNING, "The validation loss rises.")
    assert '"judged": true' in line_of(finding)
    assert '"judged": false' in line_of(changed(finding, source=Source.REPORTED))


def test_a_line_of_an_earlier_version_says_the_same():
    line = '{"record": "event", "step": 7, "kind": "rollback", "severity": "INFO", "message": "", "live": %s}'
    assert read_line(line % "true").source is Source.REPORTED
    assert read_line(line % "false").source is Source.DETECTOR


def test_a_record_that_was_written_is_read_back_value_for_value(tmp_path):
    few = (Signal("loss"), Signal("grad_norm"))
    many = (Signal("loss"), Signal("grad_norm", "a"), Signal("grad_norm", "b"), Signal("α", "block 1"))
    readings = [
        StepReading(1, few, (1.5, math.inf), 0, 10.0),
        StepReading(2, many, (-math.inf, math.nan, 1e-320, 3.0), 0, 11.0),
        StepReading(2, few, (0.5, 0.25), 1, 12.0),
    ]
    buffer = PartBuffer()
    for reading in readings:
        buffer.add(reading, reading.step + 100)
    assert len(buffer) == 8
    buffer.write(tmp_path / "part.parquet", 3)
    record = read_part(tmp_path / "part.parquet")
    items = list(record.readings())
    assert [(r.step, r.attempt, r.time, r.signals) for r in items] == [
        (r.step + 100, r.attempt, r.time, r.signals) for r in readings
    ]
    np.testing.assert_array_equal([v for r in items for v in r.values], [v for r in readings for v in r.values])
    assert set(record.recording.tolist()) == {3}


def test_parts_are_joined_though_they_number_their_signals_differently(tmp_path):
    parts = []
    for number, signals in enumerate([(Signal("a"), Signal("b")), (Signal("b"), Signal("c"), Signal("a"))]):
        buffer = PartBuffer()
        buffer.add(StepReading(number, signals, tuple(ord(s.quantity) for s in signals)), number)
        buffer.write(tmp_path / f"{number}.parquet", 0)
        parts.append(read_part(tmp_path / f"{number}.parquet"))
    record = joined(parts)
    assert [record.signals[code].quantity for code in record.signal] == ["a", "b", "b", "c", "a"]
    assert [chr(int(value)) for value in record.value] == ["a", "b", "b", "c", "a"]


def test_files_are_read_in_the_order_in_which_they_were_written():
    names = [part_name(0, 9), part_name(0, 10**12), part_name(1, 0)]
    assert sorted(names, key=part_order) == names
    assert part_order("part-0.parquet.tmp") is None
    assert events_order(events_name(2)) == (2, 1)
    assert events_order(events_name(2, 10)) == (2, 11)
    assert events_order("notes.txt") is None


@pytest.mark.parametrize(
    "values",
    [
        {"record": "gap", "first_step": 1, "last_step": 2, "reason": "x", "time": 10**400},
        {"record": "note", "key": "a", "value": [["b"]]},
        {"record": "event", "step": 1, "kind": "loss_spike", "severity": "INFO", "message": 7, "facts": None},
        {"record": "event", "step": 1, "kind": ["x"], "severity": "INFO", "message": "x", "facts": None},
        {"record": "event", "step": 1, "kind": "x", "severity": "INFO", "message": "x", "place": 2, "facts": None},
    ],
)
def test_a_line_with_values_of_other_types_is_no_event(values):
    with pytest.raises(ValueError, match="Not an event line"):
        read_line(json.dumps(values))


def test_a_line_with_numbers_that_json_lacks_is_read_and_written_as_the_words_for_them():
    facts = {"kind": "learning_rate_jump", "learning_rate": -math.inf, "of_a_later_version": math.nan}
    values = {"record": "event", "step": 1, "kind": "learning_rate_jump", "severity": "INFO", "message": "x"}
    finding = read_line(json.dumps({**values, "facts": facts}))
    assert repr(read_line(line_of(finding))) == repr(finding)


def test_facts_with_numbers_that_make_no_sentence_are_no_event():
    facts = {"kind": "overfitting", "best": 0.0, "best_step": 1, "val_loss": 1.0, "loss": 1.0}
    facts |= {"loss_at_best": 1.0, "threshold": 1.1}
    values = {"record": "event", "step": 1, "kind": "overfitting", "severity": "INFO", "message": "x", "facts": facts}
    with pytest.raises(ValueError, match="overfitting with impossible numbers"):
        read_line(json.dumps(values))


@pytest.mark.slow
def test_a_part_with_any_bit_changed_is_read_or_refused(tmp_path):
    buffer = PartBuffer()
    for step in range(1, 20):
        signals = tuple(
            Signal(quantity, place) for quantity in ("loss", "norm") for place in ("", "a", "b")[: step % 4]
        )
        buffer.add(StepReading(step, signals, (1.0,) * len(signals)), step)
    file = tmp_path / part_name(0, 0)
    buffer.write(file, 0)
    content, refused = file.read_bytes(), 0
    for at in range(0, len(content), 4):
        for bit in range(8):
            file.write_bytes(content[:at] + bytes([content[at] ^ (1 << bit)]) + content[at + 1 :])
            try:
                read_part(file)
            except (ValueError, pa.ArrowException):
                refused += 1
    assert refused > len(content) / 4


@pytest.mark.parametrize("at", [-6, -20, -200])
def test_a_part_with_a_damaged_end_is_refused_as_one_with_damaged_values_is(tmp_path, at):
    buffer = PartBuffer()
    buffer.add(StepReading(1, (Signal("loss"),), (1.0,)), 1)
    file = tmp_path / part_name(0, 0)
    buffer.write(file, 0)
    content = bytearray(file.read_bytes())
    content[at : at + 2] = b"\xff\xff"
    file.write_bytes(content)
    with pytest.raises((ValueError, pa.ArrowException)):
        read_part(file)
