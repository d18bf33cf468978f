"""A pipeline of two stages: norms and loss are those of the whole model, though the first stage has no loss."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from probes.ranks.launching import launch, recorded
from probes.ranks.pipeline_training import FAILS_AT, STEPS

from mlflow_stability.journal.journal import read_journal
from mlflow_stability.vocabulary.run import Note

pytestmark = [pytest.mark.scenario, pytest.mark.slow]


def trained(
    folder: Path, limit: float = 0.0, mode: str = "watched", fails: int = -1, way: str = "alone"
) -> dict[int, dict[str, float]]:
    processes = 2 if way == "alone" else 4
    ended = launch(processes, "pipeline_training.py", str(folder), str(limit), mode, str(fails), way, seconds=400)
    assert [item.code for item in ended] == [0] * processes, ended[0].errors[-3000:] + ended[1].errors[-3000:]
    assert all(len(item.printed.split()) == STEPS for item in ended)
    rows = recorded(folder / "journals")
    assert list(rows) == list(range(1, STEPS + 1))
    return rows


@pytest.mark.parametrize(
    ("way", "limit", "mode"),
    [
        ("alone", 0.2, "watched"),
        ("alone", 0.0, "autopilot"),
        ("tensor", 0.2, "watched"),
        ("fsdp2", 0.0, "autopilot"),
    ],
)
def test_norms_and_loss_are_those_of_the_whole_model(tmp_path: Path, way: str, limit: float, mode: str) -> None:
    rows = trained(tmp_path, limit, mode, way=way)
    for step, row in enumerate(json.loads((tmp_path / "truth.json").read_text()), 1):
        wanted = ["loss", "grad_norm"]
        wanted += ["param_norm"] if step % 10 == 0 else []
        wanted += ["update_norm"] if step % 10 == 0 or step in (2, 4) else []
        seen = {key: rows[step].get(key) for key in wanted}
        assert seen == pytest.approx({key: row[key] for key in wanted}, rel=1e-5), step
    (journal,) = (tmp_path / "journals").glob("*/*/journal")
    notes = {point.key: point.value for point in read_journal(journal) if isinstance(point, Note)}
    assert notes["loss"].startswith(f"from the last pipeline stage: rank {1 if way == 'alone' else 2} (")


@pytest.mark.parametrize("fails", [0, 1])
def test_a_stage_that_stops_measuring_does_not_block_the_others(tmp_path: Path, fails: int) -> None:
    rows = trained(tmp_path, fails=fails)
    assert [step for step, row in rows.items() if "grad_norm" in row] == list(range(1, FAILS_AT))
    assert all("loss" in row for row in rows.values())
