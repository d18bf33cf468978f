from __future__ import annotations

import numpy as np
from findings import at_step

from mlflow_stability.tracking.read.run_record import MIN_VALUES, STEPS_AROUND, RecordThinner, RunRecord, joined
from mlflow_stability.vocabulary.measured.signal import Signal
from mlflow_stability.vocabulary.result import Finding, Severity

SIGNALS = (Signal("loss"), Signal("grad_norm"), Signal("grad_norm", "block.0"))


def part(first: int, last: int) -> RunRecord:
    """Two signals at every step, and one of a layer at every hundredth."""
    steps, codes = [], []
    for step in range(first, last + 1):
        these = (0, 1, 2) if step % 100 == 0 else (0, 1)
        steps += [step] * len(these)
        codes += these
    step, code = np.array(steps, np.int64), np.array(codes, np.int32)
    zero = np.zeros(len(step), np.int32)
    return RunRecord(SIGNALS, zero, zero, step, step / 10.0, code, step + code / 10.0)


PARTS = [part(1 + begin, 20_000 + begin) for begin in range(0, 200_000, 20_000)]


def thinned(most: int, *events: Finding) -> RunRecord:
    thinner = RecordThinner(most, events)
    for item in PARTS:
        thinner.add(item)
    result = thinner.record()
    assert result is not None
    return result


def steps_of(record: RunRecord, code: int) -> list[int]:
    return [int(step) for step in record.step[record.signal == code]]


def test_a_record_that_fits_is_whole() -> None:
    record = thinned(10**6)
    assert (record.every, len(record)) == (1, len(joined(PARTS)))


def test_a_long_record_is_bounded_and_says_how_much_of_it_is_there() -> None:
    record = thinned(50_000)
    assert 20_000 < len(record) <= 50_000
    assert record.every == 16
    assert np.array_equal(record.value, record.step + record.signal / 10.0)
    assert steps_of(record, 0) == steps_of(record, 1), "what was measured together stays together"
    assert sorted(set(record.step.tolist())) == list(dict.fromkeys(record.step.tolist()))


def test_what_is_measured_rarely_is_kept_whole() -> None:
    assert MIN_VALUES > 20_000 // 100
    assert steps_of(thinned(50_000), 2) == list(range(100, 200_001, 100))


def test_both_ends_and_the_surroundings_of_events_are_kept_whole() -> None:
    record = thinned(50_000, at_step(123_456, "loss_spike", Severity.WARNING, "It rose."))
    kept = set(steps_of(record, 0))
    for first in (1, 123_456 - STEPS_AROUND, 200_001 - STEPS_AROUND):
        assert set(range(first, first + STEPS_AROUND)) <= kept


def test_many_events_do_not_prevent_thinning() -> None:
    storm = [at_step(step, "loss_spike", Severity.WARNING, "It rose.") for step in range(1, 200_000, 50)]
    assert len(thinned(50_000, *storm)) <= 50_000
