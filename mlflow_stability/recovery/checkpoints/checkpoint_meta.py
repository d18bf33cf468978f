"""What is known of a checkpoint without loading it: the file `meta.json` beside its state.

In: facts of a checkpoint. Out: JSON, and back. Guarantees: a file that is torn or that somebody else wrote is no meta
data; numbers that JSON does not know (NaN, infinity) are written as text.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

SCHEMA = 1
PREFIX = "rollback_ckpt-"
STATE, META = "state.pt", "meta.json"
METADATA = ".metadata"
"""Where `torch.distributed.checkpoint` says which file holds which shard."""

_NAME = re.compile(re.escape(PREFIX) + r"(\d{6,})-(\S+)")


@dataclass(frozen=True, slots=True)
class CheckpointMeta:
    """The facts of one checkpoint."""

    step: int
    loss: float
    """The loss at that step; NaN where none is known."""
    sha256: str
    """Of `state.pt`."""
    size: int
    """Of `state.pt`, in bytes; of all files, where there are shards."""
    time: float
    """When it was written."""
    finite: bool = True
    """Whether all of the state is finite; what is not is never written by a training."""
    good: bool = False
    """Whether enough healthy steps have followed."""
    left_out: tuple[str, ...] = ()
    """What of the optimizers' state no checkpoint can hold."""
    best_by: str = ""
    """The metric that says which checkpoint is the best; empty: the loss."""
    mode: str = "min"
    """Whether the best value of it is the lowest or the highest."""
    value: float | None = None
    """That metric at this step; None where it was not measured there."""
    shards: tuple[tuple[str, int, str], ...] = ()
    """Of a state that is split over processes: the files beside `state.pt`, their sizes and hashes."""
    schema: int = SCHEMA

    @property
    def state_size(self) -> int:
        """Of `state.pt`, in bytes."""
        return self.size - sum(size for _, size, _ in self.shards)

    @property
    def name(self) -> str:
        """What its folder is called."""
        return f"{PREFIX}{self.step:06d}-{_loss_text(self.loss)}"

    @property
    def rank(self) -> float:
        """Lower is better; infinity where it is not known."""
        value = self.value if self.best_by else self.loss
        if value is None or math.isnan(value):
            return math.inf
        return -value if self.best_by and self.mode == "max" else value

    def to_json(self) -> bytes:
        """The file's content."""
        facts = dataclasses.asdict(self)
        for name in ("loss", "value"):
            if facts[name] is not None and not math.isfinite(facts[name]):
                facts[name] = str(facts[name])
        return json.dumps(facts, indent=1).encode()


def read_meta(content: bytes) -> CheckpointMeta | None:
    """What a `meta.json` says; None where it is none."""
    try:
        facts: dict[str, Any] = json.loads(content)
        known = {each.name for each in dataclasses.fields(CheckpointMeta)}
        facts = {key: value for key, value in facts.items() if key in known}  # a later version may know more
        return CheckpointMeta(
            **{
                **facts,
                "step": int(facts["step"]),
                "loss": float(facts["loss"]),
                "value": None if facts.get("value") is None else float(facts["value"]),
                "size": int(facts["size"]),
                "left_out": tuple(facts.get("left_out", ())),
                "shards": tuple((str(name), int(size), str(sha256)) for name, size, sha256 in facts.get("shards", ())),
            }
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def best_of(metas: Sequence[CheckpointMeta]) -> CheckpointMeta | None:
    """The best one of those that proved themselves; None where there is none, or none whose metric is known."""
    good = [each for each in metas if each.good and each.finite]
    best = min(good, key=lambda each: each.rank, default=None)
    return None if best is None or math.isinf(best.rank) else best


def last_good_of(metas: Sequence[CheckpointMeta]) -> CheckpointMeta | None:
    """The newest one of those that proved themselves."""
    return max((each for each in metas if each.good and each.finite), key=lambda each: each.step, default=None)


def step_of_name(name: str) -> int | None:
    """The step in the name of a checkpoint's folder; None where it is no checkpoint."""
    found = _NAME.fullmatch(name)
    return int(found[1]) if found else None


def _loss_text(loss: float) -> str:
    if not math.isfinite(loss):
        return str(loss)
    return f"{loss:.4f}" if abs(loss) < 1e6 else f"{loss:.4e}"
