"""All trainers of the table, in its order."""

from __future__ import annotations

from importlib import import_module

from trainers.script import Trainer

FILES = (
    "raw",
    "lightning_trainers",
    "hugging_face",
    "fine_tuning",
    "training_libraries",
    "own_optimizers",
    "data_kinds",
    "reinforcement_learning",
    "detection",
    "several_processes",
    "clusters",
    "sweeps",
)


def trainers() -> dict[str, Trainer]:
    """By name."""
    result = [trainer for name in FILES for trainer in import_module(f"trainers.frameworks.{name}").TRAINERS]
    return {entry.name: entry for entry in result}


def trainer_named(name: str) -> Trainer:
    """The one of this name."""
    values = trainers()
    if name not in values:
        raise SystemExit(f"No such trainer: {name!r}. There are: {', '.join(values)}.")
    return values[name]
