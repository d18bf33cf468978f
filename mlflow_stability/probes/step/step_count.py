"""Which captures are one step, and which optimizers are one capture."""

from __future__ import annotations

from collections.abc import Iterable

EXPECTED_INTERVALS = 2
"""A track is expected for this many times the steps between its last two captures; later it has ended."""
MAX_EXPECTED_STEPS = 16  # ... and for at most this many steps.
REMEMBERED_CAPTURES = 16  # an optimizer that has not stepped for this many captures is not waited for


class StepCount:
    """Counts the steps of trainings side by side as one: the two halves of a GAN make one step an iteration.

    A track has at most one capture in a step, so that its own steps only rise; a training alone begins a step with each
    capture. The steps are those of the track that steps most often: five captures of a critic for one of its generator
    are five steps.

    A new track joins the current step, because the halves of a GAN are made before either of them steps. A track whose
    optimizer was made after a step is another training, such as the next fold, and begins a step of its own.
    """

    def __init__(self) -> None:
        self._step = 0
        self._current: set[int] = set()  # the tracks that have had a capture in this step
        self._intervals: dict[int, tuple[int, int]] = {}
        """For each track, the step of its last capture, and the number of steps between its last two."""

    @property
    def is_whole(self) -> bool:
        """Whether every track that has not ended had its capture in this step, as both halves of a GAN."""
        if len(self._intervals) == len(self._current):
            return True
        return not any(
            self._step - last <= min(EXPECTED_INTERVALS * interval, MAX_EXPECTED_STEPS)
            for track, (last, interval) in self._intervals.items()
            if track not in self._current
        )

    def begins(self, track: int, is_new: bool = False) -> bool:
        """Count a capture and return whether it begins a step; `is_new`: its optimizer was made after a step."""
        begins = not self._current or track in self._current or (is_new and track not in self._intervals)
        if begins:
            self._step += 1
            self._current = set()
        last, _ = self._intervals.get(track, (0, 0))
        self._current.add(track)
        self._intervals[track] = self._step, self._step - last
        return begins

    def begin_step(self) -> None:
        """Let the next capture begin a step, whatever its track: the training was rolled back."""
        self._current = set()

    def begin_training(self) -> None:
        """Forget the tracks of another recording."""
        self._step, self._current, self._intervals = 0, set(), {}


class StepOrder:
    """Which optimizers step together, by identity, and so when a capture is over."""

    def __init__(self) -> None:
        self._captures_ended = 0
        self._last_stepped: dict[int, dict[int, int]] = {}
        """For each track, the capture of each optimizer's last step."""

    def is_complete(self, track: int, ended: set[int]) -> bool:
        """Return whether every optimizer has ended its step that stepped in recent captures."""
        last_stepped = self._last_stepped.get(track)
        if last_stepped is None:
            return False
        recent = self._captures_ended - REMEMBERED_CAPTURES
        # A plain loop: `all` with a generator takes twice as long, at every step.
        for optimizer, capture in last_stepped.items():
            if capture > recent and optimizer not in ended:
                break
        else:
            return True
        return False

    def capture_ended(self, track: int, stepped: Iterable[int]) -> None:
        """Note which optimizers stepped in the capture that is over."""
        self._captures_ended += 1
        last_stepped = self._last_stepped.get(track)
        if last_stepped is None:
            last_stepped = self._last_stepped[track] = {}
        for optimizer in stepped:
            last_stepped[optimizer] = self._captures_ended

    def stepped_late(self, track: int, optimizer: int) -> None:
        """Note an optimizer that stepped after its capture seemed to be over."""
        self._last_stepped[track][optimizer] = self._captures_ended

    def clear(self) -> None:
        self._last_stepped.clear()
