from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from importers.reading import curve, history
from importers.test_open_log import read_or_refused
from importers.wandb_writer import (
    BLOCK,
    IDENTITY,
    SAMPLE,
    axis,
    config,
    ended,
    field,
    printed,
    wandb_file,
)
from importers.wandb_writer import history as logged

from mlflow_stability.errors import UnreadableLogError
from mlflow_stability.importers.open_log import read


def falling(steps: int, width: int = 1) -> list[bytes]:
    return [logged(n, {"loss": str(8 / (n + 1)), "note": f'"{"x" * width}"', "_step": str(n)}) for n in range(steps)]


def test_a_file_that_wandb_itself_wrote_is_read() -> None:
    (run,) = read(SAMPLE)
    assert (run.format, run.name, run.outcome) == ("wandb", "a small run", "finished")
    assert run.params == {"lr": "0.1", "model.width": "8"}
    assert curve(run, "val.loss") == [(3, 0.75), (7, 0.375), (11, 0.25)]
    loss = curve(run, "train/loss")
    assert [step for step, _ in loss] == list(range(12))
    assert math.isnan(loss[7][1])
    assert loss[8][1] == math.inf
    assert loss[9][1] == pytest.approx(0.6)
    assert curve(run, "late") == [(20, 1.0)]
    assert not run.notes


def test_a_cross_validation_in_one_run_has_a_training_for_each_fold(tmp_path: Path) -> None:
    folds = [(fold, epoch) for fold in range(3) for epoch in range(1, 9)]
    rows = [logged(n, {"loss": str(fold + 1 / epoch), "epoch": str(epoch)}) for n, (fold, epoch) in enumerate(folds)]
    run = history(tmp_path, wandb_file(rows))
    assert [step for step, _ in curve(run, "loss")] == [*range(8)] * 3
    assert any("epochs begin again" in note.lower() for note in run.notes)


def test_values_are_read_in_every_way_that_wandb_ever_wrote_them(tmp_path: Path) -> None:
    def row(n: int) -> bytes:
        items = (
            field(2, b"nested") + field(2, b"loss") + field(16, b"0.5"),
            field(1, b"old nested") + field(16, b'{"loss": 0.5, "picture": {"_type": "image-file", "width": 3}}'),
            field(1, b"typed") + field(6, 0.5),
            field(1, b"whole") + field(5, n << 1),
            field(1, b"quoted") + field(16, b'"NaN"'),
            field(1, b"flag") + field(16, b"true"),
            field(1, b"histogram") + field(16, b'{"_type": "histogram", "values": [1]}'),
            field(1, b"broken") + field(16, b"{"),
        )
        return field(2, b"".join(field(1, item) for item in items) + field(2, field(1, n)))

    run = history(tmp_path, wandb_file(row(n) for n in range(2)))
    assert {metric.name for metric in run.metrics} == {"nested.loss", "old nested.loss", "typed", "whole", "quoted"}
    assert curve(run, "nested.loss") == curve(run, "old nested.loss") == curve(run, "typed") == [(0, 0.5), (1, 0.5)]
    assert curve(run, "whole") == [(0, 0.0), (1, 1.0)]
    assert all(math.isnan(value) for _, value in curve(run, "quoted"))


def test_the_axis_that_the_script_gave_to_all_metrics_is_the_step(tmp_path: Path) -> None:
    rows = [logged(n, {"loss": "1", "trainer/global_step": str(n * 50 + 49), "_step": str(n)}) for n in range(3)]
    assert curve(history(tmp_path, wandb_file(rows)), "loss") == [(0, 1.0), (1, 1.0), (2, 1.0)]
    run = history(tmp_path, wandb_file([axis("trainer/global_step"), *rows]))
    assert curve(run, "loss") == [(49, 1.0), (99, 1.0), (149, 1.0)]
    run = history(tmp_path, wandb_file([axis("epoch", "val/*"), *rows]))
    assert curve(run, "loss") == [(0, 1.0), (1, 1.0), (2, 1.0)]


@pytest.mark.parametrize(("code", "outcome", "detail"), [(0, "finished", ""), (1, "crashed", "exit status 1")])
def test_how_the_run_ended_is_known_from_its_last_record(tmp_path: Path, code: int, outcome: str, detail: str) -> None:
    run = history(tmp_path, wandb_file([*falling(3), ended(code)]))
    assert (run.outcome, run.outcome_detail) == (outcome, detail)
    assert history(tmp_path, wandb_file(falling(3))).outcome == ""


