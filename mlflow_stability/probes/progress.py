"""Says how far the training is and how long it will take, where the number of steps is known.

In: steps as they end. Out: every ten steps ``progress`` from 0 to 1, and ``eta_seconds`` at the pace so far. Promised:
right or silent. A source must count along with the steps, be within its course, and agree with all others that do;
a schedule that is stepped once an epoch says nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, MutableMapping, Sequence

from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from mlflow_stability.probes.block import Block
from mlflow_stability.probes.gate_view import GateView
from mlflow_stability.probes.known_totals import Course, Source, sources_of
from mlflow_stability.probes.layer_layout import whole_signals

EVERY = 10
SEARCHED_AT = (1, 10)
"""At which reports sources are looked for, as long as none was of use: one may be made late."""
AGREE = 0.01
"""How far sources may be apart in what is left."""
QUANTITIES = ("progress", "eta_seconds")


class Progress:
    """How far one training is."""

    part = "progress"

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._optimizers: MutableMapping[Optimizer, None] = WeakIdKeyDictionary()
        self._followed: list[_Followed] = []
        self._reports = 0
        self._told = False

    def due(self, step: int) -> bool:
        """Every ten steps."""
        return step % EVERY == 0

    def at_gate(self, view: GateView) -> None:
        """Runs when gradients are complete."""
        self._optimizers[view.optimizer] = None

    def after_step(self, _view: GateView) -> None:
        """Runs right after a step."""

    def blocks(self, _step: int) -> Sequence[Block]:
        """How far it is."""
        self._reports += 1
        if self._reports in SEARCHED_AT and not self._told:
            self._followed = [_Followed(each) for each in sources_of(list(self._optimizers))]
        now = self._now()
        found = [(each.is_trainer, answer) for each in self._followed if (answer := each.look(now)) is not None]
        trainers = any(is_trainer for is_trainer, _ in found)
        answers = [answer for is_trainer, answer in found if is_trainer is trainers]
        if not answers or max(answers)[0] - min(answers)[0] > AGREE:
            return ()
        self._told = True
        return [Block(whole_signals(QUANTITIES, ""), answers[0])]


class _Followed:
    """A source, and what it said before."""

    def __init__(self, source: Source) -> None:
        self.is_trainer = source.is_trainer
        self._source = source
        self._last: Course | None = None
        self._last_when = 0.0
        self._first: tuple[float, float] | None = None
        """How far it was, and when, as it began to count along."""

    def look(self, now: float) -> tuple[float, float] | None:
        """Progress, and the seconds that are left; None where it does not count along with the steps."""
        course, last, when = self._source.ask(), self._last, self._last_when
        self._last, self._last_when = course, now
        if course is None or last is None or course.total != last.total:
            self._first = None
            return None
        if course.done - last.done < EVERY / 2 or course.done > course.total:
            self._first = None
            return None
        if self._first is None:
            self._first = last.done, when
        pace = (now - self._first[1]) / (course.done - self._first[0])
        return course.done / course.total, pace * (course.total - course.done)
