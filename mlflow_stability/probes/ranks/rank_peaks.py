"""What stood out on one process since ranks last compared: a non-finite loss, a loss spike, a slow step.

In: loss and time of each capture of this process, in order. Out: the capture of each, and by how much it stood out.
Guarantees: nothing is communicated; a spike is one by the definition of `loss_spike`, of this process's own losses.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, sqrt
from statistics import median

from mlflow_stability.detectors.baseline import Baseline
from mlflow_stability.detectors.detector import Point
from mlflow_stability.kinds.loss.loss_spike import LossSpike

USUAL_OF = 32
"""The usual time is the median of so many captures."""
SETTLED = 16
"""Captures until there is a usual time: the first ones compile and fill caches."""


@dataclass(frozen=True, slots=True)
class RankPeaks:
    """Since the exchange before; captures count from 1, and 0 is none."""

    broken: int = 0
    """The first capture whose loss was not finite."""
    spike: int = 0
    """The first capture whose loss was a spike, or the first spike that counts for all processes."""
    spike_loss: float = 0.0
    spike_level: float = 0.0
    """The baseline of the loss at that capture."""
    spike_z: float = 0.0
    """By how many of its σ the loss was above its baseline."""
    slow: int = 0
    """The capture that was busy for the longest time before its backward pass."""
    slow_seconds: float = 0.0
    slow_usual: float = 0.0

    def at_steps(self, offset: int) -> RankPeaks:
        """With steps of the recording in place of captures."""
        broken, spike, slow = (each + offset if each else 0 for each in (self.broken, self.spike, self.slow))
        return dataclasses.replace(self, broken=broken, spike=spike, slow=slow)


NUMBERS = len(dataclasses.fields(RankPeaks))
"""How many numbers it is sent as."""


def numbers_of(peaks: RankPeaks) -> list[float]:
    """As they travel between processes."""
    return [float(getattr(peaks, each.name)) for each in dataclasses.fields(RankPeaks)]


def peaks_of(numbers: Sequence[float]) -> RankPeaks:
    """Read them where they arrive."""
    broken, spike, loss, level, z, slow, seconds, usual = numbers
    return RankPeaks(int(broken), int(spike), loss, level, z, int(slow), seconds, usual)


def z_of_all(processes: int) -> float:
    """From which z on a spike of one process is one of the mean of all losses, whose σ is smaller by their root."""
    return LossSpike().threshold * sqrt(processes)


class PeakWatch:
    """Follows the losses and times of this process."""

    def __init__(self, processes: int) -> None:
        self.now = RankPeaks()
        """What stood out since `sent`."""
        self._counts = z_of_all(processes)
        self._detector = LossSpike()
        self._state = self._detector.begin()
        self._baseline = Baseline()
        self._times: deque[float] = deque(maxlen=USUAL_OF)

    def take(self, capture: int, loss: float | None, seconds: float) -> RankPeaks:
        """The next capture; gives what stood out so far."""
        if loss is not None and not isfinite(loss):
            if not self.now.broken:
                self.now = dataclasses.replace(self.now, broken=capture)
        elif loss is not None:
            self._loss(capture, loss)
        self._time(capture, seconds)
        return self.now

    def sent(self, peaks: RankPeaks) -> None:
        """The other processes are told: forget it, unless more came since."""
        if peaks is self.now:
            self.now = RankPeaks()

    def _loss(self, capture: int, loss: float) -> None:
        found = self._baseline
        found.take(loss)
        point = Point(
            "loss",
            "",
            capture,
            loss,
            z=found.z,
            accepted=found.accepted,
            center=found.center,
            scale=found.scale,
            tail=found.tail,
            logarithmic=found.logarithmic,
        )
        self._state, event = self._detector.step(self._state, point)
        if event is None or (self.now.spike and (found.z < self._counts or self.now.spike_z >= self._counts)):
            return
        self.now = dataclasses.replace(
            self.now, spike=capture, spike_loss=loss, spike_level=found.center, spike_z=found.z
        )

    def _time(self, capture: int, seconds: float) -> None:
        # Where a step is no longer than the longest of those before, nothing is worked out.
        if seconds > self.now.slow_seconds and len(self._times) >= SETTLED:
            usual = median(self._times)
            if seconds > 2 * usual:
                self.now = dataclasses.replace(self.now, slow=capture, slow_seconds=seconds, slow_usual=usual)
        self._times.append(seconds)
