"""Recognises trainings of libraries whose classes tell what the loss is: TRL, Stable-Baselines3, TorchRL and others.

In: the modules that are loaded and the objects that there are. Out: why the loss has no level, or None. Guarantees:
no library is imported; without one of them nothing is looked at.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable

from torch.nn import Module

from mlflow_stability.probes.objects.model_discovery import living
from mlflow_stability.vocabulary.loss_level import NoLevel

TRAINERS: tuple[tuple[re.Pattern[str], NoLevel], ...] = (
    (re.compile(r"Online|Nash|XPO|GRPO|PPO|RLOO|Reinforce"), NoLevel.POLICY),
    (re.compile(r"DPO|KTO|ORPO|CPO|BCO"), NoLevel.PREFERENCE),
)
"""Names of TRL's trainers. Those for supervised fine-tuning, rewards and distillation have a level."""
MODULES: tuple[tuple[re.Pattern[str], NoLevel], ...] = (
    (re.compile(r"(?:stable_baselines3|sb3_contrib)\.(?:dqn|qrdqn|sac|td3|tqc|crossq|ddpg)\b"), NoLevel.BOOTSTRAPPED),
    (re.compile(r"(?:stable_baselines3|sb3_contrib)\.common\.(?:\w+\.)*policies"), NoLevel.POLICY),
    (re.compile(r"torchrl\.objectives\.(?:ppo|a2c|reinforce|grpo|llm)"), NoLevel.POLICY),
    (re.compile(r"torchrl\.objectives\.(?:dqn|sac|ddpg|td3|redq|iql|cql|crossq|dreamer)"), NoLevel.BOOTSTRAPPED),
    (
        re.compile(r"lightly\.loss\.(?:dino|ibot|koleo)|solo\.methods\.(?:byol|dino|mocov|nnbyol)"),
        NoLevel.SELF_DISTILLATION,
    ),
)
"""Where classes of modules are defined that train without a level."""
LIBRARIES = ("trl", "stable_baselines3", "torchrl", "lightly", "solo")


def level_by_classes(modules: Iterable[Module]) -> NoLevel | None:
    """Why the loss of a training that has these modules has no level, as far as classes tell."""
    if not any(name in sys.modules for name in LIBRARIES):
        return None
    trainer = getattr(sys.modules.get("transformers.trainer"), "Trainer", None)
    if "trl" in sys.modules and isinstance(trainer, type):
        for each in living(trainer)[0]:
            found = _reason(
                TRAINERS, [base.__name__ for base in type(each).__mro__ if base.__module__.startswith("trl")]
            )
            if found is not None:
                return found
    kinds = {type(each) for each in modules}
    return _reason(MODULES, sorted({base.__module__ for kind in kinds for base in kind.__mro__}))


def _reason(known: Iterable[tuple[re.Pattern[str], NoLevel]], names: Iterable[str]) -> NoLevel | None:
    names = list(names)
    return next((reason for pattern, reason in known if any(pattern.search(name) for name in names)), None)
