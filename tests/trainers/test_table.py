"""The rows of the table whose packages are here. All rows: `python tests/trainers/table.py`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from trainers.catalog import trainers
from trainers.row import row_of, skipped
from trainers.script import Mode, Trainer
from trainers.trials import Noted, Series, run_trial

SHOWN_BY_ANOTHER = {"Lightning, manual", "compiled optimizer"}
"""Rows of `python tests/trainers/table.py` alone: the GAN is optimized manually, too, and a train step compiled."""
HERE = [
    trainer
    for trainer in trainers().values()
    if not (trainer.packages or trainer.alone or trainer.name in SHOWN_BY_ANOTHER)
]
"""Half of the rows import Lightning, which takes longer than their training."""
MODES: tuple[Mode, ...] = ("bare", "watched", "rollback")
NAN = float("nan")
TRACKS = {
    "Lightning, GAN": "tracks: generator = the first, discriminator = track_discriminator",
    "Lightning, fit from a checkpoint": "tracks:  = the first, resumed = track_instance",
}
"""Which of several models, or of several trainings one after the other, is recorded as what."""


@pytest.mark.slow
@pytest.mark.scenario
@pytest.mark.parametrize("trainer", HERE, ids=lambda letter: letter.name)
def test_a_trainer_is_recorded_as_it_is_and_rescued(
    trainer: Trainer, template_database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A C++ compiler would take longer than all other rows; the scenarios have a training with the default backend.
    monkeypatch.setenv("TRAINERS_COMPILE_WITH", "aot_eager")
    python = Path(sys.executable)
    row = row_of(
        trainer, {mode: run_trial(trainer, mode, python, tmp_path / mode, template_database) for mode in MODES}
    )
    assert row.good, row
    remarks = [remark for remark in row.remarks if not (trainer.split and "are split over processes" in remark)]
    assert remarks == [item for name, item in TRACKS.items() if name == trainer.name]


def noted(losses: list[float], weights: list[str], *, finite: bool = True) -> Noted:
    return Noted({"": Series(losses, losses, weights)}, [], "", finite)


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (noted([1.0, NAN, 1.0], ["a", "b", "b", "c"]), "skipped"),
        (noted([1.0, NAN, 1.0], ["a", "b", "c", "d"]), "NaN at 1, weights unchanged by none"),
        (noted([1.0, NAN, 1.0], ["a", "b", "b", "b"]), "NaN at 1, weights unchanged by 1, 2"),
        (
            noted([1.0, NAN, NAN], ["a", "b", "b", "c"], finite=False),
            "NaN at 1, 2, weights unchanged by 1, NaN at the end",
        ),
        (noted([1.0, 1.0, 1.0], ["a", "b", "c", "d"]), "no NaN reached the loss"),
    ],
)
def test_only_the_step_with_the_nan_may_leave_the_weights_alone(seen: Noted, expected: str) -> None:
    assert skipped(seen) == expected
