"""Detect inputs and targets of the first batches that a loss cannot learn from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from mlflow_stability.detectors.detector import Detector, Point
from mlflow_stability.detectors.streak import Once, Streak, StreakDetector
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.result import Action, Finding, Remedy, Severity


@dataclass(frozen=True, slots=True)
class InputScaleFacts(Facts):
    kind: ClassVar[str] = "input_scale"

    module: str  # The first layer
    low: float  # Its lowest input
    high: float  # Its highest input
    rms: float  # Their root mean square

    @property
    def are_bytes(self) -> bool:
        """Whether they look like the bytes of images."""
        return self.low >= 0 and 128 < self.high <= 255

    def sentence(self, step: int, unit: str = "step", /) -> str:
        usual = "bytes that were not scaled" if self.are_bytes else "usual is an RMS near 1"
        return (
            f"The inputs of module {self.module} are {self.low:.3g} to {self.high:.3g} at {unit} {step} (RMS "
            f"{self.rms:.3g}): {usual}."
        )


@dataclass(slots=True)
class InputScaleState:
    low: float = 0.0
    high: float = 0.0
    small: int = 0  # number of looks in a row at small inputs
    were_usual: bool = False  # at an earlier look
    is_found: bool = False


@dataclass(frozen=True, slots=True)
class InputScale(Detector):
    """The inputs of the model are far from a size of 1.

    What it sees: the inputs of the first layer, a linear layer, convolution or recurrent layer, where neither an
    embedding nor a normalisation is before it and no normalisation right behind it. A WARNING where their root mean
    square is {largest} or more and was not usual before, or where none is above {smallest} in {looks} looks in a row.
    Measured at step 10, then with the layers.

    Why it matters: initial weights and usual learning rates are made for inputs of a size near 1. Gradients of the
    first layer grow with its inputs: training diverges, units die, or learning takes much longer.

    What to try: divide bytes by 255; subtract the mean of each feature and divide by its standard deviation, once.

    When it is wrong: a first layer that was initialised for these inputs.

    Reference: http://yann.lecun.com/exdb/publis/pdf/lecun-98b.pdf
    """

    largest: float = 20.0  # minimum root mean square of large inputs
    smallest: float = 0.02  # maximum of small inputs
    looks: int = 2  # number of looks in a row at small inputs: an environment may begin with small observations

    kind = "input_scale"
    of_setup = True
    noun = "inputs of an unusual size"
    order = 1136
    question = "Are the inputs of a size near 1?"
    check_by_hand = "Print mean and standard deviation of a batch as the model gets it: near 0 and 1."
    quantities = ("input_low", "input_high", "input_rms")
    remedies = (Remedy(Action.STANDARDISE_INPUTS),)
    state_type = InputScaleState

    def step(self, state: InputScaleState, point: Point) -> tuple[InputScaleState, Finding | None]:
        if state.is_found or not point.finite:
            return state, None
        if point.quantity == "input_low":
            state.low = point.value
        elif point.quantity == "input_high":
            state.high = point.value
        else:
            state.small = state.small + 1 if 0 < max(-state.low, state.high) <= self.smallest else 0
            is_large = point.value >= self.largest and not state.were_usual  # data do not grow, what a model makes does
            state.were_usual |= self.smallest < point.value < self.largest
            if is_large or state.small == self.looks:
                state.is_found = True
                facts = InputScaleFacts(point.place, state.low, state.high, point.value)
                return state, self.finding(point, Severity.WARNING, facts)
        return state, None


@dataclass(frozen=True, slots=True)
class SameInputFacts(Facts):
    kind: ClassVar[str] = "same_input"

    module: str  # The first layer
    looks: int  # Number of these steps

    def sentence(self, step: int, unit: str = "step", /) -> str:
        return (
            f"The input of module {self.module} is the same for each row of the batch, in {self.looks} {unit}s that "
            f"were looked at, up to {unit} {step}: the output cannot depend on the data."
        )


@dataclass(frozen=True, slots=True)
class SameInput(StreakDetector):
    """The first layer gets the same input for each row of a batch.

    What it sees: the largest difference between rows of the input of the first layer, in batches of 8 rows and more. A
    WARNING where it is zero in each of the first {looks} looks, at step 10 and every `layers_every_n_steps`.

    Why it matters: the outputs cannot depend on the data, and the model learns no more than the mean of the targets.

    What to try: look for inputs that are multiplied by zero, masked, or overwritten on the way to the first layer.

    When it is wrong: a first layer of learned constants, whose data come in later.

    Reference: https://karpathy.github.io/2019/04/25/recipe/
    """

    looks: int = 2  # number of looks

    kind = "same_input"
    of_setup = True
    noun = "the same input for each row"
    order = 1137
    question = "Does the input differ between the rows of a batch?"
    check_by_hand = "Print (x - x[0]).abs().max() of what the first layer gets: it must not be 0."
    quantities = ("input_spread",)
    in_a_row = "looks"
    remedies = (Remedy(Action.INSPECT_INPUT_PATH),)
    state_type = Once

    def facts(self, state: Once, point: Point) -> Facts | None:
        state.is_found = state.is_found or point.value > 0  # only the first looks count
        return None if point.value > 0 else SameInputFacts(point.place, self.looks)


@dataclass(frozen=True, slots=True)
class SameBatchFacts(Facts):
    kind: ClassVar[str] = "same_batch"

    looks: int  # Number of these steps

    def sentence(self, step: int, unit: str = "step", /) -> str:
        return (
            f"Inputs and targets are those of the {unit} before, in {self.looks} {unit}s in a row up to {unit} {step}."
        )


@dataclass(frozen=True, slots=True)
class SameBatch(StreakDetector):
    """Each step uses the same batch.

    What it sees: a sample of what the first linear layers, convolutions and embeddings get, and of the targets of the
    loss function, beside that of the step before, in the first ten steps. Found where both are equal in {looks} steps
    in a row. INFO, for a training on the whole data set, or on one batch to test the model, does this on purpose.

    Why it matters: the model sees no other data. `next(iter(loader))` in the loop begins a new epoch each time: without
    shuffling it always returns the first batch.

    What to try: iterate over the loader once in an epoch, `for batch in loader`.

    When it is wrong: a training on all data at once; one batch on purpose.

    Reference: https://karpathy.github.io/2019/04/25/recipe/
    """

    looks: int = 8  # number of steps in a row

    kind = "same_batch"
    of_setup = True
    noun = "the same batch in each step"
    order = 1166
    severities = (Severity.INFO,)
    question = "Does each step get another batch?"
    check_by_hand = "Print x.sum() of the batch in two steps: it must differ."
    quantities = ("batch_repeated",)
    in_a_row = "looks"
    remedies = (Remedy(Action.CHECK_DATA_LOADER),)
    state_type = Once

    def facts(self, state: Once, point: Point) -> Facts | None:
        state.is_found = state.is_found or point.value < 1  # only the first looks count
        return None if point.value < 1 else SameBatchFacts(self.looks)


@dataclass(frozen=True, slots=True)
class OneClassFacts(Facts):
    kind: ClassVar[str] = "one_class"

    batches: int  # Number of these batches
    classes: tuple[int, ...]  # Their classes, each once
    mixed: int = 0  # Number of the other batches, in which one class ends and the next begins

    def numbers(self) -> dict[str, float]:
        return {"batches": float(self.batches), "classes": float(len(self.classes))}

    def sentence(self, step: int, unit: str = "step", /) -> str:
        named = ", ".join(map(str, self.classes))
        if self.mixed:
            return (
                f"The data are sorted by class: of {self.batches + self.mixed} {unit}s that were looked at, up to "
                f"{unit} {step}, {self.batches} have targets of one class (classes {named}), and no class comes back."
            )
        return (
            f"All targets of a {unit} are of one class (classes {named} in the {self.batches} {unit}s that were looked "
            f"at, up to {unit} {step}): the data are not shuffled."
        )


@dataclass(slots=True)
class OneClassState:
    low: float | None = None
    highest: float = 0.0  # highest class so far
    batches: int = 0  # batches of one class
    mixed: int = 0  # batches of several classes
    is_sorted: bool = True  # whether no class was below one of an earlier batch
    is_over: bool = False  # whether the batches differ otherwise, or the finding was made
    classes: dict[int, None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OneClass(Detector):
    """Each batch has targets of one class only, and not always the same class.

    What it sees: the lowest and the highest class among the targets of cross entropy in steps 2 to 10, 21, 101 and
    1,001, from 8 targets on that are not ignored. A WARNING after {batches} batches or more that are all of one class
    each, of two classes or more. Where no class is below one of an earlier batch, up to half as many batches may have
    several: the data are sorted, and a class ends within them.

    Why it matters: each step moves all outputs towards one class, and the next step towards another. The model learns
    which class came last, batch normalisation sees one class at a time, and the loss of a batch says little.

    What to try: shuffle the data: `DataLoader(..., shuffle=True)`, or a sampler that mixes the classes.

    When it is wrong: tasks whose batches are of one class on purpose.

    Reference: https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.DataLoader
    """

    batches: int = 6  # minimum number of batches

    kind = "one_class"
    of_setup = True
    noun = "batches of one class"
    order = 1133
    question = "Does each batch have targets of several classes?"
    check_by_hand = "Print the targets of a batch: they must not all be the same."
    quantities = ("class_low", "class_high")
    remedies = (Remedy(Action.SHUFFLE_DATA),)
    state_type = OneClassState

    def step(self, state: OneClassState, point: Point) -> tuple[OneClassState, Finding | None]:
        if state.is_over or not point.finite:
            return state, None
        if point.quantity == "class_low":
            state.low = point.value
            return state, None
        low, state.low = state.low, None
        if low is None or point.value < 0:  # nearly all targets are ignored
            return state, None
        state.is_sorted = state.is_sorted and low >= state.highest
        state.highest = max(state.highest, point.value)
        if low == point.value:
            state.batches += 1
            state.classes[int(low)] = None
        else:
            state.mixed += 1
        state.is_over = state.mixed > (self.batches // 2 if state.is_sorted else 0)
        if state.is_over or state.batches < self.batches or len(state.classes) < 2:
            return state, None
        state.is_over = True
        facts = OneClassFacts(state.batches, tuple(state.classes), state.mixed)
        return state, self.finding(point, Severity.WARNING, facts)


@dataclass(frozen=True, slots=True)
class IgnoredFacts(Facts):
    """Targets that the loss leaves out."""

    kind: ClassVar[str] = "targets_ignored"

    share: float  # Share of targets with the value of `ignore_index`

    def sentence(self, step: int, unit: str = "step", /) -> str:
        return (
            f"{100 * self.share:.3g}% of the targets at {unit} {step} have the value of ignore_index: the loss leaves "
            "them out."
        )


@dataclass(frozen=True, slots=True)
class TargetsIgnored(StreakDetector):
    """Nearly all targets have the value of `ignore_index`.

    What it sees: the share of targets that cross entropy ignores, in steps 2 to 10. A WARNING where it is {share} or
    more in {steps} steps in a row.

    Why it matters: the loss and its gradients come from the few targets that are left. They are noisy, and most of the
    computation serves nothing.

    What to try: check how targets are masked and padded; pack short sequences together.

    When it is wrong: sparse labels on purpose, such as a few points of an image.

    Reference: https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html
    """

    share: float = 0.97  # minimum share of ignored targets
    steps: int = 5  # number of such steps in a row

    kind = "targets_ignored"
    of_setup = True
    noun = "ignored targets"
    order = 1134
    question = "Are most targets used?"
    check_by_hand = "Print (targets == ignore_index).float().mean(): it should be far below {share}."
    quantities = ("targets_ignored",)
    in_a_row = "steps"
    remedies = (Remedy(Action.CHECK_MASKING),)

    def facts(self, _state: Streak, point: Point) -> Facts | None:
        return IgnoredFacts(point.value) if point.value >= self.share else None


@dataclass(frozen=True, slots=True)
class LabelRangeFacts(Facts):
    kind: ClassVar[str] = "label_range"

    value: float  # The target

    def sentence(self, step: int, unit: str = "step", /) -> str:
        return f"A target of binary_cross_entropy_with_logits is {self.value:.4g} at {unit} {step}; it expects 0 to 1."


@dataclass(frozen=True, slots=True)
class LabelRange(StreakDetector):
    """Targets of a binary cross entropy are outside of 0 to 1.

    What it sees: the lowest and the highest target of `binary_cross_entropy_with_logits` in the first steps.

    Why it matters: the loss has no lower bound then. It falls below zero and rewards ever larger logits.

    What to try: map the labels to 0 and 1.

    When it is wrong: weights that are multiplied into the targets on purpose.

    Reference: https://docs.pytorch.org/docs/stable/generated/torch.nn.BCEWithLogitsLoss.html
    """

    kind = "label_range"
    of_setup = True
    noun = "labels out of range"
    order = 1135
    question = "Are the targets of a binary cross entropy between 0 and 1?"
    check_by_hand = "Print targets.min() and targets.max(): they must be between 0 and 1."
    quantities = ("label_low", "label_high")
    remedies = (Remedy(Action.MAP_LABELS),)
    state_type = Once

    def facts(self, _state: Once, point: Point) -> Facts | None:
        return None if 0 <= point.value <= 1 else LabelRangeFacts(point.value)


@dataclass(frozen=True, slots=True)
class UnreachableFacts(Facts):
    """Targets that the last activation cannot give."""

    kind: ClassVar[str] = "targets_unreachable"

    share: float  # Their share

    def sentence(self, step: int, unit: str = "step", /) -> str:
        return (
            f"{100 * self.share:.3g}% of the targets at {unit} {step} are outside of what the last activation gives: "
            "no weights can reach them."
        )


@dataclass(frozen=True, slots=True)
class TargetsUnreachable(StreakDetector):
    """Many targets are outside of what the last activation of the model can give.

    What it sees: the share of targets of a squared error (or smooth L1, Huber) below 0 or above 1 behind a sigmoid,
    outside of -1 to 1 behind a tanh, or below 0 behind a ReLU, in steps 2 to 10. A WARNING where it is {share:percent}
    or more in {steps} steps in a row.

    Why it matters: the loss cannot fall below the error of these targets, and the activation saturates.

    What to try: scale the targets to the range of the activation, or leave out the last activation.

    When it is wrong: targets that are to be cut off.

    Reference: https://karpathy.github.io/2019/04/25/recipe/
    """

    share: float = 0.1  # minimum share of such targets
    steps: int = 5  # number of such steps in a row

    kind = "targets_unreachable"
    of_setup = True
    noun = "targets that the model cannot reach"
    order = 1144
    question = "Can the last activation give all targets?"
    check_by_hand = "Print targets.min() and targets.max() beside the range of the last activation."
    quantities = ("targets_unreachable",)
    in_a_row = "steps"
    remedies = (Remedy(Action.SCALE_TARGETS_TO_ACTIVATION),)

    def facts(self, _state: Streak, point: Point) -> Facts | None:
        return UnreachableFacts(point.value) if point.value >= self.share else None


@dataclass(frozen=True, slots=True)
class TargetSumFacts(Facts):
    """Class probabilities that add up to more than 1."""

    kind: ClassVar[str] = "target_sum"

    share: float  # Share of the rows whose targets add up to more than 1.5

    def sentence(self, step: int, unit: str = "step", /) -> str:
        return (
            f"The targets of cross_entropy add up to more than 1.5 in {100 * self.share:.3g}% of the rows at {unit} "
            f"{step}: it expects one class, or probabilities that add up to 1."
        )


@dataclass(frozen=True, slots=True)
class TargetSum(StreakDetector):
    """Class probabilities that cross entropy gets as targets add up to more than 1.

    What it sees: the share of rows of targets that add up to more than 1.5, where `cross_entropy` gets probabilities of
    classes, in steps 2 to 10. A WARNING where it is {share:percent} or more in {steps} steps in a row. A cross entropy
    that is written out is not looked at.

    Why it matters: cross entropy lets classes compete. Where several are right at once, it cannot fall below the
    entropy of all of them, and the model cannot say that none is.

    What to try: `binary_cross_entropy_with_logits` for several labels; divide counts or weights by their sum.

    When it is wrong: counts of a multinomial distribution.

    Reference: https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html
    """

    share: float = 0.5  # minimum share of such rows
    steps: int = 5  # number of such steps in a row

    kind = "target_sum"
    of_setup = True
    noun = "targets that add up to more than 1"
    order = 1161
    question = "Do targets that are probabilities add up to 1?"
    check_by_hand = "Print targets.sum(1): all must be 1."
    quantities = ("targets_above_one",)
    in_a_row = "steps"
    remedies = (Remedy(Action.USE_BINARY_CROSS_ENTROPY),)

    def facts(self, _state: Streak, point: Point) -> Facts | None:
        return TargetSumFacts(point.value) if point.value >= self.share else None
