"""Says when a training leaves the place where it began, before there is a level to compare with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from mlflow_stability.detectors.engine.adversarial import RISE
from mlflow_stability.detectors.engine.detector import WHOLE, Detector, Point
from mlflow_stability.detectors.engine.finding import finding
from mlflow_stability.detectors.engine.finding_type import Moves
from mlflow_stability.vocabulary.result.event import Event, Severity


@dataclass(slots=True)
class Start:
    """What has been seen so far."""

    seen: int = 0
    """How many losses."""
    first_loss: float = 0.0
    first_norm: float = 0.0
    step: int = -1
    """The step of the last loss, ..."""
    loss: float = 0.0
    """... and that loss."""
    update: float = 0.0
    """The largest update so far, as a share of the weights."""
    row: int = 0
    """For how many steps in a row loss and gradient norm have stood high."""
    onset: int = -1
    """The first step of that row."""
    over: bool = False
    """Whether there is nothing to look at any more: the start is over, or it was said."""


@dataclass(frozen=True, slots=True)
class DivergenceStart(Detector):
    """The training left the place where it began upwards: its first steps were far too large.

    What it sees: among the first 32 steps, a loss and a gradient norm that both stand at 3 times their first value or
    more: 3 steps in a row after an update of 0.3 of the weights' norm, or 8 in a row after one of 0.05. Without
    measured updates it says nothing, for with tiny batches a lucky first loss looks the same. Where several trainings
    take turns, as the halves of a GAN do, 10 times are asked for.

    Why it matters: no later step comes back from there, and only the initial weights are before it: the learning rate
    is simply too high.

    What to try: lower the learning rate 3-10 times; warm it up over 1-5 % of the steps; clip the gradients.

    When it is wrong: a loss whose scale is turned up in the first steps on purpose. It spoke in none of 117 healthy
    trainings of 39 kinds.

    Reference: Wortsman et al., Small-scale proxies for large-scale training instabilities (arXiv:2309.14322)
    """

    steps: int = 32
    """How many losses are the start; from then on the loss has a level of its own."""
    smallest_rise: float = 3.0
    """The least loss and gradient norm as a multiple of the first."""
    smallest_rise_of_players: float = RISE
    """The same where several trainings take turns."""
    huge_update: float = 0.3
    """After an update of this share of the weights ..."""
    huge_row: int = 3
    """... so many steps in a row are enough, ..."""
    large_update: float = 0.05
    """... and after one of this share ..."""
    large_row: int = 8
    """... so many."""

    kind = "divergence"
    order = 50
    rule = "start"
    quantities = ("loss", "grad_norm", "update_ratio")
    places = WHOLE
    severities = (Severity.CRITICAL,)
    by_sensitivity: ClassVar[Mapping[str, Moves]] = {"smallest_rise": "power"}
    remedies = (
        "Lower the learning rate 3-10 times.",
        "Warm the learning rate up over 1-5 % of the steps.",
        "Clip gradients at 1.0.",
    )
    state_type = Start

    def step(self, state: Start, point: Point) -> tuple[Start, Event | None]:
        """Look at the next loss, gradient norm or update."""
        if state.over or not point.finite:
            return state, None
        return state, self._look(state, point, self.smallest_rise_of_players if point.players else self.smallest_rise)

    def _look(self, state: Start, point: Point, rise: float) -> Event | None:
        if point.quantity == "update_ratio":
            state.update = max(state.update, point.value)
            return self._judged(state, point)
        if point.quantity == "loss":
            state.seen += 1
            state.over = state.seen > self.steps or (state.seen == 1 and point.value <= 0)
            state.first_loss = state.first_loss or point.value
            state.step, state.loss = point.step, point.value
            return None
        if point.step != state.step:
            return None
        state.first_norm = state.first_norm or point.value
        high = state.loss >= state.first_loss * rise
        if not high or point.value < state.first_norm * rise:
            state.row = 0
            return None
        state.row += 1
        state.onset = point.step if state.row == 1 else state.onset
        return self._judged(state, point)

    def _judged(self, state: Start, point: Point) -> Event | None:
        needed = self.huge_row if state.update >= self.huge_update else self.large_row
        if state.row < needed or state.update < self.large_update:
            return None
        state.over = True
        return finding(
            self,
            point._replace(quantity="loss"),
            Severity.CRITICAL,
            f"loss is {state.loss:.4g} at step {point.step} and stood far above its first value of "
            f"{state.first_loss:.4g} in {state.row} steps in a row, after one step had changed the weights by "
            f"{_share(state.update)}.",
            {
                "loss": state.loss,
                "level": state.first_loss,
                "update_ratio": state.update,
                "onset": float(state.onset),
            },
        )


def _share(update: float) -> str:
    """An update beside the norm of the weights: "30 % of their norm", "5.6 times their norm"."""
    return f"{update:.2g} times their norm" if update >= 1 else f"{100 * update:.2g} % of their norm"