def test_the_outcome_and_events_are_read_from_the_recorded_console_output(tmp_path: Path) -> None:
    run = history(tmp_path, wandb_file([*falling(3), printed("\x1b[31mtorch.OutOfMemoryError: no\n"), ended(1)]))
    assert (run.outcome, run.outcome_detail) == ("out_of_memory", "torch.OutOfMemoryError: no")
    run = history(tmp_path, wandb_file([*falling(1), printed("Gradient overflow. Skipping step\n"), *falling(3)[1:]]))
    assert [event.kind for event in run.reported] == ["step_skipped"]


def test_where_nothing_was_logged_what_was_printed_is_read(tmp_path: Path) -> None:
    run = history(tmp_path, wandb_file([config({"lr": "1"}), *(printed(f"step {n} loss {4 / n}\n") for n in (1, 2))]))
    assert curve(run, "loss") == [(1, 4.0), (2, 2.0)]
    assert run.params == {"lr": "1"}
    assert "from the printed output" in run.notes[-1]


def test_records_longer_than_a_block_are_put_together(tmp_path: Path) -> None:
    run = history(tmp_path, wandb_file(falling(5, width=3 * BLOCK)))
    assert [value for _, value in curve(run, "loss")] == [8 / (n + 1) for n in range(5)]


def test_wherever_the_file_is_cut_off_what_is_whole_is_read(tmp_path: Path) -> None:
    whole = wandb_file(falling(8))
    ends = {len(wandb_file(falling(n))): n for n in range(9)}
    for length in range(len(wandb_file(falling(3))), len(whole)):
        run = history(tmp_path, whole[:length])
        assert len(curve(run, "loss")) == max(n for end, n in ends.items() if end <= length)
        assert any("ends within a record" in note for note in run.notes) == (length not in ends)


@pytest.mark.slow
@given(st.integers(len(IDENTITY), 3 * BLOCK), st.integers(1, 255))
def test_a_changed_byte_loses_at_most_the_rest_of_its_block_and_is_noted(
    tmp_path_factory: pytest.TempPathFactory, where: int, change: int
) -> None:
    steps = 800
    records = falling(steps, width=60)
    whole = bytearray(wandb_file(records))
    assert len(whole) > 3 * BLOCK
    whole[where] ^= change
    run = history(tmp_path_factory.mktemp("damaged"), bytes(whole))
    points = curve(run, "loss")
    assert all(value == 8 / (step + 1) for step, value in points)
    assert len(points) >= steps - BLOCK // len(records[0]) - 2
    if BLOCK - where % BLOCK > 6:  # else it may have fallen upon the padding behind the last record of a block
        assert len(points) < steps
        assert "1 damaged block of 32 KiB" in run.notes[0]


def test_a_damaged_record_costs_no_other(tmp_path: Path) -> None:
    whole = bytearray(wandb_file(falling(50)))
    whole[len(whole) // 2] ^= 1
    assert len(curve(history(tmp_path, bytes(whole)), "loss")) == 49


def test_a_record_without_values_or_a_run_without_any_is_refused(tmp_path: Path) -> None:
    for records in ([], [config({"lr": "1"})], [ended(0)]):
        (tmp_path / "run.wandb").write_bytes(wandb_file(records))
        with pytest.raises(UnreadableLogError, match="no metric"):
            read(tmp_path / "run.wandb")


def test_a_wandb_folder_is_one_run(tmp_path: Path) -> None:
    run = tmp_path / "wandb" / "run-1"
    (run / "files").mkdir(parents=True)
    (run / "logs").mkdir()
    (run / "run-1.wandb").write_bytes(wandb_file(falling(5)))
    (run / "files" / "output.log").write_text("step 1 loss 2\nstep 2 loss 1\n")
    (run / "logs" / "debug.log").write_text("step 1 loss 2\nstep 2 loss 1\n")
    assert [item.source for item in read(tmp_path)] == [str(run / "run-1.wandb")]
    (run / "run-1.wandb").write_bytes(wandb_file([]))
    assert [Path(item.source).name for item in read(tmp_path)] == ["output.log", "debug.log"]


@given(st.lists(st.binary(max_size=60), max_size=6), st.binary(max_size=40))
def test_no_wandb_file_makes_reading_fail(
    tmp_path_factory: pytest.TempPathFactory, records: list[bytes], tail: bytes
) -> None:
    file = tmp_path_factory.mktemp("wandb") / "run.wandb"
    for content in (wandb_file([*falling(2), *records]) + tail, wandb_file(field(2, record) for record in records)):
        file.write_bytes(content)
        read_or_refused(file)
    file.write_bytes(IDENTITY + tail)
    read_or_refused(file)
