"""Findings made from the numbers of a log name the line that its reader looks up."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from diagnosis.histories import falling, run_named
from importers.reading import history

from mlflow_stability.diagnosis.diagnose import diagnosis_of


def printed(count: int = 300, every: int = 50) -> list[str]:
    """A log with a spike at step 200 and NaN from step 290 on, and other lines between the values."""
    lines = ["starting", "device cpu", ""]
    for step in range(count):
        loss = 9.0 if step == 200 else math.nan if step >= 290 else 3 * math.exp(-step / 80) + 0.2
        lines += [f"--- saved to epoch_{step // every}.pt", ""] if step % every == 0 else []
        lines.append(f"step {step} loss {loss:.4f} lr 0.001")
    return lines


def line_of(lines: list[str], step: int) -> int:
    return next(at for at, line in enumerate(lines, 1) if line.startswith(f"step {step} "))


@pytest.mark.parametrize("every", [1, 7, 50])
def test_a_finding_names_the_line_of_the_value_at_which_it_begins(tmp_path: Path, every: int) -> None:
    lines = printed(every=every)
    text = "\n".join(lines) + "\n"
    by_kind = {finding.kind: finding for finding in diagnosis_of(history(tmp_path, text, "train.log")).findings}
    for kind, step in (("loss_spike", 200), ("nan_detected", 290)):
        assert by_kind[kind].metrics["line"] == line_of(lines, step)
        assert by_kind[kind].message.endswith(f"(line {line_of(lines, step)}).")


def test_every_value_of_a_log_knows_its_line_also_where_the_step_starts_again(tmp_path: Path) -> None:
    lines = [*printed(60), "restarted", *printed(60)]
    text = "\n".join(lines) + "\n"
    (loss,) = history(tmp_path, text, "train.log").of("loss")
    assert loss.lines is not None
    wanted = [at for at, line in enumerate(lines, 1) if line.startswith("step ")]
    assert sorted(loss.lines.tolist()) == wanted
    for at, step in zip(loss.lines.tolist(), loss.series.steps.tolist(), strict=True):
        assert lines[at - 1].startswith(f"step {step} ")


def logged(count: int = 300) -> list[dict[str, float]]:
    """The same losses as rows of names and values."""
    losses = (
        9.0 if step == 200 else math.nan if step >= 290 else 3 * math.exp(-step / 80) + 0.2 for step in range(count)
    )
    return [{"step": step, "loss": loss} for step, loss in enumerate(losses)]


def as_csv(rows: list[dict[str, float]]) -> list[str]:
    """A table with comments, an empty line, and the header again in the middle, as a resumed run leaves it."""
    lines = [f"{row['step']},{row['loss']:.4f}" for row in rows]
    return ["# a comment", "step,loss", *lines[:50], "", *lines[50:120], "step,loss", "# resumed", *lines[120:]]


def as_trainer_state(rows: list[dict[str, float]]) -> list[str]:
    history = [{"epoch": row["step"] / 100, **row} for row in rows]
    document = {"best_metric": None, "callbacks": [{"name": "none"}], "log_history": [*history, {"train_runtime": 3.0}]}
    return json.dumps(document, indent=2).splitlines()


def as_list(rows: list[dict[str, float]]) -> list[str]:
    return ["[", *(f"  {json.dumps(row)}," for row in rows[:-1]), json.dumps(rows[-1]), "]"]


def as_json_lines(rows: list[dict[str, float]]) -> list[str]:
    return [json.dumps({"note": "begins"}), "", *map(json.dumps, rows)]


@pytest.mark.parametrize(
    ("name", "written", "holds"),
    [
        ("train.csv", as_csv, "{step},"),
        ("trainer_state.json", as_trainer_state, '"step": {step},'),
        ("history.json", as_list, '"step": {step},'),
        ("train.jsonl", as_json_lines, '"step": {step},'),
    ],
)
def test_findings_in_tables_and_json_name_their_line(
    tmp_path: Path, name: str, written: Callable[[list[dict[str, float]]], list[str]], holds: str
) -> None:
    lines = written(logged())
    by_kind = {finding.kind: finding for finding in diagnosis_of(history(tmp_path, "\n".join(lines), name)).findings}
    for kind, step in (("loss_spike", 200), ("nan_detected", 290)):
        at = int(by_kind[kind].metrics["line"])
        row = " ".join(lines[at - 1 : at + 3]) if name == "trainer_state.json" else lines[at - 1]
        assert holds.format(step=step) in row
        assert by_kind[kind].message.endswith(f"(line {at:,}).")


def test_the_rows_of_a_document_that_is_cut_off_know_their_lines(tmp_path: Path) -> None:
    lines = as_list(logged())[:-5]
    (loss,) = history(tmp_path, "\n".join(lines), "history.json").of("loss")
    assert loss.lines is not None
    assert loss.lines.tolist() == [step + 2 for step in loss.series.steps.tolist()]


def test_a_document_in_one_line_names_none(tmp_path: Path) -> None:
    (loss,) = history(tmp_path, json.dumps(logged()), "history.json").of("loss")
    assert loss.lines is None


def test_what_has_no_lines_names_none(tmp_path: Path) -> None:
    losses = falling(100)
    losses[60] = math.nan
    (episode,) = (
        finding for finding in diagnosis_of(run_named(loss=losses)).findings if finding.kind == "nan_detected"
    )
    assert "line" not in episode.metrics
    text = "\n".join(printed())
    cell = {"cell_type": "code", "source": ["fit()"], "metadata": {}, "execution_count": 1}
    output = {"output_type": "stream", "name": "stdout", "text": text.splitlines(keepends=True)}
    notebook = {"cells": [{**cell, "outputs": [output]}], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    findings = diagnosis_of(history(tmp_path, json.dumps(notebook), "train.ipynb")).findings
    assert findings
    assert all("line" not in item.metrics for item in findings)
