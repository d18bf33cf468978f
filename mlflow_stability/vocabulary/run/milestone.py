"""What a journal tells beside numbers: how a recording began, what changed on the way, how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Opening:
    """A recording begins: which process trains, and which run it is for."""

    recording: str
    """A name of its own for this recording, unique in the world."""
    pid: int
    process_started: float
    """When the training process was started, by the wall clock of the time, in journals of older versions; 0 where the
    session's folder says which process it is."""
    host: str
    time: float
    tracking_uri: str | None = None
    """Where the run lives, without credentials; None: wherever MLflow's own defaults say, seen from ``directory``."""
    directory: str = ""
    """The working directory of the training, which relative tracking URIs refer to."""
    run_id: str | None = None
    """The run in progress when the recording began; None: the courier starts one."""
    resumed: bool = False
    """The run is one that ``MLFLOW_RUN_ID`` names: the courier resumes it, and ends it as it ends one of our own."""
    experiment_id: str | None = None
    """Where the courier starts its run; None: MLflow's own default."""
    first_step: int = 1
    """The first step of this recording: higher than 1 where it goes on with a run that has steps already."""
    earlier: list[str] = field(default_factory=list)
    """The recordings of the same process in the same run that had ended before, at least the newest of them: their
    steps come before those of this one, which is not a second process beside them."""
    log_every_n_steps: int = 10
    tags: dict[str, str] = field(default_factory=dict)
    """The user's ``extra_tags``."""
    world_size: int = 1
    job: str = ""
    """The launcher's job that this training is an attempt of; empty where nobody would start it again."""
    restarts: int = 0
    """How many attempts of the job there were before."""
    interactive: bool = False
    """Whether a person types the training: one who thinks is no stall."""
    layer_metrics: Literal["", "blocks", "parameters"] = ""
    """Which signals of layers become metrics: none, one for each block of the model, or all."""
    system_metrics: bool = False
    """Whether MLflow's own measurements of the machine are to be switched on."""
    detectors: str = ""
    """Who judges while it trains, with all thresholds, as `catalog.described` wrote it; replay builds the same."""
    schema: int = 1


@dataclass(frozen=True, slots=True)
class Note:
    """A fact about the recording that becomes the tag ``stability.<key>`` of its run."""

    key: str
    value: str
    step: int = 0
    time: float = 0.0


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that tells this training from others, or is needed to repeat it; a parameter of its run."""

    key: str
    """The run's parameter is ``stability.<key>``: ``learning_rate``, ``group_1.weight_decay``, ``git.commit``."""
    value: str
    """As it is, however long; whoever delivers it cuts it to what a store takes."""
    step: int = 0
    time: float = 0.0


@dataclass(frozen=True, slots=True)
class Reset:
    """From this step on the detectors know nothing of what came before but the learning rates, because the training was
    rolled back; replay forgets at the same place.
    """

    step: int
    attempt: int
    reason: str
    time: float = 0.0


@dataclass(frozen=True, slots=True)
class Gap:
    """These steps were trained but could not be recorded."""

    first_step: int
    last_step: int
    reason: str
    time: float = 0.0


@dataclass(frozen=True, slots=True)
class Closing:
    """A recording ends: how, and what the run's status has to say of it."""

    outcome: str
    """``finished``, ``stopped``, ``crashed``, ``exited``, ``interrupted``, ``out_of_memory``.

    A killed process writes none.
    """
    detail: str = ""
    step: int = 0
    time: float = 0.0
    run_was_active: bool = True
    """Whether the run was still in progress then: one that its owner had ended keeps its status."""


@dataclass(frozen=True, slots=True)
class Returned:
    """The thread that trained has ended and its process lives on: how the recording ended, if no other step comes."""

    outcome: str
    """As in `Closing`."""
    detail: str = ""
    step: int = 0
    time: float = 0.0
    run_was_active: bool = True
