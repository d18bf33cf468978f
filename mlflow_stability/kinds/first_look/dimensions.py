"""Dimensions that are mixed up: a batch taken for a sequence, attention over queries, a view for a transpose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mlflow_stability.detectors.detector import Point
from mlflow_stability.detectors.finding_type import FindingType
from mlflow_stability.detectors.streak import Once, StreakDetector
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.result import Action, Remedy


@dataclass(frozen=True, slots=True)
class BatchAsSequenceFacts(Facts):
    """A layer whose sequences run over the rows of a batch."""

    kind: ClassVar[str] = "batch_as_sequence"

    module: str  # The layer
    rows: int  # Number of rows of the loss, and of positions that the layer sees
    sequences: int  # Number of sequences that the layer sees

    def sentence(self, _step: int, _unit: str = "step", /) -> str:
        return (
            f"Module {self.module} has batch_first=False and takes its input for {self.sequences} sequences of "
            f"{self.rows} positions, but the loss has {self.rows} rows: the sequences run over the batch."
        )


@dataclass(frozen=True, slots=True)
class BatchAsSequence(FindingType):
    """A recurrent or attention layer takes the batch for the sequence.

    What it sees: in {steps} of the first steps in a row, all calls of recurrent layers and of self-attention with
    `batch_first=False`, and the rows of the loss, each with one target. The first dimension of their inputs, which
    should be the sequence, is the number of rows, and the second one, which should be the batch, is not.

    Why it matters: the layers mix examples of a batch, and see one position of each. The model learns what a single
    position shows, and its answer depends on the other examples.

    What to try: `batch_first=True` where inputs are (batch, sequence, features).

    When it is wrong: layers that compare the examples of a batch on purpose.

    Reference: https://docs.pytorch.org/docs/stable/generated/torch.nn.LSTM.html
    """

    steps: int = 5  # number of such steps in a row

    kind = "batch_as_sequence"
    of_setup = True
    noun = "a batch that is taken for a sequence"
    order = 1153
    question = "Do recurrent and attention layers get the batch as the dimension that they expect?"
    check_by_hand = "Change one row of a batch: the outputs of all other rows must stay as they are."
    remedies = (Remedy(Action.SET_BATCH_FIRST),)


@dataclass(frozen=True, slots=True)
class AttentionDimFacts(Facts):
    """Weights of attention that add up to 1 over the queries."""

    kind: ClassVar[str] = "attention_dim"

    positions: int  # Number of queries, and of keys

    def sentence(self, _step: int, _unit: str = "step", /) -> str:
        return (
            f"Attention over {self.positions} positions does not take its softmax over the keys: the weights of a "
            "query do not add up to 1."
        )


@dataclass(frozen=True, slots=True)
class AttentionDim(FindingType):
    """The softmax of attention is taken over queries, heads or rows, not over the keys.

    What it sees: in the graphs of losses of {steps} steps in a row, a softmax over another dimension than the last of
    square scores, in batches, whose result is multiplied by the values. No value is read. Compiled losses are not seen.

    Why it matters: the weights with which a query adds up the values have no fixed sum. With a causal mask they depend
    on the positions that follow.

    What to try: `softmax(dim=-1)`.

    When it is wrong: attention in which positions or heads compete for queries on purpose, without a normalisation
    afterwards.

    Reference: https://arxiv.org/abs/1706.03762
    """

    steps: int = 3  # number of steps in a row

    kind = "attention_dim"
    of_setup = True
    noun = "attention with its softmax over a wrong dimension"
    order = 1154
    question = "Do the weights of attention add up to 1 for each query?"
    check_by_hand = "Print weights.sum(-1): all must be 1."
    remedies = (Remedy(Action.SOFTMAX_OVER_KEYS),)


@dataclass(frozen=True, slots=True)
class MixedDimensionsFacts(Facts):
    """The shapes around a view that moves a dimension."""

    kind: ClassVar[str] = "mixed_dimensions"

    before: tuple[int, ...]  # Shape that the view gets
    after: tuple[int, ...]  # Shape that it returns

    def numbers(self) -> dict[str, float]:
        return {}

    def sentence(self, _step: int, _unit: str = "step", /) -> str:
        return (
            f"A view or reshape turns {self.before} into {self.after}: it moves a dimension but no values, so "
            "that those of different positions or rows are mixed. A transpose is missing."
        )


@dataclass(frozen=True, slots=True)
class MixedDimensions(FindingType):
    """A view or reshape is in the place of a transpose.

    What it sees: in the graphs of losses of the first steps, a view whose result has a dimension of its input in
    another place, such as (batch, positions, features) as (batch, features, positions) or as (batch, heads, positions,
    size), and (directions, batch, features) as (batch, directions * features). Not where a transpose is beside it, nor
    an exchange behind padding, as in relative attention. No value is read. Data that are arranged before the first
    layer and compiled losses are not seen.

    Why it matters: view and reshape keep the order of the values. What the model takes for one position, head or
    example are parts of several, and it learns less.

    What to try: exchange dimensions with `transpose` or `permute`; split and merge neighbours alone with `view`.

    When it is wrong: sizes that are equal by chance; values whose order has no meaning.

    Reference: https://docs.pytorch.org/docs/stable/generated/torch.permute.html
    """

    kind = "mixed_dimensions"
    of_setup = True
    noun = "mixed-up dimensions"
    order = 1155
    question = "Are dimensions exchanged by transpose, and not by view?"
    check_by_hand = "Compare x.view(b, c, t) with x.transpose(1, 2): only the second one exchanges dimensions."
    remedies = (Remedy(Action.TRANSPOSE),)


@dataclass(frozen=True, slots=True)
class SameOutputFacts(Facts):
    kind: ClassVar[str] = "same_output"

    looks: int  # Number of steps in a row in which they were

    def sentence(self, step: int, unit: str = "step", /) -> str:
        return (
            f"The loss function gets the same output for each row of the batch, in {self.looks} {unit}s that were "
            f"looked at, up to {unit} {step}: the output does not depend on the data."
        )


@dataclass(frozen=True, slots=True)
class SameOutput(StreakDetector):
    """The model gives the same output for each row of a batch.

    What it sees: the largest difference between rows of what a cross entropy, a binary cross entropy, a squared error,
    smooth L1 or Huber loss gets, in the first steps, in batches of 8 rows and more. A WARNING where it is zero in
    {looks} steps in a row.

    Why it matters: the model learns no more than the mean of the targets, or how frequent each class is.

    What to try: look for a mean, a softmax or an attention over the batch in place of another dimension, inputs that
    are all the same, and layers whose units are dead.

    When it is wrong: a model of learned constants; a last layer of zeros that is not trained in the first steps.

    Reference: https://karpathy.github.io/2019/04/25/recipe/
    """

    looks: int = 10  # number of looks in a row: a last layer of zeros gives the same output until its first step

    kind = "same_output"
    of_setup = True
    noun = "the same output for each row"
    order = 1156
    question = "Does the output differ between the rows of a batch?"
    check_by_hand = "Print (output - output[0]).abs().max(): it must not be 0."
    quantities = ("output_spread",)
    in_a_row = "looks"
    remedies = (Remedy(Action.FIND_WHERE_ROWS_MEET),)
    state_type = Once

    def facts(self, state: Once, point: Point) -> Facts | None:
        return SameOutputFacts(state.length + 1) if point.value == 0 else None
