"""Tells what was in the batch of a step that broke, and whether it breaks again.

In: the modules that train, and word that a step was skipped. Out: an event with shapes, ranges and what is not finite,
and what came of running the batch once more; if asked, its tensors in a file. Promised: a bounded number of reports and
files for one training; a compiled module is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from torch.nn import Module

from mlflow_stability.recovery.batch_capture import BatchCapture, CapturedBatch
from mlflow_stability.recovery.batch_facts import TensorFacts, facts_of, save_batch
from mlflow_stability.recovery.batch_replay import replay_batch
from mlflow_stability.vocabulary.event import Event, Severity

KIND = "broken_batch"
MOST_REPORTS = 10
MOST_FILES = 3
MOST_TENSORS = 8
"""So many tensors of a batch are described."""
NOT_AGAIN = "What the other processes had is not looked at, and the batch was not run again without them."


class BatchReport:
    """The last batch of one training, and what was told of those that broke."""

    def __init__(self, folder: Path, of_several: bool = False, to_be_sent: Callable[[], None] | None = None) -> None:
        self._folder = folder
        self._of_several = of_several
        """Whether other processes train with this one, whose batches are not seen here."""
        self._to_be_sent = to_be_sent
        """Has the files of the folder sent; None: they stay where they are."""
        self._capture: BatchCapture | None = None
        self._reports = 0
        self._announced = False

    def watch(self, models: Sequence[Module]) -> None:
        """Look at what goes into the first of these from now on."""
        self.close()
        root = models[0] if models else None
        if root is not None and getattr(root, "_compiled_call_impl", None) is None:
            self._capture = BatchCapture()
            self._capture.install(root)

    def report(self, step: int, tell: Callable[[Event], None]) -> None:
        """Look at the last batch: the one of a step that was skipped, whose weights are still those from before it."""
        batch = None if self._capture is None else self._capture.batch
        if batch is None or self._reports >= MOST_REPORTS:
            return
        self._reports += 1
        facts = facts_of(batch)
        # Another forward pass of this process alone would wait for ever for the others wherever one meets them:
        # gathering split weights, say, or the statistics of a batch norm that is shared.
        again = NOT_AGAIN if self._of_several else replay_batch(batch).message
        said = "; ".join(map(_sentence, facts[:MOST_TENSORS])) or "no tensors"
        evidence = {f"not_finite.{each.name}": float(each.nan + each.inf) for each in facts if each.nan + each.inf}
        where = self._kept(batch, step) if self._reports <= MOST_FILES else ""
        whose = " in the first process" if self._of_several else ""
        message = f"The batch of step {step}{whose}: {said}. {again}{where}"
        tell(Event(step, KIND, Severity.INFO, message, evidence=evidence))

    def _kept(self, batch: CapturedBatch, step: int) -> str:
        """Keep its tensors; gives the sentence that says where."""
        try:
            file = save_batch(batch, self._folder / f"batch-{step:06d}.pt")
        except OSError as error:
            return f" Its tensors could not be kept in {self._folder} ({error.strerror or error})."
        if self._to_be_sent is None:
            return f" Its tensors are in {file}."
        if not self._announced:
            self._announced = True
            self._to_be_sent()
        return f" Its tensors are in {file}, and in the run under stability/batches/."

    def close(self) -> None:
        """Look no more."""
        if self._capture is not None:
            self._capture.remove()
            self._capture = None


def _sentence(facts: TensorFacts) -> str:
    """One tensor in a few words."""
    shape = "x".join(map(str, facts.shape)) or "scalar"
    words = [f"{facts.name} {facts.dtype} {shape}"]
    if facts.least is not None and facts.greatest is not None:
        words.append(f"from {facts.least:.4g} to {facts.greatest:.4g}")
    if facts.nan + facts.inf:
        words.append(f"{facts.nan} NaN and {facts.inf} infinite")
    if facts.tokens is not None:
        tokens = facts.tokens
        words.append(f"{tokens.different} different, {tokens.its_share:.0%} are {tokens.most_frequent}")
    return ", ".join(words)
