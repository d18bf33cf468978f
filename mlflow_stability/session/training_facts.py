"""Facts that describe a training and are needed to repeat it; parameters ``stability.<key>`` of the run.

The trial of Optuna, Ray Tune or a Hydra multirun that a training belongs to is among them. Guarantees: the first value
of a key holds, later changes are findings; no library is imported and no storage is asked; a changed library gives no
trial; without news a call costs microseconds. Command lines and messages of errors are written down without secrets:
`***` replaces what an option, a variable, a field or an address contains. Rather too much is hidden than too little.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import pairwise
from types import FrameType
from typing import Any

from torch.nn import Module
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from mlflow_stability.probes.training_facts import (
    model_facts,
    optimizer_facts,
    scaler_facts,
    scheduler_facts,
    torch_facts,
)
from mlflow_stability.tracking.address import USERINFO
from mlflow_stability.vocabulary.run import Fact

HIDDEN = "***"
# The words that names are made of: --hf-token, wandb.apiKey, MY_PASSWORD.
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SECRET = re.compile(
    r"(?:apikey|auth|authorization|credentials?|passphrase|passwd|password|pwd|secret|token"
    r"|^(?:cookie|passcode|pat|sig|signature))$"
)
_INNOCENT_KEYS = frozenset(
    {"batch", "column", "data", "field", "group", "image", "input", "label", "metric", "monitor"}
)
_INNOCENT_KEYS |= {"index", "output", "partition", "primary", "sort", "target", "text", "value"}
"""Keys of these are no secrets; every other key is."""
_ADDRESSES = ["alerts"]  # ``--alerts`` of ``mlflow-stability run``: its URLs contain tokens anywhere
_SHORT = frozenset({"-p"})  # may be a password or a port; a port is a number
_NAME = r"[\w.\-+/\[\]]*[A-Za-z][\w.\-\]]*"
_ASSIGNED = re.compile(rf"(?P<name>{_NAME})(?P<mark>\s*[=:]\s*)(?P<value>.+)", re.DOTALL)
_FIELD = re.compile(
    rf"(?P<quote>['\"])(?P<name>{_NAME})(?P=quote)(?P<mark>\s*:\s*)(?P<value>\"[^\"]*\"|'[^']*'|[^,}}\]\s{{\['\"]+)"
)
_OPTION_OF_URL = re.compile(r"(?P<name>(?<=[?&;])[^=&;\s]+)=(?P<value>[^&;\s'\"]+)")
_SPACES = re.compile(r"(\s+)")
_NUMBER = re.compile(r"[\d.]+")
_HEADER = re.compile(r"(?i)\b(bearer|basic)\s+[\w.\-+/=]{6,}")
# Keys that show by their form what they are: of OpenAI, Hugging Face, GitHub, GitLab, AWS, Slack, Google; a JWT.
_FORMS = re.compile(
    r"\b(?:sk-[\w\-]{16,}|hf_\w{16,}|gh[oprsu]_\w{16,}|github_pat_\w{16,}|glpat-[\w\-]{16,}|AKIA[A-Z0-9]{12,}"
    r"|xox[abprs]-[\w\-]{8,}|AIza[\w\-]{30,}|eyJ[\w\-]{8,}\.[\w\-]{8,}\.[\w\-]*)"
)


def command_line(words: Sequence[str]) -> str:
    """Return one line that could be typed again, except for secrets."""
    return shlex.join(without_secrets(words))


def without_secrets(words: Iterable[str]) -> list[str]:
    """Hide secrets in words; the value of an option may be the next word."""
    hidden: list[str] = []
    hides_next = short = False
    for word in words:
        is_option = word.startswith("--") or (word.startswith("-") and (len(word) == 2 or not hides_next))
        if hides_next and not is_option:
            hidden.append(word if short and _NUMBER.fullmatch(word) else HIDDEN)
            hides_next = False
            continue
        hidden.append(_without(word))
        short = word in _SHORT
        hides_next = is_option and "=" not in word and (short or is_secret(word))
    return hidden


def message_without_secrets(text: str) -> str:
    """Hide secrets in the message of an error: in addresses, fields and assignments, and what has the form of a key."""
    return "".join(map(_without, _SPACES.split(_without_forms(text))))


def is_secret(name: str) -> bool:
    """Whether a name is one of a secret; ``max_tokens`` and ``tokenizer`` are not."""
    words = [word.lower() for word in _WORD.findall(name)]
    return (
        words == _ADDRESSES
        or any(_SECRET.search(word) for word in words)
        or any(word in ("key", "keys") and before not in _INNOCENT_KEYS for before, word in pairwise(["", *words]))
    )


def _without(word: str) -> str:
    assigned = _ASSIGNED.fullmatch(word)
    if assigned is not None and is_secret(assigned["name"]) and "://" not in assigned["name"] + assigned["mark"]:
        return f"{assigned['name']}{assigned['mark']}{HIDDEN}"
    return _without_forms(word)


def _without_forms(text: str) -> str:
    text = _FIELD.sub(_hide_field, text)
    text = USERINFO.sub(f"{HIDDEN}@", text)
    text = _OPTION_OF_URL.sub(_hide_option, text)
    text = _HEADER.sub(lambda match: f"{match[1]} {HIDDEN}", text)
    return _FORMS.sub(HIDDEN, text)


def _hide_field(match: re.Match[str]) -> str:
    if not is_secret(match["name"]):
        return match[0]
    return f"{match['quote']}{match['name']}{match['quote']}{match['mark']}{match['quote']}{HIDDEN}{match['quote']}"


def _hide_option(match: re.Match[str]) -> str:
    return f"{match['name']}={HIDDEN}" if is_secret(match["name"]) else match[0]


LIBRARIES = ("accelerate", "datasets", "deepspeed", "lightning", "mlflow", "numpy", "pytorch_lightning", "transformers")
"""Libraries whose versions are recorded where the script has loaded them."""


def environment_facts(world_size: int) -> dict[str, str]:
    system = os.uname()
    # As typed, with options of the interpreter; no rule could find the secrets in a program after ``-c``.
    words = list(sys.orig_argv[1:]) or list(sys.argv)
    if "-c" in words[:-1] and sys.argv[:1] == ["-c"]:
        words[words.index("-c") + 1] = "…"
    facts = {
        "python": sys.version.split()[0],
        "system": f"{system.sysname} {system.release} {system.machine}",
        "processors": str(os.cpu_count() or ""),
        "argv": command_line(words),
        "world_size": str(world_size),
    }
    for name in LIBRARIES:
        version = getattr(sys.modules.get(name), "__version__", None)
        if isinstance(version, str):
            facts[name] = version
    return facts


@dataclass(frozen=True, slots=True)
class TrainingView:
    optimizers: Sequence[Optimizer]  # in the order of their first steps
    models: Sequence[Module] = ()  # outermost modules that own the optimizers' parameters
    schedulers: Sequence[LRScheduler] = ()  # all that exist; those of other optimizers are ignored
    scaler: Any = None
    batch: str = ""  # the last batch in the words of `batch_words`, if known
    rows: int = 0  # its number of rows; 0 if unknown
    autocast: str = ""  # autocast type in the words of `autocast_now`; empty: that of the weights
    micro_batches: int = 0  # backward passes of the last capture; 0 if unknown
    trained: Set[int] = frozenset()
    """Ids of the parameters changed in the first steps: GANs freeze their halves in turns."""
    stepping: Sequence[Optimizer] = ()  # those that took a step since the last look; a training may have ended
    made: int = 1  # the highest number of optimizers whose first parameter is the same
    limits: Mapping[str, str] = field(default_factory=dict)
    """Clipping limits: ``max_norm``, ``clip_value``, ``optimizer_1.max_norm``."""
    uncounted: str = ""  # why operations of the model are not counted, if known
    unknown_kernels: Sequence[str] = ()  # kernels without a formula, so not counted


MOST_FACTS = 1_000  # limit for a script that makes new optimizers without end


class TrainingFacts:
    def __init__(self, world_size: int = 1) -> None:
        self._world_size = world_size
        self._known: set[str] = set()
        self._seen: tuple[object, ...] = ()

    def collect(self, view: TrainingView) -> tuple[Fact, ...]:
        """Return new facts; all of them the first time."""
        # What facts depend on: a second optimizer may take its first step later.
        seen = (
            *((id(optimizer), len(optimizer.param_groups)) for optimizer in view.optimizers),
            *map(id, view.models),
            len(view.schedulers),
            view.scaler is not None,
            bool(view.batch),
            bool(view.autocast),
            bool(view.micro_batches),
            *view.limits,
            view.uncounted,
            *view.unknown_kernels,
        )
        if seen == self._seen:
            return ()
        facts = {
            **optimizer_facts(view.optimizers),
            **scheduler_facts(view.schedulers, view.optimizers),
            **model_facts(view.models, view.optimizers),
            **scaler_facts(view.scaler),
            "batch": view.batch,
            "autocast": view.autocast,
            "accumulation": str(view.micro_batches) if view.micro_batches else "",
            **{_clipping(name): limit for name, limit in view.limits.items()},
            "flops.reason": view.uncounted,
            "flops.unknown": ", ".join(view.unknown_kernels),
        }
        if not self._seen:
            facts |= torch_facts() | environment_facts(self._world_size)
        self._seen = seen
        room = MOST_FACTS - len(self._known)
        new = [(key, value) for key, value in facts.items() if value and key not in self._known][:room]
        self._known.update(key for key, _ in new)
        return tuple(Fact(key, value) for key, value in new)


def _clipping(name: str) -> str:
    """``clipping.max_norm``, or ``optimizer_1.clipping.max_norm`` where that one differs."""
    before, _, limit = name.rpartition(".")
    return f"{before}.clipping.{limit}" if before else f"clipping.{limit}"


LONGEST = 100  # limit for parameters: a whole configuration is no choice of a sweep
_RUNNING = {"optuna.study._optimize": "trial", "ray.tune.trainable.function_trainable": "self"}
"""Modules whose running functions hold a trial, and the name of the variable."""
_HYDRA = "hydra.core.hydra_config"


@dataclass(frozen=True, slots=True)
class SweepTrial:
    identity: tuple[str, ...]  # differs from trial to trial
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
        if holder is not None and variable == "trial":
            # From the cache of Optuna's trial: asking for parameters by name would ask its storage.
            identity = ("optuna", str(holder.study.study_name), str(holder.number))
            return SweepTrial(identity, f"trial {holder.number}", dict(holder._cached_frozen_trial.params))
        if holder is not None:
            return SweepTrial(("tune", str(holder.trial_id)), f"trial {holder.trial_id}", dict(holder.config))
        frame = frame.f_back
    return None


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
