"""Language models that are given the tokens they should predict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mlflow_stability.detectors.detector import Detector, Point
from mlflow_stability.detectors.streak import Streak, StreakDetector
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.result import Action, Finding, Remedy, Severity


@dataclass(frozen=True, slots=True)
class TargetsInInputFacts(Facts):
    """Targets that are the input tokens at the same positions, and a loss that fell to almost nothing by it."""

    kind: ClassVar[str] = "targets_in_input"

    loss: float  # The loss, in its unit
    first_loss: float  # The first one, in its unit

    def sentence(self, step: int, unit: str = "step", /) -> str:
        return (
            f"The targets are the input tokens at the same positions, and the loss fell from {self.first_loss:.4g} to "
            f"{self.loss:.4g} by {unit} {step}: the model has learnt to copy its input."
        )


@dataclass(slots=True)
class TargetsInInputState:
    looks: int = 0  # number of steps whose targets are their input
    first_loss: float | None = None
    low: int = 0  # number of low losses in a row
    is_over: bool = False  # whether targets differed from the input, or the finding was made


@dataclass(frozen=True, slots=True)
class TargetsInInput(Detector):
    """A language model gets its own input as targets, not the token that follows.

    What it sees: the share of targets of cross entropy that are the token at the same position in the input of the
    embedding with as many entries as there are classes, in the first {looks} steps. A WARNING where it is
    {share:percent} or more in all of them, and {low_steps} losses in a row within {steps} steps are below
    {low_share:percent} of the first loss. Losses with class weights or without a reduction are not looked at.

    Why it matters: the model only copies what it is given. The loss is nearly zero, and it has learnt no language.

    What to try: shift the targets by one position.

    When it is wrong: an autoencoder of tokens, or a task of copying.

    Reference: https://karpathy.github.io/2019/04/25/recipe/
    """

    share: float = 0.99  # minimum share of targets that are the input
    looks: int = 5  # number of such steps
    low_share: float = 0.05  # share of the first loss below which a loss is low
    low_steps: int = 5  # number of low losses in a row
    steps: int = 1000  # the step until which the loss has to be low: an autoencoder takes longer than a copy

    kind = "targets_in_input"
    of_setup = True
    noun = "targets that are the input"
    order = 1151
    question = "Are the targets of a language model shifted by one position?"
    check_by_hand = "Print a row of the input and of the targets: the targets must be one token ahead."
    quantities = ("targets_in_input", "loss")
    remedies = (Remedy(Action.SHIFT_TARGETS),)
    state_type = TargetsInInputState

    def step(self, state: TargetsInInputState, point: Point) -> tuple[TargetsInInputState, Finding | None]:
        if state.is_over or not point.finite:
            return state, None
        if point.quantity == "targets_in_input":
            state.looks += 1
            state.is_over = point.value < self.share
            return state, None
        if state.first_loss is None:
            state.first_loss = point.value
        state.low = state.low + 1 if 0 <= point.value < self.low_share * state.first_loss else 0
        state.is_over = point.step > self.steps
        if state.is_over or state.looks < self.looks or state.low < self.low_steps:
            return state, None
        state.is_over = True
        return state, self.finding(point, Severity.WARNING, TargetsInInputFacts(point.value, state.first_loss))


@dataclass(frozen=True, slots=True)
class TargetsInViewFacts(Facts):
    kind: ClassVar[str] = "targets_in_view"

    share: float  # Their share

    def sentence(self, step: int, unit: str = "step", /) -> str:
        return (
            f"{100 * self.share:.3g}% of the targets at {unit} {step} are the next token of the input, and attention "
            "sees it: no mask hides the positions that follow."
        )


@dataclass(frozen=True, slots=True)
class TargetsInView(StreakDetector):
    """The attention of a language model sees the token that the model should predict.

    What it sees: the share of targets of cross entropy that are the next token of the input, at positions from which
    scaled dot product attention or a softmax of scores reaches that token, in the first steps. A WARNING where it is
    {share:percent} or more in {steps} steps in a row. Models with several embeddings of this vocabulary, compiled ones,
    and losses with class weights or without a reduction are not looked at.

    Why it matters: the model learns to copy the next token. Its loss is low, and it can generate nothing.

    What to try: give attention a causal mask.

    When it is wrong: a model that hides these tokens otherwise, such as by replacing their embeddings before attention.

    Reference: https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html
    """

    share: float = 0.95  # minimum share of such targets
    steps: int = 5  # number of such steps in a row

    kind = "targets_in_view"
    of_setup = True
    noun = "targets that attention sees"
    order = 1152
    question = "Is attention masked, so that no position sees what follows?"
    check_by_hand = "Change the last token of an input: the logits of all other positions must stay as they are."
    quantities = ("targets_in_view",)
    in_a_row = "steps"
    remedies = (Remedy(Action.MASK_FOLLOWING_TOKENS),)

    def facts(self, _state: Streak, point: Point) -> Facts | None:
        return TargetsInViewFacts(point.value) if point.value >= self.share else None


@dataclass(frozen=True, slots=True)
class PaddingFacts(Facts):
    kind: ClassVar[str] = "padding_in_loss"

    share: float  # Their share

    def sentence(self, step: int, unit: str = "step", /) -> str:
        return (
            f"{100 * self.share:.3g}% of the targets at {unit} {step} are the padding_idx of the embedding, and the "
            "loss counts them: it is mostly that of padding."
        )


@dataclass(frozen=True, slots=True)
class PaddingInLoss(StreakDetector):
    """Most targets of a language model are padding, and the loss counts them.

    What it sees: the share of targets of cross entropy that are the `padding_idx` of the embedding with as many entries
    as there are classes, and not its `ignore_index`, in the first {steps} steps. A WARNING where it is {share:percent}
    or more in each of them. Losses with class weights or without a reduction, which a mask may follow, are left out.

    Why it matters: padding is easy to predict. The loss is low from what the model need not learn, it depends on how
    long the sequences of a batch are, and the gradients of all other tokens are divided by the number of padded ones.

    What to try: `ignore_index=padding_idx`; batches of sequences of similar length.

    When it is wrong: models that are to predict padding, as where it ends a sequence.

    Reference: https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html
    """

    share: float = 0.5  # minimum share of such targets
    steps: int = 5  # number of such steps in a row

    kind = "padding_in_loss"
    of_setup = True
    noun = "a loss of padding"
    order = 1163
    question = "Does the loss leave out padding?"
    check_by_hand = "Print (targets == padding_idx).float().mean(), and give the loss that index to ignore."
    quantities = ("targets_padding",)
    in_a_row = "steps"
    remedies = (Remedy(Action.IGNORE_PADDING),)

    def facts(self, _state: Streak, point: Point) -> Facts | None:
        return PaddingFacts(point.value) if point.value >= self.share else None
