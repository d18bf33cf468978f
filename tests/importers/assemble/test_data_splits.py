"""A field that says on which data a row was measured keeps training and validation apart, in tables and in JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from importers.reading import curve, history, metric, steps

from mlflow_stability.importers.field_names import held_out_in_row, with_split

FIELDS = ["split", "mode", "phase", "Stage", "type", "set", "subset", "dataset", "partition", "data_split", "event"]
WORDS = ["val", "valid", "Validation", "test", "eval", "validate", "validation set"]


def rows_of(field: str, word: str) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for step in range(1, 31):
        rows.append({"step": step, field: "train", "loss": 3 / step})
        if step % 10 == 0:
            rows.append({"step": step, field: word, "loss": 5 + 3 / step})
    return rows


def as_table(rows: list[dict[str, object]]) -> str:
    return "\n".join([",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]) + "\n"


def as_lines(rows: list[dict[str, object]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize("written", [as_table, as_lines, json.dumps])
@pytest.mark.parametrize(("field", "word"), [*((item, "val") for item in FIELDS), *(("phase", item) for item in WORDS)])
def test_a_field_that_names_the_data_makes_two_losses(tmp_path: Path, written: object, field: str, word: str) -> None:
    run = history(tmp_path, written(rows_of(field, word)))  # type: ignore[operator]
    assert curve(run, "loss") == [(step, 3 / step) for step in range(1, 31)]
    (validation,) = run.of("val_loss")
    assert validation.series.steps.tolist() == [10, 20, 30]
    assert validation.series.values.tolist() == pytest.approx([5 + 3 / step for step in (10, 20, 30)])


def test_the_lines_of_both_losses_are_known(tmp_path: Path) -> None:
    lines = metric(history(tmp_path, as_table(rows_of("split", "val"))), "val/loss").lines
    assert lines is not None
    assert lines.tolist() == [12, 23, 34]


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("phase", "warmup"),
        ("phase", "train"),
        ("dataset", "val2017"),
        ("dataset", "test my idea"),
        ("stage", "dev"),
        ("model", "test"),
        ("model_type", "eval"),
        ("name", "val"),
    ],
)
def test_other_fields_and_texts_say_nothing(field: str, text: str) -> None:
    assert held_out_in_row({field: text}) == ""


def test_a_metric_that_names_its_own_data_split_keeps_its_name(tmp_path: Path) -> None:
    table = "epoch,phase,train_loss,val_loss\n" + "".join(f"{n},val,{2 / (n + 1)},{3 / (n + 1)}\n" for n in range(5))
    run = history(tmp_path, table)
    assert {item.name: item.meaning.quantity for item in run.metrics if item.meaning.is_known} == {
        "train_loss": "loss",
        "val_loss": "val_loss",
    }
    assert with_split("val", "std_dev") == "val/std_dev"


def test_every_row_of_a_table_may_name_its_metric_and_its_data(tmp_path: Path) -> None:
    rows = [
        f"{n},{split},{name},{n + at}" for n in range(4) for split in ("train", "val") for at, name in enumerate("ab")
    ]
    run = history(tmp_path, "step,split,metric,value\n" + "\n".join(rows))
    assert {item.name: item.series.values.tolist() for item in run.metrics} == {
        "a": [0, 1, 2, 3],
        "b": [1, 2, 3, 4],
        "val/a": [0, 1, 2, 3],
        "val/b": [1, 2, 3, 4],
    }


def test_batches_of_a_validation_are_no_steps_of_the_training(tmp_path: Path) -> None:
    rows = [f"{e},{i},train,{3 - e}" for e in range(4) for i in (100, 200)]
    for epoch in range(4):
        rows.insert(3 * epoch + 2, f"{epoch},20,val,{4 - epoch}")
    run = history(tmp_path, "epoch,iter,phase,loss\n" + "\n".join(rows))
    assert steps(run, "loss") == [100, 200, 300, 400, 500, 600, 700, 800]
    assert steps(run, "val/loss") == [200, 400, 600, 800]


def documents() -> list[object]:
    train = [{"epoch": n, "loss": 3 - n / 4} for n in range(8)]
    valid = [{"epoch": n, "loss": 4 - n / 4} for n in range(1, 8, 2)]
    return [
        {"train": train, "val": valid},
        {"valid_history": valid, "train_history": train},
        {"args": {"lr": 1}, "logs": {"train": {"rows": train}, "validation": {"rows": valid}}},
        {"history": train, "val": valid, "train_samples": [{"id": n} for n in range(9)][:5]},
    ]


@pytest.mark.parametrize("document", documents())
def test_adjacent_lists_of_rows_are_one_run(tmp_path: Path, document: object) -> None:
    run = history(tmp_path, json.dumps(document, indent=1))
    assert curve(run, "loss") == [(n, 3 - n / 4) for n in range(8)]
    (validation,) = run.of("val_loss")
    assert validation.series.steps.tolist() == [1, 3, 5, 7]
    assert validation.series.values.tolist() == [4 - n / 4 for n in range(1, 8, 2)]
    assert validation.lines is not None
    assert metric(run, "loss").lines is not None
    lines = json.dumps(document, indent=1).splitlines()
    assert [lines[at - 1].strip() for at in validation.lines.tolist()] == ["{"] * 4
    assert ['"loss": 3.75' in lines[at + 1] for at in validation.lines.tolist()[:1]] == [True]


def test_lists_without_epochs_are_put_side_by_side_if_they_are_as_long(tmp_path: Path) -> None:
    losses = {"train": [{"loss": 3 - n / 4} for n in range(8)], "val": [{"loss": 4 - n / 4} for n in range(8)]}
    run = history(tmp_path, json.dumps(losses))
    assert len(curve(run, "val/loss")) == 8
    assert [value for _, value in curve(run, "loss")] == [3 - n / 4 for n in range(8)]


def test_a_list_of_samples_next_to_the_training_is_no_validation(tmp_path: Path) -> None:
    document = {
        "log": [{"step": n, "loss": 1 / n} for n in range(1, 9)],
        "test": [{"id": n, "score": 1} for n in range(5)],
    }
    assert [entry.name for entry in history(tmp_path, json.dumps(document)).metrics] == ["loss"]
