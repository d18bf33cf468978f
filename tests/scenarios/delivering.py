"""Record a training of this process, and deliver it here: starting a courier takes longer than the training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlflow_stability
from mlflow_stability.courier.deliver import deliver_session
from mlflow_stability.journal.layout import RELEASED, recording_folders, session_folders
from mlflow_stability.session.session import Session


def watch(**settings: Any) -> Session:
    """Watch with every error raised; `end` delivers."""
    mlflow_stability.autolog(strict=True, offline=True, **settings)
    session = mlflow_stability.current_session()
    assert session is not None
    return session


def end() -> None:
    """Stop watching, and deliver everything that was recorded below the working directory."""
    mlflow_stability.autolog(disable=True)
    for folder in filter(recording_folders, session_folders(Path(".mlflow-stability"))):
        (folder / RELEASED).touch()
        report = deliver_session(folder)
        assert (report.delivered > 0, report.remaining, report.error) == (True, 0, ""), report


def watch_with_courier(**settings: Any) -> Session:
    """Watch with a real courier, for what a script and a courier do to each other."""
    mlflow_stability.autolog(strict=True, **{"options": mlflow_stability.Options(exit_wait=0), **settings})
    session = mlflow_stability.current_session()
    assert session is not None
    return session


def end_of_courier(session: Session) -> None:
    mlflow_stability.autolog(disable=True)
    assert session.wait(120)
