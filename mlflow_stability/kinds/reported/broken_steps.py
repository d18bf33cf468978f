"""Findings about single steps: the origin of a first NaN, and the batches of broken steps and of spikes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlflow_stability.detectors.finding_type import FindingType, Instability
from mlflow_stability.vocabulary.facts import Facts, TextEnum
from mlflow_stability.vocabulary.result import Action, Remedy, Severity
from mlflow_stability.vocabulary.text.phrases import capitalised

_LARGEST = {"float16": "65504", "bfloat16": "3.4e38", "float32": "3.4e38", "float64": "1.8e308"}


@dataclass(frozen=True, slots=True)
class TokenFacts:
    """What is in a tensor of whole numbers."""

    different: int  # How many different ones there are
    most_frequent: int  # The most frequent number
    its_share: float  # Its share of all
    longest_run: int  # The longest row of equal ones
    repeated_rows: int  # How many rows are the same as an earlier one
    negative: int  # How many are below zero


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """What is in one tensor."""

    name: str  # Such as ``args[0]``
    shape: tuple[int, ...]  # Its length in each dimension
    dtype: str  # Such as ``float32``; empty where it was not recorded
    least: float | None  # The smallest finite value, if there is one
    greatest: float | None  # The largest finite value
    mean: float | None  # The mean of the finite values
    nan: int = 0  # Number of NaNs
    inf: int = 0  # Number of infinities
    tokens: TokenFacts | None = None  # Of whole numbers only

    @property
    def is_finite(self) -> bool:
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
    INPUT = "input"  # the batch held it
    WEIGHT = "weight"  # a weight held it, and the optimizer did not write it
    BUFFER = "buffer"  # a buffer held it
    OPTIMIZER = "optimizer"  # the optimizer wrote it into a weight
    FORWARD = "forward"  # an operation of the forward pass
    BACKWARD = "backward"  # an operation of the backward pass
    LOSS = "loss"  # the loss function, after the model
    ELSEWHERE = "elsewhere"  # a tensor from outside the batch and the model


@dataclass(frozen=True, slots=True)
class NanOriginFacts(Facts):
    kind = "nan_origin"

    source: NanSource  # Where it comes from
    module: str = ""  # The innermost module that was being run, or that owns the weight; empty for the loss function
    operations: tuple[str, ...] = ()
    """The operation; in the backward pass that of the forward pass; for the loss function each possible one."""
    line: str = ""  # The user's own line: ``model.py:41 in Block.forward``
    name: str = ""
    """Of the input, weight or buffer; of the optimizer's state; ``loss`` or ``gradient`` for the loss function,
    ``hook`` where the script hooks the model's output."""
    inputs: tuple[TensorFacts, ...] = ()  # What went into the operation
    output: TensorFacts | None = None  # What came out of it
    nan_by: str = ""  # The later operation that made NaN of an infinity
    overflowed: bool | None = None  # Whether large finite numbers exceeded the type; None where that was not asked
    text: str = ""  # The sentence of an earlier version, which recorded nothing else of the operation

    @property
    def operation(self) -> str:
        return ", ".join(self.operations)

    @property
    def value_range(self) -> tuple[float, float] | None:
        """The smallest and the largest finite value of the first input, where they are known."""
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
        numbers: dict[str, float] = {}
        for name, tensor in (("input", self.inputs[0] if self.inputs else None), ("output", self.output)):
            if tensor is None:
                continue
            numbers |= {f"{name}.nan": float(tensor.nan), f"{name}.inf": float(tensor.inf)}
            if tensor.least is not None and tensor.greatest is not None:
                numbers |= {f"{name}.least": tensor.least, f"{name}.greatest": tensor.greatest}
        return numbers

    def sentence(self, step: int, _unit: str = "step", /) -> str:
        return f"Step {step}: {self._statement()}"

    @property
    def statement(self) -> str:
        """The sentence without its step."""
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
            reason = f"because its {self.name} is non-finite"
            if self.name == "update":
                reason = "and would again from its present state"
            return f"{self.operation} wrote a non-finite weight, {reason}: {self._holds()}."
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
        names = ("" if tensor.name == "input" else f"{tensor.name}, " for tensor in self.inputs)
        inputs = " and ".join(f"{name}{tensor.words}" for name, tensor in zip(names, self.inputs, strict=True))
        if self.output is None:
            return f", from {inputs}"
        produced, dtype = f", which produced {self.output.counts} from {inputs}", self.output.dtype
        return f"{produced}; the largest {dtype} is {_LARGEST[dtype]}" if self.overflowed else produced

    def _holds(self) -> str:
        return self.name if self.output is None else f"{self.output.name} is {self.output.words}"

    def _of_loss(self) -> str:
        output = f", which returned {self.inputs[0].words}" if self.inputs else ""
        if self.name == "hook":
            return (
                "the first non-finite value comes from the hook on the model's output or from the loss function"
                f"{output}; the gradient that the hook gave is non-finite."
            )
        reasons = {"loss": "the loss is non-finite", "gradient": "the loss is finite, its gradient is not"}
        reason = reasons.get(self.name, "the gradient from the loss is non-finite")
        if self.operations:
            reason += f": possible source {self.operation}"
        return f"the first non-finite value comes from the loss function, not from the model{output}; {reason}."


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
    remedies = (Remedy(Action.KEEP_INPUTS_IN_RANGE), Remedy(Action.OPEN_SAVED_BATCH))


MAX_TENSORS = 8  # number of tensors that the sentence describes


class Rerun(TextEnum):
    DATA_OR_NUMERICS = "data or numerics"  # it was non-finite again
    WEIGHTS = "weights"  # the weights were already non-finite
    HARDWARE = "hardware"  # it was finite with the same weights and random numbers
    AFTER_THE_MODEL = "after the model"  # the output of the model was finite both times
    CANNOT_TELL = "cannot tell"  # it could not be run again, or not under the same conditions


