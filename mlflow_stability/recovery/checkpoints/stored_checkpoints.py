"""Checkpoints on disk as their `meta.json` describes them, without torch.

Guarantees: `find` returns only complete checkpoints with the right hash, and names the damaged ones it passed over; a
torn or foreign `meta.json` is no meta data.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from mlflow_stability.errors import CheckpointsRefused
from mlflow_stability.journal.layout import read_page
from mlflow_stability.journal.process_identity import (
    ProcessStatus,
    identity_from,
    launched_job,
    marked_folders,
    process_status,
)
from mlflow_stability.vocabulary.settings import CHECKPOINTS_FOLDER

SCHEMA = 1  # version of the metadata of a checkpoint
PREFIX = "rollback_ckpt-"
STATE, META = "state.pt", "meta.json"
METADATA = ".metadata"  # index of shards, written by `torch.distributed.checkpoint`

_NAME = re.compile(re.escape(PREFIX) + r"(\d{6,})-(\S+)")


@dataclass(frozen=True, slots=True)
class CheckpointMeta:
    step: int
    loss: float  # NaN if unknown
    sha256: str
    size: int  # bytes of `state.pt` and all shards
    time: float
    finite: bool = True
    good: bool = False
    left_out: tuple[str, ...] = ()  # state of optimizers that a checkpoint cannot hold
    best_by: str = ""  # metric by which the best checkpoint is chosen; empty: the loss
    mode: str = "min"
    value: float | None = None  # the metric `best_by` at this step; None if not measured
    shards: tuple[tuple[str, int, str], ...] = ()  # name, size and hash of each shard file
    schema: int = SCHEMA

    @property
    def state_size(self) -> int:
        return self.size - sum(size for _, size, _ in self.shards)

    @property
    def name(self) -> str:
        loss = str(self.loss)
        if math.isfinite(self.loss):
            loss = f"{self.loss:.4f}" if abs(self.loss) < 1e6 else f"{self.loss:.4e}"
        return f"{PREFIX}{self.step:06d}-{loss}"

    @property
    def rank(self) -> float:
        """Lower is better; infinite if unknown."""
        value = self.value if self.best_by else self.loss
        if value is None or math.isnan(value):
            return math.inf
        return -value if self.best_by and self.mode == "max" else value

    def to_json(self) -> bytes:
        facts = dataclasses.asdict(self)
        for name in ("loss", "value"):
            if facts[name] is not None and not math.isfinite(facts[name]):
                facts[name] = str(facts[name])
        return json.dumps(facts, indent=1).encode()


def read_meta(content: bytes) -> CheckpointMeta | None:
    """Parse a `meta.json`; None if it is not one."""
    try:
        facts: dict[str, Any] = json.loads(content)
        names = {field.name for field in dataclasses.fields(CheckpointMeta)}
        facts = {key: value for key, value in facts.items() if key in names}  # a later version may know more
        facts |= {name: str(facts[name]) for name in ("sha256", "best_by", "mode") if name in facts}
        datetime.fromtimestamp(facts["time"])  # is shown
        return CheckpointMeta(
            **{
                **facts,
                "step": int(facts["step"]),
                "loss": float(facts["loss"]),
                "value": None if facts.get("value") is None else float(facts["value"]),
                "size": int(facts["size"]),
                "good": facts.get("good", False) is True,
                "left_out": tuple(map(str, facts.get("left_out", ()))),
                "shards": tuple((str(name), int(size), str(sha256)) for name, size, sha256 in facts.get("shards", ())),
            }
        )
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, OSError, RecursionError):
        return None


def best_of(metas: Sequence[CheckpointMeta]) -> CheckpointMeta | None:
    """Return the best of the good checkpoints; None without one, or where no metric is known."""
    good = [meta for meta in metas if meta.good and meta.finite]
    best = min(good, key=lambda meta: meta.rank, default=None)
    return None if best is None or math.isinf(best.rank) else best


def last_good_of(metas: Sequence[CheckpointMeta]) -> CheckpointMeta | None:
    return max((meta for meta in metas if meta.good and meta.finite), key=lambda meta: meta.step, default=None)


def step_of_name(name: str) -> int | None:
    """Return the step in the name of a checkpoint folder; None if it is no checkpoint."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


Which = Literal["last_good", "best", "newest"] | int
"""The newest good one, the best good one, the newest of all, or that of a step."""


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    folder: Path
    step: int
    meta: CheckpointMeta | None  # None where `meta.json` is missing or torn

    @property
    def is_good(self) -> bool:
        return self.meta is not None and self.meta.good and self.meta.finite


