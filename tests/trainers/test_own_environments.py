"""What a trainer's own log hides, where the trainer needs an environment of its own; made by `table.py`."""

from __future__ import annotations

from pathlib import Path

import pytest
from scenarios.flown_history import recorded_in
from trainers.catalog import trainer_named
from trainers.environment import is_installed, python_for, usual_folder
from trainers.script import NAN_AT
from trainers.trials import run_trial

from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.journal.journal import JOURNAL as JOURNAL
from mlflow_stability.journal.journal import read_journal
from mlflow_stability.journal.layout import recording_folders, session_folders


@pytest.mark.slow
@pytest.mark.scenario
@pytest.mark.parametrize("name", ["TRL SFT + LoRA", "TRL DPO", "TRL GRPO"])
def test_the_nan_that_trl_logs_as_zero_is_reported(name: str, template_database: Path, tmp_path: Path) -> None:
    trainer = trainer_named(name)
    if not is_installed(trainer, usual_folder()):
        pytest.skip(f"no environment for it: `python tests/trainers/table.py '{name}'` makes one")
    python = python_for(trainer, usual_folder())
    trial = run_trial(trainer, "guard", python, tmp_path / "guard", template_database)
    assert trial.noted is not None, trial.error
    assert trial.noted.own_log[NAN_AT] == 0.0
    (session,) = session_folders(tmp_path / "guard" / ".mlflow-stability")
    (recording,) = recording_folders(session)
    diagnosis = diagnosis_of(recorded_in(list(read_journal(recording / JOURNAL))))
    assert [finding.start for finding in diagnosis.findings if finding.kind == "nan_detected"] == [NAN_AT + 1]
