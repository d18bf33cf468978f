from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlflow_stability.journal.journal import JournalWriter, read_journal
from mlflow_stability.kinds.panel import Panel, replay
from mlflow_stability.tracking.read.run_record import PartBuffer, read_part
from mlflow_stability.vocabulary.measured.signal import Signal, StepReading
from mlflow_stability.vocabulary.result import Finding
from mlflow_stability.vocabulary.run import Opening, Reset

QUANTITIES = (
    "skipped_steps",
    "loss",
    "val_loss",
    "grad_norm",
    "learning_rate",
    "loss_scale",
    "step_time",
    "update_ratio",
    "param_norm",
    "adam_rms",
    "memory_share",
    "mfu",
    "tokens_per_second",
)
PLACES = ("", "track_1", "blocks.0.attn")
SIGNALS = tuple(Signal(quantity, place) for place in PLACES for quantity in QUANTITIES)
LARGE = 1e308

starts = st.sampled_from([0.0, 1.0, 2.5, -1.0, 1e-9, 1e-320, 300.0, LARGE, -LARGE]) | st.floats(-10, 10)
odd = st.sampled_from([math.nan, math.inf, -math.inf, 0.0, LARGE, 50.0])
# A stretch: which signals, how many steps, where they begin, how they grow, how they scatter, what breaks in where.
stretches = st.fixed_dictionaries(
    {
        "signals": st.lists(st.sampled_from(SIGNALS), min_size=1, max_size=5, unique=True),
        "steps": st.integers(1, 90),
        "start": starts,
        "slope": st.sampled_from([0.0, 0.0, 0.01, -0.01, 1.0]),
        "growth": st.sampled_from([1.0, 1.0, 0.99, 1.05, 4.0, -1.0]),
        "scatter": st.sampled_from([0.0, 0.01, 0.3, 5.0]),
        "odd": st.lists(st.tuples(st.integers(0, 89), odd), max_size=3),
        "before": st.sampled_from(["", "", "reset", "gap", "attempt", "back"]),
    }
)


def values_of(stretch: dict[str, object], seed: int) -> list[tuple[float, ...]]:
    import random

    dice = random.Random(seed)
    level, rows = float(stretch["start"]), []  # type: ignore[arg-type]
    breaks = dict(stretch["odd"])  # type: ignore[call-overload]
    for number in range(int(stretch["steps"])):  # type: ignore[call-overload]
        row = [level + stretch["scatter"] * dice.gauss(0, 1) for _ in stretch["signals"]]  # type: ignore[operator]
        if number in breaks:
            row[dice.randrange(len(row))] = breaks[number]
        rows.append(tuple(row))
        level = level * stretch["growth"] + stretch["slope"]  # type: ignore[operator]
    return rows


def records_of(plan: list[dict[str, object]]) -> list[StepReading | Reset]:
    records: list[StepReading | Reset] = []
    step = attempt = 0
    for number, stretch in enumerate(plan):
        match stretch["before"]:
            case "reset":
                records.append(Reset(step, attempt, "asked"))
            case "gap":
                step += 1000
            case "attempt":
                attempt += 1
            case "back":
                step = max(0, step - 50)
        signals = tuple(stretch["signals"])  # type: ignore[arg-type]
        for row in values_of(stretch, number):
            step += 1
            records.append(StepReading(step, signals, row, attempt, float(step)))
    return records


@pytest.mark.slow
@settings(max_examples=150)
@given(st.lists(stretches, max_size=8))
def test_what_was_judged_live_is_what_the_journal_and_the_record_give_again(
    tmp_path_factory: pytest.TempPathFactory, plan: list[dict[str, object]]
) -> None:
    folder = tmp_path_factory.mktemp("replay")
    writer, panel = JournalWriter(folder / "r", Opening("r", 1, 0.0, "h", 0.0)), Panel()
    live: list[Finding] = []
    for record in records_of(plan):
        writer.append(record)
        if isinstance(record, Reset):
            panel.reset()
            continue
        for event in panel.judge(record):
            live.append(event)
            writer.append(event)
    writer.close()
    kept = read_journal(folder / "r" / "journal")
    assert repr(replay(kept)) == repr(live)  # repr, for NaN equals nothing
    assert repr([finding for finding in kept if isinstance(finding, Finding)]) == repr(live)
    assert repr(replay(through_parquet(kept, folder))) == repr(live)


def through_parquet(records: list[object], folder: Path) -> list[object]:
    """The readings as the Parquet record gives them back, with the resets where they were."""
    result: list[object] = []
    part = PartBuffer()

    def flush() -> None:
        if len(part):
            part.write(folder / "part.parquet", 1)
            result.extend(read_part(folder / "part.parquet").readings())
            part.clear()

    for record in records:
        if isinstance(record, StepReading):
            part.add(record, record.step)
        elif isinstance(record, Reset):
            flush()
            result.append(record)
    flush()
    return result


@settings(max_examples=50)
@given(st.floats(1e-6, 1e6), st.floats(1e-6, 1e4), st.integers(1, 900))
def test_a_run_in_which_nothing_changes_is_silent(loss: float, norm: float, steps: int) -> None:
    layout = (Signal("loss"), Signal("grad_norm"), Signal("learning_rate"), Signal("step_time"))
    norm = max(norm, 1e-4)
    assert replay(StepReading(step, layout, (loss, norm, 1e-3, 0.1)) for step in range(steps)) == []
