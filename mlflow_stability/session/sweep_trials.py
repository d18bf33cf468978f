"""Knows the trial of Optuna, Ray Tune or a Hydra multirun that a training belongs to.

In: the libraries that the script has loaded, and which of their functions are running. Out: the trial's name and its
parameters. Guarantees: no library is imported and no storage is asked; a library that has changed is no trial.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

from mlflow_stability.vocabulary.run import Fact

LONGEST = 100
"""Parameters of a trial beyond so many are not kept: a whole configuration is no choice of a sweep."""
_RUNNING = {
    "optuna.study._optimize": "trial",
    "ray.tune.trainable.function_trainable": "self",
}
"""Modules among whose running functions a trial is found, and the name of the variable that has it."""
_HYDRA = "hydra.core.hydra_config"


@dataclass(frozen=True, slots=True)
class SweepTrial:
    """One of several trainings of a sweep."""

    identity: tuple[str, ...]
    """Differs from trial to trial."""
    name: str
    parameters: Mapping[str, Any]

    def facts(self, prefix: str) -> list[Fact]:
        """Its parameters as those of its run: ``stability.trial.lr``."""
        return [Fact(f"{prefix}.{key}", str(value)) for key, value in list(self.parameters.items())[:LONGEST]]


def running_trial() -> SweepTrial | None:
    """The trial that the calling thread trains for."""
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
    """What was suggested so far is kept beside the trial; asking for it by name would ask its storage."""
    return SweepTrial(
        ("optuna", str(trial.study.study_name), str(trial.number)),
        f"trial {trial.number}",
        dict(trial._cached_frozen_trial.params),
    )


def _of_tune(trainable: Any) -> SweepTrial:
    identity = str(trainable.trial_id)
    return SweepTrial(("tune", identity), f"trial {identity}", dict(trainable.config))


def _hydra_job() -> SweepTrial | None:
    """The job of a Hydra application, by what was given for it on the command line or by the sweep."""
    kind = getattr(sys.modules.get(_HYDRA), "HydraConfig", None)
    if kind is None or not kind.initialized():
        return None
    config = kind.get()
    overrides = [str(each) for each in config.overrides.task]
    given = dict(each.lstrip("+~").split("=", 1) for each in overrides if "=" in each)
    if config.mode.name != "MULTIRUN":
        return SweepTrial(("hydra",), "", given)
    return SweepTrial(("hydra", str(config.job.num)), f"job {config.job.num}", given)
