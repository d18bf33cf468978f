from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from scenarios.trainings import STEPS, TRAININGS

import mlflow_stability
from mlflow_stability.session.session import Session

pytestmark = [
    pytest.mark.scenario,
    pytest.mark.filterwarnings("ignore:`torch.jit.script"),  # used by torch itself
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),  # used by Lightning
]


@pytest.fixture(scope="module")
def session(template_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """One session with its courier for all of these trainings; its hooks are off."""
    folder = tmp_path_factory.mktemp("watching")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder / 'mlflow.db'}")
        shutil.copy(template_database, folder / "mlflow.db")
        options = mlflow_stability.Options(exit_wait=0, journal_dir=folder / "journal")
        mlflow_stability.autolog(strict=True, silent=True, options=options)
        session = mlflow_stability.current_session()
        assert session is not None
        TRAININGS[
            "SGD"
        ]()  # what begins with the first steps and lasts as long as the session is there before the tests
        session.pause()
        yield session
        mlflow_stability.autolog(disable=True)
        assert session.wait(120)


FLOWN_TOO = {"torch.compile and dropout", "Lightning"}
"""These take longest, and are flown with everything on in `test_flying_changes_nothing.py`."""


@pytest.mark.parametrize(
    "name",
    [
        name if name == "SGD" else pytest.param(name, marks=pytest.mark.slow)
        for name in TRAININGS
        if name not in FLOWN_TOO
    ],
)
def test_losses_weights_buffers_and_random_states_are_bit_identical(session: Session, name: str) -> None:
    bare = TRAININGS[name]()
    before = session.step
    session.resume()
    try:
        watched = TRAININGS[name]()
    finally:
        session.pause()
    watched.must_equal(bare)
    assert session.step - before in (STEPS, STEPS - 1)  # the last may still wait for the next backward