@dataclass(frozen=True, slots=True)
class ChosenCheckpoint:
    checkpoint: StoredCheckpoint
    messages: tuple[str, ...]


def listing(directory: Path) -> list[StoredCheckpoint]:
    """Return the checkpoints of a directory, oldest first, including damaged ones."""
    stored = []
    for folder in directory.iterdir() if directory.is_dir() else ():
        step = step_of_name(folder.name)
        if step is not None and folder.is_dir():
            try:
                meta = read_meta((folder / META).read_bytes())
            except OSError:
                meta = None
            stored.append(StoredCheckpoint(folder, step, meta))
    return sorted(stored, key=lambda checkpoint: (checkpoint.step, checkpoint.folder.name))


def damage_of(checkpoint: StoredCheckpoint) -> str:
    """Describe the damage of a checkpoint; empty where it is complete with the right hash."""
    meta = checkpoint.meta
    if meta is None:
        return f"{META} cannot be read" if (checkpoint.folder / META).exists() else f"{META} is missing"
    if meta.step != checkpoint.step:
        return f"{META} names step {meta.step}"
    files = ((STATE, meta.state_size, meta.sha256), *meta.shards)
    return next((damage for file in files if (damage := _damage_of_file(checkpoint.folder, *file))), "")


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
    """Return the wanted checkpoint, or the next older one that is intact."""
    stored = listing(directory)
    if not stored:
        raise CheckpointsRefused(f"No checkpoint in {directory}.")
    damaged: list[str] = []
    for candidate in _in_order(stored, which):
        damage = damage_of(candidate)
        if not damage:
            unread = [other for other in reversed(stored) if other.meta is None and other.step > candidate.step]
            damaged += [f"{other.folder.name} is damaged ({damage_of(other)})" for other in unread]
            return ChosenCheckpoint(candidate, _messages(list(dict.fromkeys(damaged)), candidate, which))
        damaged.append(f"{candidate.folder.name} is damaged ({damage})")
    if not damaged:
        steps = ", ".join(str(checkpoint.step) for checkpoint in stored)
        raise CheckpointsRefused(f"No checkpoint of step {which} or before in {directory}; available steps: {steps}.")
    raise CheckpointsRefused(f"No checkpoint in {directory} can be used: {'; '.join(damaged)}.")


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


OWNER = "owner.json"  # names the run and the process that write to a directory


def read_owner(directory: Path) -> dict[str, Any]:
    return read_page(directory / OWNER)


def owner_lives(owner: Mapping[str, Any]) -> bool:
    """Whether the process named in an owner file is certainly alive; unknown for another machine."""
    process = identity_from(owner)
    return process is not None and process_status(process) is ProcessStatus.LIVES


def _in_order(stored: Sequence[StoredCheckpoint], which: Which) -> list[StoredCheckpoint]:
    """Return candidates in the order to try them, good ones first where one is wanted."""
    newest = list(reversed(stored))
    if isinstance(which, int):
        return [checkpoint for checkpoint in newest if checkpoint.step <= which]
    if which == "newest":
        return newest
    good = [checkpoint for checkpoint in newest if checkpoint.is_good]
    if which == "best":
        good.sort(key=lambda checkpoint: math.inf if checkpoint.meta is None else checkpoint.meta.rank)
    return good + [checkpoint for checkpoint in newest if not checkpoint.is_good]


def _messages(damaged: Sequence[str], used: StoredCheckpoint, which: Which) -> tuple[str, ...]:
    messages = [f"{damage}; using step {used.step} instead." for damage in damaged]
    if isinstance(which, int) and which != used.step and not damaged:
        messages.append(f"No checkpoint of step {which}; using step {used.step} instead.")
    if which in ("last_good", "best") and not used.is_good:
        newest = f"using the newest complete one, step {used.step}."
        messages.append(f"No checkpoint is verified by healthy steps yet; {newest}")
    return tuple(messages)


def folder_of_job(root: Path) -> Path | None:
    """Return the checkpoints of the newest attempt of a restarted job that left any; `root`: the journal's folder."""
    job = launched_job()
    if job is None or not job.restarts:
        return None
    folders = marked_folders(root / CHECKPOINTS_FOLDER, job)
    return next((folder for folder in folders if any(stored.meta is not None for stored in listing(folder))), None)
