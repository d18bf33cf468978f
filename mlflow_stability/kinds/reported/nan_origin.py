"""Where the first number that is not finite comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mlflow_stability.detectors.finding_type import FindingType, Instability
from mlflow_stability.vocabulary.facts.facts import Facts
from mlflow_stability.vocabulary.facts.text_enum import TextEnum
from mlflow_stability.vocabulary.result import Action, Remedy
from mlflow_stability.vocabulary.result.severity import Severity
from mlflow_stability.vocabulary.text.phrases import capitalised

_LARGEST = {"float16": "65504", "bfloat16": "3.4e38", "float32": "3.4e38", "float64": "1.8e308"}


@dataclass(frozen=True, slots=True)
class TokenFacts:
    """What is in a tensor of whole numbers."""

    different: int
    """How many different ones there are."""
    most_frequent: int
    """The one that is there most often."""
    its_share: float
    """Its share of all."""
    longest_run: int
    """The longest row of equal ones."""
    repeated_rows: int
    """How many rows are the same as an earlier one."""
    negative: int
    """How many are below zero."""


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """What is in one tensor."""

    name: str
    """Such as ``args[0]``."""
    shape: tuple[int, ...]
    """Its length in each dimension."""
    dtype: str
    """Such as ``float32``; empty where it was not recorded."""
    least: float | None
    """The smallest finite value; None where there is none."""
    greatest: float | None
    """The largest finite value."""
    mean: float | None
    """The mean of the finite values."""
    nan: int = 0
    """Number of NaNs."""
    inf: int = 0
    """Number of infinities."""
    tokens: TokenFacts | None = None
    """Of whole numbers only."""

    @property
    def is_finite(self) -> bool:
        """Whether all values are finite."""
        return not self.nan + self.inf

    @property
    def words(self) -> str:
        """``float32 6x8 from -0.3 to 2.1``."""
        shape = "x".join(map(str, self.shape)) or "scalar"
        words = f"{self.dtype} {shape}"
        if self.least is not None and self.greatest is not None:
            words += f" from {self.least + 0.0:.4g} to {self.greatest + 0.0:.4g}"
        return words if self.is_finite else f"{words} ({self.counts})"

    @property
    def counts(self) -> str:
        """``3 NaN and 1 infinite``."""
        parts = [f"{number} {word}" for number, word in ((self.nan, "NaN"), (self.inf, "infinite")) if number]
        return " and ".join(parts)


class NanSource(TextEnum):
    """Where a first value that is not finite comes from."""

    INPUT = "input"
    """The batch held it."""
    WEIGHT = "weight"
    """A weight held it, and the optimizer did not write it."""
    BUFFER = "buffer"
    """A buffer held it."""
    OPTIMIZER = "optimizer"
    """The optimizer wrote it into a weight."""
    FORWARD = "forward"
    """An operation of the forward pass."""
    BACKWARD = "backward"
    """An operation of the backward pass."""
    LOSS = "loss"
    """The loss function, after the model."""
    ELSEWHERE = "elsewhere"
    """A tensor from outside the batch and the model."""


@dataclass(frozen=True, slots=True)
class NanOriginFacts(Facts):
    """Where the first value of a step that is not finite comes from."""

    kind: ClassVar[str] = "nan_origin"

    source: NanSource
    """Where it comes from."""
    module: str = ""
    """The innermost module that was being run, or that owns the weight; empty for the loss function."""
    operations: tuple[str, ...] = ()
    """The operation; in the backward pass that of the forward pass; for the loss function each possible one."""
    line: str = ""
    """The user's own line: ``model.py:41 in Block.forward``."""
    name: str = ""
    """Of the input, weight or buffer; of the optimizer's state; ``loss`` or ``gradient`` for the loss function,
    ``hook`` where the script hooks the model's output."""
    inputs: tuple[TensorFacts, ...] = ()
    """What went into the operation."""
    output: TensorFacts | None = None
    """What came out of it."""
    nan_by: str = ""
    """The later operation that made NaN of an infinity."""
    overflowed: bool | None = None
    """Whether large finite numbers exceeded the type; None where that was not asked."""
    text: str = ""
    """The sentence of an earlier version, which recorded nothing else of the operation."""

    @property
    def operation(self) -> str:
        """All operations in one text."""
        return ", ".join(self.operations)

    @property
    def value_range(self) -> tuple[float, float] | None:
        """The smallest and the largest finite value of the first input; None where they are not known."""
        first = self.inputs[0] if self.inputs else None
        if first is None or first.least is None or first.greatest is None:
            return None
        return first.least, first.greatest

    @property
    def is_exact(self) -> bool:
        """Whether an operation, or the batch, is named."""
        traced = self.source in (NanSource.FORWARD, NanSource.BACKWARD, NanSource.LOSS)
        return self.source is NanSource.INPUT or (traced and bool(self.operations))

    def numbers(self) -> dict[str, float]:
        """Of the first input and the output: the range, and how much is not finite."""
        found: dict[str, float] = {}
        for what, tensor in (("input", self.inputs[0] if self.inputs else None), ("output", self.output)):
            if tensor is None:
                continue
            found[f"{what}.nan"], found[f"{what}.inf"] = float(tensor.nan), float(tensor.inf)
            if tensor.least is not None and tensor.greatest is not None:
                found[f"{what}.least"], found[f"{what}.greatest"] = tensor.least, tensor.greatest
        return found

    def sentence(self, step: int, _unit: str = "step", /) -> str:
        """``Step 400: the first non-finite value comes from log in layer.2 (model.py:41 in forward), …``."""
        return f"Step {step}: {self._statement()}"

    @property
    def statement(self) -> str:
        """The sentence without its step, for a place that names the step."""
        return capitalised(self._statement())

    def _statement(self) -> str:
        if self.text:
            return self.text
        source = self.source
        if source is NanSource.INPUT:
            return f"the batch itself was non-finite: {self._holds()}{self._in(', where it was first used')}."
        if source in (NanSource.WEIGHT, NanSource.BUFFER):
            unexplained = "The optimizer's state does not explain it."
            return f"a {source} of {self.module} was non-finite: {self._holds()}. {unexplained}"
        if source is NanSource.OPTIMIZER:
            return f"{self._of_optimizer()}: {self._holds()}."
        if source is NanSource.LOSS:
            return self._of_loss()
        what = self.operation
        if source is NanSource.BACKWARD:
            what = f"the gradient of {self.operation}" if self.operations else "the backward pass"
        elif source is NanSource.ELSEWHERE:
            what = f"a tensor that {self.operation} takes from outside the batch and the model"
        later = f" {self.nan_by} turned it into NaN." if self.nan_by else ""
        return f"the first non-finite value comes from {what}{self._in()}{self._made()}.{later}"

    def _in(self, more: str = "") -> str:
        module = f" in {self.module}{more}" if self.module else ""
        return f"{module} ({self.line})" if self.line else module

    def _made(self) -> str:
        if not self.inputs:
            return ""
        given = " and ".join(f"{'' if each.name == 'input' else each.name + ', '}{each.words}" for each in self.inputs)
        if self.output is None:
            return f", from {given}"
        made = f", which produced {self.output.counts} from {given}"
        dtype = self.output.dtype
        return f"{made}; the largest {dtype} is {_LARGEST[dtype]}" if self.overflowed else made

    def _holds(self) -> str:
        return self.name if self.output is None else f"{self.output.name} is {self.output.words}"

    def _of_optimizer(self) -> str:
        if self.name == "update":
            return f"{self.operation} wrote a non-finite weight, and would again from its present state"
        return f"{self.operation} wrote a non-finite weight, because its {self.name} is non-finite"

    def _of_loss(self) -> str:
        gave = f", which returned {self.inputs[0].words}" if self.inputs else ""
        if self.name == "hook":
            return (
                "the first non-finite value comes from the hook on the model's output or from the loss function"
                f"{gave}; the gradient that the hook gave is non-finite."
            )
        what = {"loss": "the loss is non-finite", "gradient": "the loss is finite, its gradient is not"}
        said = what.get(self.name, "the gradient from the loss is non-finite")
        of = f": possible source {self.operation}" if self.operations else ""
        return f"the first non-finite value comes from the loss function, not from the model{gave}; {said}{of}."


@dataclass(frozen=True, slots=True)
class NanOrigin(FindingType):
    """The operation that produced the first non-finite value was found.

    What it sees: the batch of the broken step is run again, forward, and backward where the forward pass is finite, and
    every operation is checked. The result is an input, a weight, the optimizer, an operation with its source line and
    input range, or the loss function. With the guard, each series of broken steps is checked; without it, the first
    broken step of a training on the CPU.

    Why it matters: a NaN spreads to the whole model within one step, which hides its origin.

    What to try: keep the inputs of that operation within its range; inspect the saved batch.

    When it is wrong: computations outside the model are seen only through what they return, so the operation of a loss
    function is inferred. A model that holds an iterator, a closure or another object that cannot be restored is not
    run again.

    Reference: torch.autograd.detect_anomaly, which finds the operation of a backward pass by running it all slowly
    """

    kind = "nan_origin"
    instability = Instability.SIGN
    noun = "a first NaN that was traced"
    plural = "first NaNs that were traced"
    order = 1080
    severities = (Severity.INFO,)
    remedies = (
        Remedy(Action.KEEP_INPUTS_IN_RANGE),
        Remedy(Action.OPEN_SAVED_BATCH),
    )
