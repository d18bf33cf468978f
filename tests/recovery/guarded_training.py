"""Trainings under a guard that is wired into torch's hooks as a session wires it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from probes.looked_into import unguarded
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from mlflow_stability.probes.hooks.torch_hooks import TorchWatch
from mlflow_stability.probes.step.capture import ProbeReading
from mlflow_stability.probes.step.step_meter import StepMeter
from mlflow_stability.recovery.skipping.step_guard import StepGuard, Verdict, Vote
from mlflow_stability.recovery.skipping.step_undo import BufferUndo
from mlflow_stability.vocabulary.measured.signal import Signal


class GuardedMeter(StepMeter):
    """A meter that asks the guard before each step, after it has measured."""

    def __init__(self, guard: StepGuard) -> None:
        super().__init__(unguarded, lambda optimizer: self, self._read)
        self._clipped_norm.is_on = False  # as under the autopilot
        self.guard = guard
        self.verdicts: list[Verdict] = []
        self.readings: list[ProbeReading] = []
        self.undone_late = 0
        self.largest: float | None = None

    def _read(self, owner: Any, reading: ProbeReading) -> None:
        self.readings.append(reading)

    def closure_ends(self, optimizer: Optimizer, first: bool, failed: bool) -> None:
        super().closure_ends(optimizer, first, failed)
        if not first and not failed:
            self.guard.evaluated_again(optimizer)

    def before_step(self, optimizer: Optimizer) -> None:
        before = len(self.capture.norms)
        super().before_step(optimizer)
        late = id(optimizer) not in self.capture.stepped
        capture = self._last if late else self.capture
        assert capture is not None
        norms = capture.norms[before:] if not late and len(capture.norms) > before else capture.norms[-1:]
        track = self._tracks._tracks[optimizer]
        partners = [item for item, theirs in self._tracks._tracks.items() if theirs == track]
        norm = norms[-1] if norms and not late else None
        assert not isinstance(norm, float)
        asked = optimizer, capture, capture.losses, norm, partners, self.largest
        verdict = Verdict(False, None) if self.guard.sound_at_once(*asked) else self.guard.before_step(*asked)
        if len(capture.stepped) == 1:
            self.verdicts.append(verdict)

    def swallowed(self, scaler: Any, optimizer: Optimizer) -> None:
        StepMeter.before_step(self, optimizer)
        self.verdicts.append(self.guard.swallowed(optimizer, self.capture))
        self.step_ended(optimizer)

    def step_ended(self, optimizer: Optimizer) -> None:
        self.undone_late += self.guard.step_ended(optimizer)
        super().step_ended(optimizer)

    def values(self, quantity: str) -> list[float]:
        return [
            dict(zip(reading.signals, reading.values, strict=True)).get(Signal(quantity), 0.0)
            for reading in self.readings
        ]


@contextmanager
def guarding(*modules: Module, vote: Vote | None = None, on_device: bool | None = None) -> Iterator[GuardedMeter]:
    guard = StepGuard(BufferUndo(modules) if modules else None, vote, on_device)
    meter = GuardedMeter(guard)
    watch = TorchWatch(unguarded, meter)
    watch.install()
    before = register_optimizer_step_pre_hook(
        lambda optimizer, args, kwargs: guard.before_closure(optimizer) if len(args) > 1 or kwargs else None
    )
    try:
        yield meter
    finally:
        before.remove()
        watch.remove()


def picture(*things: Module | Optimizer) -> list[Any]:
    """All that a step could change, as it is now."""
    return [_copied(thing.state_dict()) for thing in things]


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_copied(item) for item in value]
    return value


def differences(first: Any, other: Any, where: str = "") -> list[str]:
    """Where two pictures are not bit-identical."""
    if isinstance(first, Tensor) and isinstance(other, Tensor):
        same = first.dtype == other.dtype and first.shape == other.shape and _bits(first) == _bits(other)
        return [] if same else [where]
    if isinstance(first, dict) and isinstance(other, dict):
        if first.keys() != other.keys():
            return [f"{where}: {sorted(map(str, first.keys() ^ other.keys()))}"]
        return [difference for key in first for difference in differences(first[key], other[key], f"{where}/{key}")]
    if isinstance(first, Sequence) and isinstance(other, Sequence) and not isinstance(first, str):
        if len(first) != len(other):
            return [f"{where}: {len(first)} and {len(other)}"]
        pairs = enumerate(zip(first, other, strict=True))
        return [difference for number, (a, b) in pairs for difference in differences(a, b, f"{where}/{number}")]
    return [] if first == other else [f"{where}: {first!r} and {other!r}"]


def _bits(tensor: Tensor) -> bytes:
    return tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
