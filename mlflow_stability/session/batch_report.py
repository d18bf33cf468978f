"""Tells what was in the batch of a step that broke, and whether it breaks again.

In: the modules that train, and word that a step was skipped. Out: an event with shapes, ranges and what is not finite,
and what came of running the batch once more; if asked, its tensors in a file. Promised: a bounded number of reports and
files for one training; a compiled module is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from torch.nn import Module

from mlflow_stability.recovery.batch_capture import BatchCapture
from mlflow_stability.recovery.batch_facts import TensorFacts, facts_of, save_batch
from mlflow_stability.recovery.batch_replay import replay_batch
from mlflow_stability.vocabulary.event import Event, Severity

KIND = "broken_batch"
MOST_REPORTS = 10
MOST_FILES = 3
MOST_TENSORS = 8
"""So many tensors of a batch are described."""


class BatchReport:
    """The last batch of one training, and what was told of those that broke."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._capture: BatchCapture | None = None
        self._reports = 0

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
        facts, replay = facts_of(batch), replay_batch(batch)
        said = "; ".join(map(_sentence, facts[:MOST_TENSORS])) or "no tensors"
        evidence = {f"not_finite.{each.name}": float(each.nan + each.inf) for each in facts if each.nan + each.inf}
        where = ""
        if self._reports <= MOST_FILES:
            where = f" Its tensors are in {save_batch(batch, self._folder / f'batch-{step:06d}.pt')}."
        message = f"The batch of step {step}: {said}. {replay.message}{where}"
        tell(Event(step, KIND, Severity.INFO, message, evidence=evidence))

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
