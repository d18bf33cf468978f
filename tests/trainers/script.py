"""What a training script of the table is given, and what it notes of itself.

In: the way it is to be run. Out: a JSON file with the losses and gradient norms that the script computed, a fingerprint
of its weights before every update, and one of everything at its end. The script knows nothing of what was recorded.
"""

from __future__ import annotations

import hashlib
import json
import logging
import random
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

Mode = Literal["bare", "watched", "guard", "rollback"]
MODES: tuple[Mode, ...] = ("bare", "watched", "guard", "rollback")
STEPS, NAN_AT = 24, 12
"""How many steps a script trains for, and which of them, counted from 0, gets the NaN."""
SEED = 7


@dataclass
class Script:
    """Handed to a training script: where it would call `autolog()`, and where it notes what it sees itself."""

    mode: Mode
    out: Path
    losses: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    norms: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    weights: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    validation: list[float] = field(default_factory=list)
    own_log: list[float] = field(default_factory=list)
    sampled: list[float] = field(default_factory=list)
    """The learning rates of the trials of a sweep."""

    def autolog(self) -> None:
        """The line that a user adds to the script; nothing if the training is to be bare."""
        _seed()
        if self.mode == "bare":
            return
        import mlflow_stability

        warnings = logging.FileHandler(self.out.with_suffix(".log"))
        warnings.setLevel(logging.WARNING)
        logging.getLogger("mlflow_stability").addHandler(warnings)
        mlflow_stability.autolog(guard=self.mode == "guard" or None, rollback=self.mode == "rollback")

    def nan(self, step: int) -> bool:
        """Whether the batch of this step is to be a broken one."""
        return self.mode in ("guard", "rollback") and step == NAN_AT

    def batch(self, numbers: Tensor, step: int) -> Tensor:
        """The batch of this step: its own, or NaN."""
        return numbers * float("nan") if self.nan(step) else numbers

    def step(
        self,
        model: nn.Module | Iterable[Tensor],
        loss: float | Tensor | None = None,
        norm: float | Tensor | None = None,
        track: str = "",
    ) -> None:
        """Note a step, after its backward and before its update; each track with the model that it trains."""
        self.weights[track].append(fingerprint(_parameters(model)))
        self.note(loss, norm, track)

    def note(self, loss: float | Tensor | None = None, norm: float | Tensor | None = None, track: str = "") -> None:
        """Note what the script learns of a step only later."""
        if loss is not None:
            self.losses[track].append(_number(loss))
        if norm is not None:
            self.norms[track].append(_number(norm))

    def validated(self, *losses: float | Tensor) -> None:
        """Note validation losses that the trainer has computed."""
        self.validation += map(_number, losses)

    def logged(self, *losses: float) -> None:
        """Note what the trainer's own log says of the loss of each step."""
        self.own_log += losses

    def end(self, *models: nn.Module | Iterable[Tensor], tracks: tuple[str, ...] = ("",)) -> None:
        """Note what the training leaves: weights, buffers, random generators."""
        for model, track in zip(models, tracks, strict=True):
            self.weights[track].append(fingerprint(_parameters(model)))
        left = {
            "losses": self.losses,
            "norms": self.norms,
            "weights": self.weights,
            "validation": self.validation,
            "own_log": self.own_log,
            "sampled": self.sampled,
            "state": [fingerprint(module.state_dict().values()) for module in models if isinstance(module, nn.Module)],
            "finite": all(
                bool(_local(parameter).isfinite().all()) for model in models for parameter in _parameters(model)
            ),
            "random": hashlib.blake2b(repr(_random_states()).encode()).hexdigest(),
        }
        self.out.write_text(json.dumps(left), encoding="utf-8")


@dataclass(frozen=True)
class Trainer:
    """A row of the table: a script, and what it takes to run it."""

    name: str
    train: Callable[[Script], None]
    packages: tuple[str, ...] = ()
    """What pip has to install beyond the extra `[test]`."""
    alone: tuple[str, ...] = ()
    """Likewise, but without what these ask for."""
    shown: tuple[str, ...] = ()
    """The distributions whose version the row tells."""
    processes: int = 1
    """Started as torchrun would."""
    split: bool = False
    """Whether parameters are split over processes: the run says what of them is not recorded."""


def norm_of(parameters: Iterable[Tensor]) -> float:
    """The L2 norm of all gradients, in double precision."""
    squares = [
        _local(parameter.grad).detach().double().square().sum()
        for parameter in parameters
        if parameter.grad is not None
    ]
    return float(torch.stack(squares).sum().sqrt()) if squares else float("nan")


def fingerprint(tensors: Iterable[Any]) -> str:
    """Differs where a single bit does."""
    digest = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        if isinstance(tensor, Tensor):
            digest.update(_local(tensor).detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _number(value: float | Tensor) -> float:
    return float(value.detach() if isinstance(value, Tensor) else value)


def _parameters(model: nn.Module | Iterable[Tensor]) -> list[Tensor]:
    return list(model.parameters() if isinstance(model, nn.Module) else model)


def _local(tensor: Any) -> Tensor:
    """Of a tensor that several processes share, the part that is here."""
    here: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return here


def _seed() -> None:
    random.seed(SEED)
    np.random.seed(SEED)
    torch.manual_seed(SEED)


def _random_states() -> tuple[Any, ...]:
    name, keys, *rest = np.random.get_state()
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), name, np.asarray(keys).tobytes(), *rest
