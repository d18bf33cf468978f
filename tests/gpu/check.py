"""What a check of a device is, and what comes out of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True)
class Outcome:
    """What one check found."""

    figure: str
    """The numbers, in a few words."""
    passed: bool = True


@dataclass(frozen=True)
class Bench:
    """Where checks run."""

    device: torch.device
    folder: Path
    """For journals."""
    quick: bool = False
    """Fewer repetitions: for a first look, and for devices that are no GPU."""

    @property
    def is_cuda(self) -> bool:
        """Whether it is an NVIDIA or AMD GPU."""
        return self.device.type == "cuda"

    def wait(self) -> None:
        """Until the device has done all that it was given."""
        if self.is_cuda:
            torch.cuda.synchronize()


@dataclass(frozen=True)
class Check:
    """One row of the table."""

    name: str
    run: Callable[[Bench], Outcome]
    needs_cuda: bool = False
    """What it looks at does not exist elsewhere."""


class NotHereError(Exception):
    """The device, or this build of PyTorch, lacks what the check is about."""
