"""What version 0.1.0 left on a disk is delivered, diagnosed, compared and restored; later versions are read in part.

`journal_0_1_0` is a journal directory of version 0.1.0 whose server did not answer: 240 steps of a classifier, a
learning rate of 2.5 instead of 0.05 from step 150 to 174, one rollback, and a NaN loss at step 200. Names of the
machine and its folders are replaced; links to processes and saved batches are left out.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import orjson
import pytest
import torch
from mlflow import MlflowClient
from torch import nn

from mlflow_stability import compare, diagnose, load_run, restore
from mlflow_stability.cli.main import run as run_command
from mlflow_stability.errors import JournalError
from mlflow_stability.journal.journal import JOURNAL, SCHEMA, frame, read_journal, unframe
from mlflow_stability.vocabulary.result import Finding

KEPT = Path(__file__).with_name("journal_0_1_0")
RUNS = Path(__file__).parents[2] / "mlruns_fixtures"


def first_line_changed(journal: Path, **changed: object) -> None:
    """Change fields of the opening record."""
    first, _, rest = journal.read_bytes().partition(b"\n")
    kind, opening = unframe(first)
    journal.write_bytes(frame(orjson.dumps([kind, {**opening, **changed}])) + rest)


@pytest.mark.slow
def test_a_journal_of_0_1_0_is_delivered_diagnosed_and_compared(sqlite_uri: str, tmp_path: Path) -> None:
    directory = tmp_path / "journal"
    shutil.copytree(KEPT, directory)
    (journal,) = directory.glob(f"*/*/{JOURNAL}")
    recorded = read_journal(journal)
    first_line_changed(journal, tracking_uri=sqlite_uri, directory=str(tmp_path))
    assert run_command(["sync", str(directory), "--tracking-uri", sqlite_uri]) == 0

    (delivered,) = MlflowClient(tracking_uri=sqlite_uri).search_runs(["0"])
    diagnosis = diagnose(delivered.info.run_id, tracking_uri=sqlite_uri)
    assert diagnosis.outcome == "recovered", diagnosis.verdict
    assert diagnosis.cause is not None
    assert diagnosis.cause.name == "learning_rate_jump"
    live = {finding.kind for finding in recorded if isinstance(finding, Finding)}
    assert {"rollback", "divergence", "nan_detected", "step_skipped"} <= live
    assert {finding.kind for finding in diagnosis.findings} >= {"rollback", "divergence", "nan_detected"}
    assert diagnosis.notes == ("Events were recorded while it trained; whole curves were looked at in addition.",)

    frame_of_steps = load_run(diagnosis.source, sqlite_uri)
    assert frame_of_steps["step"].max() == 240
    assert np.isnan(frame_of_steps.loc[frame_of_steps["step"] == 200, "loss"]).all()
    comparison = compare([diagnosis.source, RUNS / "0" / "healthy"], tracking_uri=sqlite_uri, remember=False)
    assert [run.card.state for run in comparison.runs] == ["stable", "unstable"]


def test_a_checkpoint_of_0_1_0_is_restored() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    (folder,) = (KEPT / "checkpoints").iterdir()
    resumed = restore(model, optimizer, directory=folder)
    assert resumed.step == 120
    assert resumed.messages == ()
    saved = torch.load(resumed.folder / "state.pt", weights_only=True)["tensors"]
    for name, tensor in model.state_dict().items():
        assert any(torch.equal(tensor, item) for key, item in saved.items() if key.endswith(name)), name
    assert len(optimizer.state) == 4  # a momentum for each parameter


def test_what_a_later_version_recorded_is_read_without_the_lines_that_are_unknown(tmp_path: Path) -> None:
    run = tmp_path / "1" / "loss_spike"
    shutil.copytree(RUNS / "1" / "loss_spike", run)
    (events,) = run.rglob("events/*.jsonl")
    lines = [json.loads(line) | {"later_field": {"deep": [1]}} for line in events.read_text().splitlines()]
    line = next(line for line in lines if line["record"] == "event")
    facts = {"kind": "bit_flip", "bits": 3}
    remedy = {"action": "check_memory", "sentence": "Check the memory.", "sockets": [2]}
    lines.append({**line, "kind": "bit_flip", "facts": facts, "message": "3 bits flipped.", "remedies": [remedy]})
    lines.append({"record": "heartbeat", "beats": 60})
    events.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (bookkeeping,) = run.rglob("recording-000.json")
    bookkeeping.write_text(json.dumps(json.loads(bookkeeping.read_text()) | {"version": "7.0.0", "schema": "2"}))

    diagnosis, before = diagnose(run), diagnose(RUNS / "1" / "loss_spike")
    assert (diagnosis.outcome, diagnosis.cause) == (before.outcome, before.cause)
    (flip,) = [finding for finding in diagnosis.findings if finding.kind == "bit_flip"]
    assert (flip.message, [str(value) for value in flip.remedies]) == ("3 bits flipped.", ["Check the memory."])
    assert diagnosis.notes[0] == (
        "Some of what was recorded cannot be read and is missing here: line "
        f"{len(lines)} of stability/data/events/recording-000.jsonl (written by a later version of mlflow-stability)."
    )
    assert run_command(["diagnose", str(run)]) == 1


def test_a_journal_in_a_later_format_is_refused_with_what_to_do(
    sqlite_uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(KEPT, tmp_path / "journal")
    (journal,) = (tmp_path / "journal").glob(f"*/*/{JOURNAL}")
    first_line_changed(journal, schema=SCHEMA + 1, tracking_uri=sqlite_uri)
    with pytest.raises(JournalError, match="Update mlflow-stability to deliver it"):
        read_journal(journal)
    assert run_command(["sync", str(tmp_path / "journal"), "--tracking-uri", sqlite_uri]) == 2
    assert "Update mlflow-stability to deliver it" in capsys.readouterr().err
    assert journal.exists()
