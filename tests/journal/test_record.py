from __future__ import annotations

import math
import sys
from dataclasses import replace

import pytest
from findings import at_step
from hypothesis import given
from hypothesis import strategies as st

from mlflow_stability.journal.journal import (
    BrokenLineError,
    decode,
    decode_layout,
    decode_step,
    encode,
    encode_layout,
    encode_step,
    frame,
    unframe,
)
from mlflow_stability.vocabulary.measured.signal import Signal, StepReading
from mlflow_stability.vocabulary.result import Action, Finding, Remedy, Severity, Source, Text
from mlflow_stability.vocabulary.run import Closing, Gap, Note, Opening, Reset

texts = st.text(st.characters(blacklist_categories=["Cs"]))
steps = st.integers(0, 2**53)
times = st.floats(0, 1e11)
values = st.floats(allow_nan=True, allow_infinity=True)
signals = st.builds(Signal, texts, texts)

records = st.one_of(
    st.builds(
        at_step,
        steps,
        texts,
        st.sampled_from(Severity),
        texts,
        texts,
        st.dictionaries(texts, values),
        remedies=st.lists(texts.map(lambda text: Remedy(Action.IN_WORDS, text=text))).map(tuple),
        attempt=st.integers(0, 9),
        time=times,
        judged=st.booleans(),
    ),
    st.builds(Note, texts, texts, steps, times),
    st.builds(Reset, steps, st.integers(0, 9), texts, times),
    st.builds(Gap, steps, steps, texts, times),
    st.builds(Closing, texts, texts, steps, times, st.booleans()),
    st.builds(
        Opening,
        texts,
        st.integers(1, 2**31),
        times,
        texts,
        times,
        st.none() | texts,
        tags=st.dictionaries(texts, texts),
    ),
)


def body(line: bytes) -> bytes:
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    return line[:-1]


@given(records)
def test_every_record_is_read_back_unchanged(record: object) -> None:
    back = decode(unframe(body(encode(record))))  # type: ignore[arg-type]
    if isinstance(record, Finding):
        assert isinstance(back, Finding)
        assert back.metrics == pytest.approx(record.metrics, rel=0, abs=0, nan_ok=True)
        back, record = replace(back, statements=(), facts=Text("")), replace(record, statements=(), facts=Text(""))
    assert back == record


@given(st.lists(st.tuples(signals, values), max_size=30), steps, times)
def test_every_reading_is_read_back_bit_for_bit(pairs: list[tuple[Signal, float]], step: int, time: float) -> None:
    reading = StepReading(step, tuple(item for item, _ in pairs), tuple(value for _, value in pairs), 3, time)
    number, names = decode_layout(unframe(body(encode_layout(7, reading.signals))))
    back = decode_step(unframe(body(encode_step(reading, 7))), {number: names})
    assert (back.step, back.signals, back.attempt, back.time) == (step, reading.signals, 3, time)
    for got, written in zip(back.values, reading.values, strict=True):
        assert got == written or (math.isnan(got) and math.isnan(written))
        assert math.copysign(1, got) == math.copysign(1, written) or math.isnan(written)


@pytest.mark.parametrize("value", [sys.float_info.max, -sys.float_info.max, sys.float_info.min, 5e-324, -0.0, 1e16])
def test_extreme_doubles_survive_next_to_each_other(value: float) -> None:
    reading = StepReading(1, (Signal("a"), Signal("b")), (value, value))
    back = decode_step(unframe(body(encode_step(reading, 0))), {0: reading.signals})
    assert back.values == reading.values


@given(records, st.data())
def test_a_line_with_one_wrong_byte_is_not_data(record: object, data: st.DataObject) -> None:
    line = bytearray(body(encode(record)))  # type: ignore[arg-type]
    place = data.draw(st.integers(0, len(line) - 1))
    line[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(BrokenLineError):
        unframe(bytes(line))


def test_text_that_is_no_valid_unicode_is_written_in_a_readable_form() -> None:
    opening = Opening("r", 1, 0.0, "host", 0.0, directory="/data/caf\udce9")
    back = decode(unframe(body(encode(opening))))
    assert isinstance(back, Opening)
    assert back.directory == "/data/caf\\udce9"


def test_a_reading_whose_names_were_lost_is_not_guessed() -> None:
    reading = StepReading(1, (Signal("loss"),), (1.0,))
    result = unframe(body(encode_step(reading, 4)))
    with pytest.raises(BrokenLineError):
        decode_step(result, {})
    with pytest.raises(BrokenLineError):
        decode_step(result, {4: (Signal("loss"), Signal("grad_norm"))})


def test_an_event_that_an_earlier_version_marked_as_live_was_reported_and_not_judged() -> None:
    line = b'["event",{"step":3,"kind":"rollback","severity":10,"message":"","live":%b}]'
    results, judged = (decode(unframe(body(frame(line % live)))) for live in (b"true", b"false"))
    assert isinstance(results, Finding)
    assert isinstance(judged, Finding)
    assert judged.source is not Source.REPORTED
    assert results.source is Source.REPORTED


def test_kinds_and_fields_of_a_later_version_are_ignored() -> None:
    assert decode(unframe(body(frame(b'["portrait",{"of":"a map"}]')))) is None
    assert decode(unframe(body(frame(b'["note",{"key":"k","value":"v","colour":"red"}]')))) == Note("k", "v")


@pytest.mark.parametrize("payload", [b"{}", b"[]", b"7", b"not json"])
def test_a_whole_line_that_is_no_record_is_not_data(payload: bytes) -> None:
    with pytest.raises(BrokenLineError):
        unframe(body(frame(payload)))
