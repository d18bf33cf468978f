"""Looks through a directory of checkpoints, and believes none without its hash.

In: a directory. Out: what is there, what is damaged and how, and the one that was asked for. Guarantees: what is given
out is complete and verified; damaged ones are passed over with a message each; nothing is written, and torch is not
needed.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mlflow_stability.errors import CheckpointsRefused
from mlflow_stability.recovery.checkpoints.checkpoint_meta import META, STATE, CheckpointMeta, read_meta, step_of_name

Which = Literal["last_good", "best", "newest"] | int
"""Which checkpoint: the newest good one, the good one of best loss or metric, the newest of all, or that of a step."""


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """A checkpoint as it lies there."""

    folder: Path
    step: int
    meta: CheckpointMeta | None
    """None where `meta.json` is missing or torn."""

    @property
    def is_good(self) -> bool:
        """Whether it has proved itself."""
        return self.meta is not None and self.meta.good and self.meta.finite


@dataclass(frozen=True, slots=True)
class ChosenCheckpoint:
    """The checkpoint to use, and what has to be said about the choice."""

    checkpoint: StoredCheckpoint
    messages: tuple[str, ...]


def listing(directory: Path) -> list[StoredCheckpoint]:
    """The checkpoints of a directory, oldest first, damaged ones among them."""
    found = []
    for folder in directory.iterdir() if directory.is_dir() else ():
        step = step_of_name(folder.name)
        if step is not None and folder.is_dir():
            found.append(StoredCheckpoint(folder, step, _meta_of(folder)))
    return sorted(found, key=lambda each: (each.step, each.folder.name))


def damage_of(checkpoint: StoredCheckpoint) -> str:
    """In what a checkpoint is damaged; empty where it is complete and its hash is right."""
    meta = checkpoint.meta
    if meta is None:
        return f"{META} cannot be read" if (checkpoint.folder / META).exists() else f"{META} is missing"
    if meta.step != checkpoint.step:
        return f"{META} names step {meta.step}"
    files = ((STATE, meta.state_size, meta.sha256), *meta.shards)
    return next((damage for each in files if (damage := _damage_of_file(checkpoint.folder, *each))), "")


def _damage_of_file(folder: Path, name: str, expected: int, sha256: str) -> str:
    try:
        size = (folder / name).stat().st_size
        if size != expected:
            return f"{name} has {size:,} bytes, expected {expected:,}"
        if sha256_of(folder / name) != sha256:
            return f"{name} is damaged: its SHA-256 differs"
    except FileNotFoundError:
        return f"{name} is missing"
    except OSError as error:
        return f"{name} cannot be read ({error.strerror})"
    return ""


def find(directory: Path, which: Which = "last_good") -> ChosenCheckpoint:
    """The checkpoint that was asked for, or the next older one that is whole."""
    stored = listing(directory)
    if not stored:
        raise CheckpointsRefused(f"No checkpoint in {directory}.")
    damaged: list[str] = []
    for each in _in_order(stored, which):
        damage = damage_of(each)
        if not damage:
            passed = [other for other in stored if other.meta is None and other.step > each.step]
            known = [f"{other.folder.name} is damaged ({damage_of(other)})" for other in reversed(passed)]
            return ChosenCheckpoint(each, _messages(list(dict.fromkeys(damaged + known)), each, which))
        damaged.append(f"{each.folder.name} is damaged ({damage})")
    if not damaged:
        steps = ", ".join(str(each.step) for each in stored)
        raise CheckpointsRefused(f"No checkpoint of step {which} or before in {directory}; available steps: {steps}.")
    raise CheckpointsRefused(f"No checkpoint in {directory} can be used: {'; '.join(damaged)}.")


def sha256_of(path: Path) -> str:
    """The hash of a file."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            found.update(block)
    return found.hexdigest()


def _in_order(stored: Sequence[StoredCheckpoint], which: Which) -> list[StoredCheckpoint]:
    """The checkpoints as they should be tried: good ones first where a good one is wanted."""
    newest = list(reversed(stored))
    if isinstance(which, int):
        return [each for each in newest if each.step <= which]
    if which == "newest":
        return newest
    rest = [each for each in newest if not each.is_good]
    good = [each for each in newest if each.is_good]
    if which == "best":
        good.sort(key=_rank)
    return good + rest


def _messages(damaged: Sequence[str], used: StoredCheckpoint, which: Which) -> tuple[str, ...]:
    said = [f"{each}; using step {used.step} instead." for each in damaged]
    if isinstance(which, int) and which != used.step and not damaged:
        said.append(f"No checkpoint of step {which}; using step {used.step} instead.")
    if which in ("last_good", "best") and not used.is_good:
        said.append(f"No checkpoint is verified by healthy steps yet; using the newest complete one, step {used.step}.")
    return tuple(said)


def _rank(checkpoint: StoredCheckpoint) -> float:
    return math.inf if checkpoint.meta is None else checkpoint.meta.rank


def _meta_of(folder: Path) -> CheckpointMeta | None:
    try:
        return read_meta((folder / META).read_bytes())
    except OSError:
        return None
