"""Findings made from the numbers of a printed log name the line that its reader looks up."""

from __future__ import annotations

import json
import math
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
    found = {each.kind: each for each in diagnosis_of(history(tmp_path, text, "train.log")).episodes}
    for kind, step in (("loss_spike", 200), ("nan_detected", 290)):
        assert found[kind].evidence["line"] == line_of(lines, step)
        assert found[kind].message.endswith(f"(line {line_of(lines, step)}).")


def test_every_value_of_a_log_knows_its_line_also_where_the_step_starts_again(tmp_path: Path) -> None:
    lines = [*printed(60), "restarted", *printed(60)]
    text = "\n".join(lines) + "\n"
    (loss,) = history(tmp_path, text, "train.log").of("loss")
    assert loss.lines is not None
    wanted = [at for at, line in enumerate(lines, 1) if line.startswith("step ")]
    assert sorted(loss.lines.tolist()) == wanted
    for at, step in zip(loss.lines.tolist(), loss.series.steps.tolist(), strict=True):
        assert lines[at - 1].startswith(f"step {step} ")


def test_what_is_no_printed_log_has_no_lines(tmp_path: Path) -> None:
    losses = falling(100)
    losses[60] = math.nan
    (episode,) = (each for each in diagnosis_of(run_named(loss=losses)).episodes if each.kind == "nan_detected")
    assert "line" not in episode.evidence
    text = "\n".join(printed())
    cell = {"cell_type": "code", "source": ["fit()"], "metadata": {}, "execution_count": 1}
    output = {"output_type": "stream", "name": "stdout", "text": text.splitlines(keepends=True)}
    notebook = {"cells": [{**cell, "outputs": [output]}], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    found = diagnosis_of(history(tmp_path, json.dumps(notebook), "train.ipynb")).episodes
    assert found
    assert all("line" not in each.evidence for each in found)