@dataclass(frozen=True, slots=True)
class BatchFacts(Facts):
    tensors: tuple[TensorFacts, ...] = ()  # Its first tensors, and all that are not finite
    first_process_only: bool = False  # Whether other processes had other parts of it, which were not inspected
    saved_in: str = ""  # Path of the file with its tensors; empty where they are not saved
    in_run: bool = False  # Whether that file is among the artifacts of the run, too, under ``stability/batches/``
    not_saved: str = ""  # Why they are not saved, where saving failed

    def numbers(self) -> dict[str, float]:
        broken = (tensor for tensor in self.tensors if not tensor.is_finite)
        numbers = {f"not_finite.{tensor.name}": float(tensor.nan + tensor.inf) for tensor in broken}
        for tensor in self.tensors[:MAX_TENSORS]:
            name, least, greatest = tensor.name, tensor.least, tensor.greatest
            if least is not None and greatest is not None:
                numbers |= {f"least.{name}": float(least), f"greatest.{name}": float(greatest)}
        return numbers

    @property
    def _process(self) -> str:
        return " in the first process" if self.first_process_only else ""

    @property
    def _contents(self) -> str:
        return "; ".join(map(_tensor_words, self.tensors[:MAX_TENSORS])) or "no tensors"

    @property
    def _saved(self) -> str:
        if self.not_saved:
            return f" {self.not_saved}"
        if not self.saved_in:
            return ""
        in_run = ", and in the run under stability/batches/" if self.in_run else ""
        return f" Its tensors are saved in {self.saved_in}{in_run}."


@dataclass(frozen=True, slots=True)
class BrokenBatchFacts(BatchFacts):
    """The batch of a step that broke, and what running it again has shown."""

    kind = "broken_batch"

    rerun: Rerun | None = None  # What running it again has shown; None where it was not tried
    rerun_words: str = ""  # The same in a sentence, with what it depends on
    changed_in_place: bool = False  # Whether the script or the model wrote into it after the model had received it

    def numbers(self) -> dict[str, float]:
        numbers = super(BrokenBatchFacts, self).numbers()
        if self.rerun in (Rerun.HARDWARE, Rerun.DATA_OR_NUMERICS):
            numbers["finite_again"] = float(self.rerun is Rerun.HARDWARE)
        return numbers

    def sentence(self, step: int, _unit: str = "step", /) -> str:
        return f"Batch of step {step}{self._process}: {self._contents}. {self.rerun_words}{self._saved}"


@dataclass(frozen=True, slots=True)
class SpikeBatchFacts(BatchFacts):
    kind = "spike_batch"

    spike: str = "loss_spike"  # The type of the finding whose batch it is
    micro_batches: int = 1  # Of how many backward passes the step consists

    def sentence(self, step: int, _unit: str = "step", /) -> str:
        several = f" ({self.micro_batches} micro-batches)" if self.micro_batches > 1 else ""
        spike = "gradient explosion" if self.spike == "gradient_explosion" else "loss spike"
        return f"Batch of the {spike} at step {step}{self._process}{several}: {self._contents}.{self._saved}"


def first_and_broken(tensors: Sequence[TensorFacts]) -> tuple[TensorFacts, ...]:
    """Return the first tensors of a batch, and the others that are not finite."""
    return (*tensors[:MAX_TENSORS], *(tensor for tensor in tensors[MAX_TENSORS:] if not tensor.is_finite))


def _tensor_words(tensor: TensorFacts) -> str:
    if tensor.tokens is None:
        return f"{tensor.name} {tensor.words}"
    different, most_frequent = tensor.tokens.different, tensor.tokens.most_frequent
    share = f"{tensor.tokens.its_share:.0%}"
    return f"{tensor.name} {tensor.words}, {different} different, {share} of them {most_frequent}"


@dataclass(frozen=True, slots=True)
class BrokenBatch(FindingType):
    """The batch of a skipped step was inspected and run again.

    What it sees: shapes, ranges, non-finite values and token statistics of the batch, and whether the same batch gives
    a finite result the second time.

    Why it matters: a finite result the second time indicates the hardware; a non-finite one indicates data or numerics.

    What to try: open the saved batch; inspect rows with non-finite or out-of-range values.

    When it is wrong: labels that only the script's own loss function receives are not in the recorded batch.

    Reference: Megatron-LM's rerun state machine
    """

    kind = "broken_batch"
    instability = Instability.SIGN
    noun = "a broken batch"
    plural = "broken batches"
    order = 1070
    severities = (Severity.INFO,)
    remedies = (Remedy(Action.OPEN_SAVED_BATCH),)


@dataclass(frozen=True, slots=True)
class SpikeBatch(FindingType):
    """The batch of a loss spike was kept.

    What it sees: shapes, ranges and token statistics of the batch of a spike whose loss is finite, with its tensors in
    a file. Of 64 steps in a row at most one batch is kept, that of the highest loss; in one training 10, of 256 MiB.

    Why it matters: a spike that recovers by itself is mostly that of one batch, which later is hard to find again.

    What to try: open the saved batch; compare its ranges with those of other batches.

    When it is wrong: labels that only the script's own loss function receives are not in the batch. Batches that the
    script overwrites in place are not kept, nor are those on an accelerator without the guard.

    Reference: PaLM (arXiv 2204.02311), section 5.1, which skipped the batches of loss spikes
    """

    kind = "spike_batch"
    instability = Instability.SIGN
    noun = "a kept batch"
    plural = "kept batches"
    order = 1075
    severities = (Severity.INFO,)
    remedies = (Remedy(Action.OPEN_SAVED_BATCH),)
