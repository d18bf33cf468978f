"""With everything of the autopilot on, a healthy training is bit by bit what it is without us."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from scenarios.trainings import STEPS, TRAININGS

import mlflow_stability
from mlflow_stability.session.session import Session
from mlflow_stability.vocabulary.rollback_policy import RollbackPolicy

pytestmark = [
    pytest.mark.scenario,
    pytest.mark.filterwarnings("ignore:`torch.jit.script"),  # used by torch itself
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),  # used by Lightning
]
POLICY = RollbackPolicy(snapshot_every=10, snapshot_share=1.0, rollback_checkpoint_interval=60, healthy_after=4)


@pytest.fixture(scope="module")
def session(template_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    folder = tmp_path_factory.mktemp("flying")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder / 'mlflow.db'}")
        shutil.copy(template_database, folder / "mlflow.db")
        options = mlflow_stability.Options(exit_wait=0, journal_dir=folder / "journal")
        mlflow_stability.autolog(rollback=POLICY, strict=True, silent=True, options=options)
        session = mlflow_stability.current_session()
        assert session is not None
        TRAININGS[
            "SGD"
        ]()  # what begins with the first steps and lasts as long as the session is there before the tests
        session.pause()
        yield session
        mlflow_stability.autolog(disable=True)
        assert session.wait(120)
        assert session.parts_off == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAININGS)
def test_losses_weights_buffers_and_random_states_are_bit_identical(session: Session, name: str) -> None:
    bare = TRAININGS[name]()
    before = session.step
    session.resume()
    try:
        flown = TRAININGS[name]()
    finally:
        session.pause()
    flown.must_equal(bare)
    assert session.step - before in (STEPS, STEPS - 1)  # the last may still wait for the next backward
    assert session.parts_off == {}
    assert session.good_steps, "states were kept meanwhile"
    assert session.recording is not None
    assert session.recording.attempt == 0
