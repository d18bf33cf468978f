from __future__ import annotations

from pathlib import Path

import pytest
from importers.reading import curve, history

ROWS = range(1, 9)
LOSS = [(n, round(9 / n, 4)) for n in ROWS]
VALIDATION = [(n, round(10 / n, 4)) for n in ROWS]


def markdown(row: str) -> str:
    head = "Results so far\n| Metric | Value |\n|---|---|\n| rows | 12 |\n\n| Epoch | Train Loss | Val Loss | Note |\n"
    rows = "".join(f"| {row.format(n=n, a=f'{9 / n:.4f}', b=f'{10 / n:.4f}')} |\n" for n in ROWS)
    return f"{head}|:--:|---:|---:|---|\n{rows}\nDone.\n"


def drawn() -> str:
    rows = "".join(f"│ {n} │ {9 / n:.4f} │ {10 / n:.4f} │\n" for n in ROWS)
    return (
        f"┏━━━━━━━┳━━━━━━━━━━━━┳━━━━━━━━━━┓\n┃ Epoch ┃ Train Loss ┃ Val Loss ┃\n┡━━━━━━━╇━━━━━┩\n{rows}└─────┴─────┘\n"
    )


def gridded() -> str:
    rule = "+-------+------------+----------+\n"
    rows = "".join(f"| {n:5d} | {9 / n:10.4f} | {10 / n:8.4f} |\n{rule}" for n in ROWS)
    return f"{rule}| Epoch | Train Loss | Val Loss |\n+=======+============+==========+\n{rows}"


def aligned() -> str:
    rows = "".join(f"{n:7d}  {9 / n:12.4f}  {10 / n:10.4f}  {n}.2s\n" for n in ROWS)
    return f"  Epoch    Train Loss    Val Loss    Time\n-------  ------------  ----------  ------\n{rows}"


@pytest.mark.parametrize(
    "log",
    [
        markdown("{n} | {a} | {b} |"),
        markdown("{n}/8 | **{a}** | {b} | saved *"),
        markdown("{n:03d} | {a} | `{b}` | - "),
        drawn(),
        gridded(),
        aligned(),
    ],
    ids=["markdown", "marked", "with dashes", "drawn", "gridded", "aligned"],
)
def test_tables_are_read_however_they_are_drawn(tmp_path: Path, log: str) -> None:
    run = history(tmp_path, log)
    assert curve(run, "Train Loss") == LOSS
    assert curve(run, "Val Loss") == VALIDATION


def test_shares_and_gaps_in_a_table_are_read_as_such(tmp_path: Path) -> None:
    rows = "".join(f"| {n} | {9 / n:.4f} | {'—' if n % 2 else n}% | \n" for n in ROWS).replace("—%", "—")
    run = history(tmp_path, f"| epoch | loss | acc |\n|---|---|---|\n{rows}")
    assert curve(run, "acc") == [(n, float(n)) for n in ROWS if n % 2 == 0]


def test_a_table_of_names_and_values_for_each_epoch_is_read(tmp_path: Path) -> None:
    rule = "+------------+--------+\n"
    text = "| epoch | {n} |\n| train loss | {a:.4f} |\n| val loss | {b:.4f} |\n"
    run = history(tmp_path, rule + "".join(text.format(n=n, a=9 / n, b=10 / n) + rule for n in ROWS))
    assert curve(run, "train loss") == LOSS


def test_prose_beneath_a_header_is_no_row(tmp_path: Path) -> None:
    log = aligned() + "the run took 9 minutes\n1 2 three four\n"
    assert curve(history(tmp_path, log), "Train Loss") == LOSS


def test_a_history_printed_as_a_whole_counts_where_there_is_no_other(tmp_path: Path) -> None:
    whole = f"Done.\nhistory: {{'loss': {[9 / n for n in ROWS]}, 'val_loss': {[10 / n for n in ROWS]}, 'name': 'x'}}\n"
    assert [value for _, value in curve(history(tmp_path, whole), "loss")] == [9 / n for n in ROWS]
    both = "".join(f"epoch {n} loss {9 / n:.4f}\n" for n in ROWS) + whole
    assert curve(history(tmp_path, both), "loss") == LOSS
    rows = "".join(f'{{"step": {n}, "loss": {9 / n}, "counts": [1, 2, 3]}}\n' for n in ROWS)
    assert [step for step, _ in curve(history(tmp_path, rows), "loss")] == list(ROWS)


def test_a_table_with_tabs_needs_no_count_of_steps(tmp_path: Path) -> None:
    rows = "".join(f"0.010000\t{9 / n:.4f}\t{10 / n:.4f}\t17.08\t\n" for n in ROWS)
    run = history(tmp_path, f"Training log:\nLearning Rate\tTrain Loss\tValid Loss\tTrain Acc.\t\n{rows}")
    assert curve(run, "Train Loss") == [(n - 1, loss) for n, loss in LOSS]
    assert run.ordinal_steps


def test_words_with_tabs_are_no_header_of_losses(tmp_path: Path) -> None:
    text = "loss\tof what\n" + "".join(f"{n}\t{n}\n" for n in ROWS) + "".join(f"step {n} loss {n}\n" for n in ROWS)
    assert [metric.name for metric in history(tmp_path, text).metrics] == ["loss"]
