"""The public calls that begin and end watching.

Promised: ``autolog()`` itself creates nothing, starts nothing and takes under five milliseconds; calling it again
reconfigures; ``autolog(disable=True)`` leaves torch exactly as it was.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.nn import Module

from mlflow_stability.session.detector_choice import chosen_detectors
from mlflow_stability.session.ending import closing_of
from mlflow_stability.session.session import Session
from mlflow_stability.vocabulary.settings import Settings, settings_from_environment

_current: Session | None = None


def autolog(
    *,
    log_every_n_steps: int = 10,
    exit_wait: float = 30.0,
    journal_dir: str | os.PathLike[str] | None = None,
    detectors: Iterable[Any] | None = None,
    divergence_threshold: float | None = None,
    consecutive_divergence_steps: int = 3,
    exclusive: bool = False,
    disable: bool = False,
    silent: bool = False,
    strict: bool = False,
    extra_tags: Mapping[str, str] | None = None,
) -> None:
    """Record every step of the PyTorch training that follows into MLflow.

    Args:
        log_every_n_steps: Every how many steps MLflow's metric tables get a point. The full record, which `load_run`
            reads, has every step whatever this says.
        exit_wait: For how many seconds the end of the training waits until everything is delivered.
        journal_dir: Where the journal is kept until it is delivered; `./.mlflow-stability` if not given.
        detectors: Which detectors look: names such as "loss_spike" or "loss_spike:classic", or detectors with
            thresholds of your own such as `LossSpike(z=10)`; all of `mlflow-stability explain` if not given.
        divergence_threshold: Call it divergence, too, when the loss is above this many times its mean of 100 steps.
        consecutive_divergence_steps: For how many steps in a row, with `divergence_threshold`.
        exclusive: Leave runs alone that the script has started; record only into runs of our own.
        disable: Take everything off again.
        silent: Say nothing, not even warnings.
        strict: Raise our own errors instead of switching the failing part off. For tests of this package.
        extra_tags: Tags for the run.
    """
    global _current
    if disable:
        if _current is not None:
            _current.stop()
            _current = None
        return
    if _switched_off():
        return
    settings = _settings(
        log_every_n_steps=log_every_n_steps,
        exit_wait=exit_wait,
        journal_dir=None if journal_dir is None else Path(journal_dir),
        detectors=None if detectors is None else tuple(detectors),
        divergence_threshold=divergence_threshold,
        consecutive_divergence_steps=consecutive_divergence_steps,
        exclusive=exclusive,
        silent=silent,
        strict=strict,
        extra_tags={str(key): str(value) for key, value in (extra_tags or {}).items()},
    )
    if _current is not None and _current.is_inherited:
        _current.pause()  # a fork has inherited the hooks of its parent's session
        _current = None
    if _current is not None:
        _current.reconfigure(settings)
        return
    _current = Session(settings)
    _current.install()


def current_session() -> Session | None:
    """The session that `autolog` began, or None."""
    return _current


class Attachment:
    """A loop that is watched by hand: call `step` once per optimizer step."""

    def __init__(self, session: Session | None, model: Module, optimizer: Any) -> None:
        self.session = session
        """The session that records; None where the environment switched us off."""
        self._model = model
        self._optimizer = optimizer

    def step(self, loss: Any = None) -> None:
        """Record one step; call it after backward, while the gradients are still there."""
        if self.session is not None:
            self.session.record_step(loss, self._model, self._optimizer)


@contextmanager
def attach(model: Module, optimizer: Any = None, **settings: Any) -> Iterator[Attachment]:
    """Record a loop that no hook can see, such as one with an optimizer of its own making.

    Takes the settings of `autolog`. Where the hooks of `autolog` are on, they rest inside.
    """
    global _current
    if _switched_off():
        yield Attachment(None, model, optimizer)
        return
    outer, _current = _current, Session(_settings(**settings))
    session = _current
    if outer is not None:
        outer.pause()
    try:
        yield Attachment(session, model, optimizer)
    except BaseException as error:
        session.stop(closing_of(error))
        raise
    else:
        session.stop()
    finally:
        _current = outer
        if outer is not None:
            outer.resume()


def _switched_off() -> bool:
    return os.environ.get("MLFLOW_STABILITY_DISABLE", "") not in ("", "0")


def _settings(**given: Any) -> Settings:
    """The settings, with what the environment overrides."""
    settings = Settings(**(given | settings_from_environment()))
    chosen_detectors(settings)  # a name that there is not is told here, not at the first step
    return settings
