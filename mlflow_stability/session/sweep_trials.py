"""Find the trial of Optuna, Ray Tune or a Hydra multirun that a training belongs to.

Guarantees: no library is imported and no storage is asked; a changed library gives no trial.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

from mlflow_stability.vocabulary.run import Fact

LONGEST = 100  # limit for parameters: a whole configuration is no choice of a sweep
_RUNNING = {
    "optuna.study._optimize": "trial",
    "ray.tune.trainable.function_trainable": "self",
}
"""Modules whose running functions hold a trial, and the name of the variable."""
_HYDRA = "hydra.core.hydra_config"


@dataclass(frozen=True, slots=True)
class SweepTrial:
    identity: tuple[str, ...]
    """Differs from trial to trial."""
    name: str
    parameters: Mapping[str, Any]

    def facts(self, prefix: str) -> list[Fact]:
        """Return its parameters as those of its run: ``stability.trial.lr``."""
        return [Fact(f"{prefix}.{key}", str(value)) for key, value in list(self.parameters.items())[:LONGEST]]


def running_trial() -> SweepTrial | None:
    """Return the trial of the calling thread, if any."""
    try:
        return _found_in_frames() or _hydra_job()
    except (AttributeError, KeyError, TypeError, ValueError):  # a version that keeps it elsewhere
        return None


def _found_in_frames() -> SweepTrial | None:
    if not any(name in sys.modules for name in _RUNNING):
        return None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        variable = _RUNNING.get(frame.f_globals.get("__name__", ""))
        holder = frame.f_locals.get(variable) if variable is not None else None
        if holder is not None:
            return _of_optuna(holder) if variable == "trial" else _of_tune(holder)
        frame = frame.f_back
    return None


def _of_optuna(trial: Any) -> SweepTrial:
    """Read the suggested parameters from its cache: asking for them by name would ask its storage."""
    return SweepTrial(
        ("optuna", str(trial.study.study_name), str(trial.number)),
        f"trial {trial.number}",
        dict(trial._cached_frozen_trial.params),
    )


def _of_tune(trainable: Any) -> SweepTrial:
    identity = str(trainable.trial_id)
    return SweepTrial(("tune", identity), f"trial {identity}", dict(trainable.config))


def _hydra_job() -> SweepTrial | None:
    kind = getattr(sys.modules.get(_HYDRA), "HydraConfig", None)
    if kind is None or not kind.initialized():
        return None
    config = kind.get()
    overrides = [str(override) for override in config.overrides.task]
    given = dict(override.lstrip("+~").split("=", 1) for override in overrides if "=" in override)
    if config.mode.name != "MULTIRUN":
        return SweepTrial(("hydra",), "", given)
    return SweepTrial(("hydra", str(config.job.num)), f"job {config.job.num}", given)
