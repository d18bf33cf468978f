"""A prediction and a target of different shapes, of which a loss compares every pair."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mlflow_stability.detectors.finding_type import FindingType
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.result import Action, Remedy


@dataclass(frozen=True, slots=True)
class LossBroadcastFacts(Facts):
    """The shapes of a prediction and of its difference from the target."""

    kind: ClassVar[str] = "loss_broadcast"

    rows: int
    """Number of predictions in the batch."""
    is_column: bool
    """Whether the prediction has a second dimension of size 1, which the target lacks; else the target has it."""

    def sentence(self, _step: int, _unit: str = "step", /) -> str:
        """``The prediction has shape (64, 1) and the target (64,): the loss compares all 64 x 64 pairs.``"""
        flat, column = f"({self.rows},)", f"({self.rows}, 1)"
        prediction, target = (column, flat) if self.is_column else (flat, column)
        return (
            f"The prediction has shape {prediction} and the target {target}: the loss compares all "
            f"{self.rows} x {self.rows} pairs, not each prediction with its own target."
        )


@dataclass(frozen=True, slots=True)
class LossBroadcast(FindingType):
    """The loss compares every prediction with every target.

    What it sees: in the graphs of the first losses, a prediction of shape (N, 1) or (N,) whose difference from the
    target has shape (N, N). No value is read. Compiled losses are not seen.

    Why it matters: PyTorch broadcasts (N, 1) and (N,) to (N, N). The best answer is then the mean of the targets for
    each input: the loss falls to the variance of the targets, and the model learns nothing else.

    What to try: give both the same shape.

    When it is wrong: a loss over all pairs that is meant, written without `unsqueeze` or `view`.

    Reference: https://docs.pytorch.org/docs/stable/notes/broadcasting.html
    """

    kind = "loss_broadcast"
    of_setup = True
    noun = "a loss over all pairs"
    order = 1127
    question = "Do prediction and target have the same shape?"
    check_by_hand = "Print the shapes of prediction and target: they must be equal."
    remedies = (Remedy(Action.MATCH_SHAPES),)
