"""Inputs of the first layer that were not scaled, or that are the same for each row of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mlflow_stability.detectors.detector import Detector, Point
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.result import Action, Finding, Remedy, Severity


@dataclass(frozen=True, slots=True)
class InputScaleFacts(Facts):
    """The size of the inputs of the first layer."""

    kind: ClassVar[str] = "input_scale"

    module: str
    """The first layer."""
    low: float
    """Its lowest input."""
    high: float
    """Its highest input."""
    rms: float
    """Their root mean square."""

    @property
    def are_bytes(self) -> bool:
        """Whether they look like the bytes of images."""
        return self.low >= 0 and 128 < self.high <= 255

    def sentence(self, step: int, unit: str = "step", /) -> str:
        """``The inputs of module features.0 are 0 to 255 at step 10 (RMS 138), …``"""
        usual = "bytes that were not scaled" if self.are_bytes else "usual is an RMS near 1"
        return (
            f"The inputs of module {self.module} are {self.low:.3g} to {self.high:.3g} at {unit} {step} (RMS "
            f"{self.rms:.3g}): {usual}."
        )


@dataclass(slots=True)
class InputScaleState:
    """What has been seen so far."""

    low: float = 0.0
    high: float = 0.0
    small: int = 0
    """In how many looks in a row inputs were small."""
    is_found: bool = False


@dataclass(frozen=True, slots=True)
class InputScale(Detector):
    """The inputs of the model are far from a size of 1.

    What it sees: the inputs of the first layer, a linear layer, convolution or recurrent layer, where neither an
    embedding nor a normalisation is before it and no normalisation right behind it. A WARNING where their root mean
    square is {largest} or more, or where none is above {smallest} in {looks} looks in a row. Measured at step 10, then
    with the layers.

    Why it matters: initial weights and usual learning rates are made for inputs of a size near 1. Gradients of the
    first layer grow with its inputs: training diverges, units die, or learning takes much longer.

    What to try: divide bytes by 255; subtract the mean of each feature and divide by its standard deviation, once.

    When it is wrong: a first layer that was initialised for these inputs.

    Reference: http://yann.lecun.com/exdb/publis/pdf/lecun-98b.pdf
    """

    largest: float = 20.0
    """Minimum root mean square of large inputs."""
    smallest: float = 0.02
    """Maximum of small inputs."""
    looks: int = 2
    """Number of looks in a row at small inputs: an environment may begin with small observations."""

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
        """Look at the lowest and the highest input, then at their root mean square."""
        if state.is_found or not point.finite:
            return state, None
        if point.quantity == "input_low":
            state.low = point.value
        elif point.quantity == "input_high":
            state.high = point.value
        else:
            state.small = state.small + 1 if 0 < max(-state.low, state.high) <= self.smallest else 0
            if point.value >= self.largest or state.small == self.looks:
                state.is_found = True
                facts = InputScaleFacts(point.place, state.low, state.high, point.value)
                return state, self.finding(point, Severity.WARNING, facts)
        return state, None


@dataclass(frozen=True, slots=True)
class SameInputFacts(Facts):
    """Inputs that are the same for each row."""

    kind: ClassVar[str] = "same_input"

    module: str
    """The first layer."""
    looks: int
    """Number of steps in which they were."""

    def sentence(self, step: int, unit: str = "step", /) -> str:
        """``The input of module rnn is the same for each row of the batch, in 2 steps up to step 100: …``"""
        return (
            f"The input of module {self.module} is the same for each row of the batch, in {self.looks} {unit}s that "
            f"were looked at, up to {unit} {step}: the output cannot depend on the data."
        )


@dataclass(slots=True)
class SameInputState:
    """What has been seen so far."""

    looks: int = 0
    is_over: bool = False
    """Whether rows differed once, or the finding was made."""


@dataclass(frozen=True, slots=True)
class SameInput(Detector):
    """The first layer gets the same input for each row of a batch.

    What it sees: the largest difference between rows of the input of the first layer, in batches of 8 rows and more. A
    WARNING where it is zero in each of the first {looks} looks, at step 10 and every `layers_every_n_steps`.

    Why it matters: the outputs cannot depend on the data, and the model learns no more than the mean of the targets.

    What to try: look for inputs that are multiplied by zero, masked, or overwritten on the way to the first layer.

    When it is wrong: a first layer of learned constants, whose data come in later.

    Reference: https://karpathy.github.io/2019/04/25/recipe/
    """

    looks: int = 2
    """Number of looks."""

    kind = "same_input"
    of_setup = True
    noun = "the same input for each row"
    order = 1137
    question = "Does the input differ between the rows of a batch?"
    check_by_hand = "Print (x - x[0]).abs().max() of what the first layer gets: it must not be 0."
    quantities = ("input_spread",)
    remedies = (Remedy(Action.INSPECT_INPUT_PATH),)
    state_type = SameInputState

    def step(self, state: SameInputState, point: Point) -> tuple[SameInputState, Finding | None]:
        """Look at the next difference."""
        if state.is_over or not point.finite:
            return state, None
        if point.value > 0:
            state.is_over = True
            return state, None
        state.looks += 1
        if state.looks < self.looks:
            return state, None
        state.is_over = True
        return state, self.finding(point, Severity.WARNING, SameInputFacts(point.place, state.looks))
