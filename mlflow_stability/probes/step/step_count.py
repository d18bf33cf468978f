"""Counts the steps of trainings side by side as one: the two halves of a GAN make one step an iteration.

In: which track each capture belongs to, in order. Out: whether it begins a step or belongs to the current one.
Guarantees: a track has at most one capture in a step, so that its own steps only rise; a training alone begins a step
with each capture. The steps are those of the track that steps most often: five captures of a critic for one of its
generator are five steps.

A track that is new joins the step at hand, for the halves of a GAN are made before either of them steps. One whose
optimizer was made after a step is of another training, as those of the next fold are, and begins a step of its own.
"""

from __future__ import annotations

EXPECTED_FOR = 2
"""A track is expected for so many times the steps that lay between its last two captures; later it has ended."""
MOST_EXPECTED = 16
"""... and for so many steps at most."""


class StepCount:
    """The step at hand."""

    def __init__(self) -> None:
        self._step = 0
        self._here: set[int] = set()
        """The tracks that have had a capture in this step."""
        self._seen: dict[int, tuple[int, int]] = {}
        """For each track, the step of its last capture, and how many steps lay between its last two."""

    @property
    def is_whole(self) -> bool:
        """Whether every track had its capture in this step that has not ended, as both halves of a GAN."""
        if len(self._seen) == len(self._here):
            return True
        return not any(
            self._step - last <= min(EXPECTED_FOR * interval, MOST_EXPECTED)
            for track, (last, interval) in self._seen.items()
            if track not in self._here
        )

    def begins(self, track: int, is_new: bool = False) -> bool:
        """Count a capture; whether it begins a step. `is_new`: its optimizer was made after one."""
        begins = not self._here or track in self._here or (is_new and track not in self._seen)
        if begins:
            self._step += 1
            self._here = set()
        last, _ = self._seen.get(track, (0, 0))
        self._here.add(track)
        self._seen[track] = self._step, self._step - last
        return begins

    def begin_anew(self) -> None:
        """The next capture begins a step, whatever track it is of: the training was rolled back."""
        self._here = set()

    def begin_training(self) -> None:
        """Forget the tracks: they are of another recording."""
        self._step, self._here, self._seen = 0, set(), {}
