"""Findings about single batches: of broken steps and of spikes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from mlflow_stability.detectors.finding_type import FindingType, Instability
from mlflow_stability.kinds.reported.nan_origin import TensorFacts
from mlflow_stability.vocabulary.facts.facts import Facts
from mlflow_stability.vocabulary.facts.text_enum import TextEnum
from mlflow_stability.vocabulary.result import Action, Remedy
from mlflow_stability.vocabulary.result.severity import Severity

MAX_TENSORS = 8
"""Number of tensors that the sentence describes."""


class Rerun(TextEnum):
    """What running a broken batch again has shown."""

    DATA_OR_NUMERICS = "data or numerics"
    """It was non-finite again."""
    WEIGHTS = "weights"
    """The weights were already non-finite."""
    HARDWARE = "hardware"
    """It was finite with the same weights and random numbers."""
    AFTER_THE_MODEL = "after the model"
    """The output of the model was finite both times."""
    CANNOT_TELL = "cannot tell"
    """It could not be run again, or not under the same conditions."""


@dataclass(frozen=True, slots=True)
class BatchFacts(Facts):
    """What is in a batch, and where it is kept."""

    tensors: tuple[TensorFacts, ...] = ()
    """Its first tensors, and all that are not finite."""
    first_process_only: bool = False
    """Whether other processes had other parts of it, which were not inspected."""
    saved_in: str = ""
    """Path of the file with its tensors; empty where they are not saved."""
    in_run: bool = False
    """Whether that file is among the artifacts of the run, too, under ``stability/batches/``."""
    not_saved: str = ""
    """Why they are not saved, where saving failed."""

    def numbers(self) -> dict[str, float]:
        """For each tensor its smallest and largest value, and how many values are not finite."""
        found = {f"not_finite.{each.name}": float(each.nan + each.inf) for each in self.tensors if not each.is_finite}
        for each in self.tensors[:MAX_TENSORS]:
            if each.least is not None and each.greatest is not None:
                found |= {f"least.{each.name}": float(each.least), f"greatest.{each.name}": float(each.greatest)}
        return found

    def sentence(self, step: int, _unit: str = "step", /) -> str:
        """``Batch of step 400: args[0] float32 6x8 from -0.3 to 2.1.``"""
        return f"Batch of step {step}: {self._contents}.{self._kept}"

    @property
    def _contents(self) -> str:
        return "; ".join(map(_tensor_words, self.tensors[:MAX_TENSORS])) or "no tensors"

    @property
    def _kept(self) -> str:
        """Where the tensors are; empty where they were not to be saved."""
        if self.not_saved:
            return f" {self.not_saved}"
        if not self.saved_in:
            return ""
        in_run = ", and in the run under stability/batches/" if self.in_run else ""
        return f" Its tensors are saved in {self.saved_in}{in_run}."


@dataclass(frozen=True, slots=True)
class BrokenBatchFacts(BatchFacts):
    """The batch of a step that broke, and what running it again has shown."""

    kind: ClassVar[str] = "broken_batch"

    rerun: Rerun | None = None
    """What running it again has shown; None where it was not tried."""
    rerun_words: str = ""
    """The same in a sentence, with what it depends on."""

    def numbers(self) -> dict[str, float]:
        """The numbers of the batch, and whether it was finite again."""
        again = {Rerun.HARDWARE: 1.0, Rerun.DATA_OR_NUMERICS: 0.0}.get(self.rerun) if self.rerun else None
        found = super(BrokenBatchFacts, self).numbers()
        return found if again is None else found | {"finite_again": again}

    def sentence(self, step: int, _unit: str = "step", /) -> str:
        """``Batch of step 400: args[0] float32 6x8 from -0.3 to 2.1. …``."""
        whose = " in the first process" if self.first_process_only else ""
        return f"Batch of step {step}{whose}: {self._contents}. {self.rerun_words}{self._kept}"


@dataclass(frozen=True, slots=True)
class SpikeBatchFacts(BatchFacts):
    """The batch of a spike of the loss or the gradient norm."""

    kind: ClassVar[str] = "spike_batch"

    spike: str = "loss_spike"
    """The type of the finding whose batch it is."""
    micro_batches: int = 1
    """Of how many backward passes the step consists."""

    def sentence(self, step: int, _unit: str = "step", /) -> str:
        """``Batch of the loss spike at step 400: args[0] float32 6x8 from -0.3 to 2.1. …``."""
        several = f" ({self.micro_batches} micro-batches)" if self.micro_batches > 1 else ""
        whose = " in the first process" if self.first_process_only else ""
        what = "gradient explosion" if self.spike == "gradient_explosion" else "loss spike"
        return f"Batch of the {what} at step {step}{whose}{several}: {self._contents}.{self._kept}"


def first_and_broken(tensors: Sequence[TensorFacts]) -> tuple[TensorFacts, ...]:
    """The first tensors of a batch, and those of the others that are not finite."""
    return (*tensors[:MAX_TENSORS], *(each for each in tensors[MAX_TENSORS:] if not each.is_finite))


def _tensor_words(tensor: TensorFacts) -> str:
    if tensor.tokens is None:
        return f"{tensor.name} {tensor.words}"
    tokens = tensor.tokens
    most = f"{tokens.its_share:.0%} of them {tokens.most_frequent}"
    return f"{tensor.name} {tensor.words}, {tokens.different} different, {most}"


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
