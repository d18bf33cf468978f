"""Reports the batch of a broken step, whether it breaks again, and where the first non-finite number began.

In: forward passes of training, the loss, optimizer steps, and word that a step is broken, or is a spike. Out: an event
with shapes, ranges and what is not finite, and the result of running a broken batch once more; one that names the
module and the operation; the tensors in a file. Guarantees: a bounded number of reports and files for one training;
what is held of a batch is let go when the next step begins.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from torch.nn import Module
from torch.optim import Optimizer

from mlflow_stability.kinds.reported.batches import (
    BrokenBatchFacts,
    Rerun,
    SpikeBatch,
    SpikeBatchFacts,
    first_and_broken,
)
from mlflow_stability.kinds.reported.nan_origin import TensorFacts
from mlflow_stability.probes.objects import models_of, names_of_modules, unwrapped
from mlflow_stability.probes.probe import Guard
from mlflow_stability.recovery.nan_origin import (
    BatchCapture,
    CapturedBatch,
    Replay,
    facts_of,
    origin_event,
    replay_step,
    save_batch,
)
from mlflow_stability.recovery.skipping import SkippedBy
from mlflow_stability.vocabulary.result import Finding, Severity

PART = BatchCapture.part
MOST_REPORTS = 10
MOST_LOOKS = 20
"""So many broken steps are looked at: of one that a loss scaler throws away nothing is told."""
MOST_FILES = 3
MOST_SPIKES = 10
MOST_SPIKE_BYTES = 256 * 2**20
"""So many batches of spikes are kept, of so many bytes in all."""
MOST_SECONDS = 60.0
"""So long steps are looked at, all in all: a training must not wait for what is told of it."""
MOST_OF_ONE = 10.0
"""So long one of them, or as long as `MOST_STEPS_OF_ONE` steps take, where that is longer."""
MOST_STEPS_OF_ONE = 5
NOT_AGAIN = "Batches of the other processes were not inspected, and the batch was not run again without them."

KeptBatch = TypeVar("KeptBatch", BrokenBatchFacts, SpikeBatchFacts)


@dataclass(frozen=True, slots=True)
class BrokenBatch:
    """What was seen of a step that broke."""

    batch_number: int
    """Of how many captures."""
    batch: CapturedBatch
    facts: tuple[TensorFacts, ...]
    replay: Replay | None
    layer: str = ""
    """What the recording calls the module in which it began."""


class BatchReport:
    """The batches of one training, and what was told of those that broke; it listens to steps."""

    def __init__(
        self,
        guard: Guard,
        folder: Path,
        of_several: bool = False,
        to_be_sent: Callable[[], None] | None = None,
        host_only: bool = False,
    ) -> None:
        self._folder = folder
        self._of_several = of_several
        """Whether other processes train with this one, whose batches are not seen here."""
        self._to_be_sent = to_be_sent
        """Has the files of the folder sent; None: they stay where they are."""
        self.capture = BatchCapture(host_only=host_only)
        """Who remembers the batches: to be told of forward and backward passes by a `ForwardWatch`."""
        self._looks = self._reports = self._spikes = self._spike_bytes = 0
        self._seconds = 0.0
        self._batch_at = self._step_seconds = 0.0
        """When the last step began, and how long it took."""
        self._announced = False
        self._finding: BrokenBatch | None = None
        self.batch_number = -1
        """How many captures there were before the last: what batches are told apart by, for trainings side by
        side have several in a step."""
        self._looked = -1
        """The last of them that was said to be broken."""
        self._row_is_told = False
        """Whether it belongs to a row of broken steps of which the first was looked at."""
        self.judged: Callable[..., Any] = guard(PART, self._judged)
        """Runs before a step that is skipped, or of which only the device knows whether it is."""
        self.inspect_step: Callable[..., Any] = guard(PART, self._look)
        """Runs before a step that is broken, while the weights are those from before it."""
        self.report: Callable[..., Any] = guard(PART, self._report)
        """Tells of a step that broke, once its outcome is known."""
        self.keep_spike: Callable[..., Any] = guard(PART, self._keep_spike)
        """Keeps the batch of a spike, and tells of it."""

    def before_steps(self) -> None:
        """Runs before the first step of each capture: what runs forward after it belongs to the next one."""
        self.batch_number += 1
        self.capture.step = self.batch_number + 1
        now = time.perf_counter()
        self._batch_at, self._step_seconds = now, now - self._batch_at if self._batch_at else 0.0

    def stop(self) -> None:
        """Hold no batch any more."""
        self.capture.stop()
        self._finding = None

    @property
    def keeps_spikes(self) -> bool:
        """Whether there is room for the batch of another spike."""
        return self._spikes < MOST_SPIKES and self._spike_bytes < MOST_SPIKE_BYTES

    def inputs_of_step(self, batch_number: int | None = None) -> tuple[CapturedBatch, ...]:
        """What its passes were called with, without what came out; nothing where that is too large to be kept."""
        passes = self.capture.passes(self.batch_number if batch_number is None else batch_number)
        inputs = tuple(each.without_outputs() for each in passes)
        room = MOST_SPIKE_BYTES - self._spike_bytes
        return inputs if sum(each.bytes for each in inputs) <= room else ()

    def _judged(self, skipped_by: SkippedBy | None, flagged: bool, optimizers: Sequence[Optimizer]) -> None:
        if skipped_by == "guard":
            self._look(self.batch_number, optimizers)
        elif flagged:
            self.capture.steps_kept = 2  # only the device knows, and is asked when the next step is under way

    def _look(self, batch_number: int, optimizers: Sequence[Optimizer]) -> None:
        if batch_number == self._looked:
            return
        in_row = self._row_is_told and batch_number == self._looked + 1
        self._looked, self._row_is_told = batch_number, in_row
        passes = self.capture.passes(batch_number)
        enough = self._looks >= MOST_LOOKS or self._reports >= MOST_REPORTS or self._seconds >= MOST_SECONDS
        if in_row or not passes or enough:
            return
        self._looks += 1
        self._row_is_told = True
        if self._of_several:
            # Another forward pass of this process alone would wait for ever for the others wherever one meets them:
            # gathering split weights, say, or the statistics of a batch norm that is shared.
            self._finding = BrokenBatch(batch_number, passes[-1], facts_of(passes[-1]), None)
            return
        began = time.perf_counter()
        longest = max(MOST_OF_ONE, MOST_STEPS_OF_ONE * self._step_seconds)
        batch, replay = replay_step(passes, self.capture.loss, optimizers, min(longest, MOST_SECONDS - self._seconds))
        self._finding = BrokenBatch(batch_number, batch, facts_of(batch), replay, _layer(batch, replay, optimizers))
        self._seconds += time.perf_counter() - began

    def _report(
        self,
        step: int,
        emit: Callable[[Finding], None],
        optimizers: Sequence[Optimizer] = (),
        batch_number: int | None = None,
    ) -> None:
        """`step`: as it is recorded; `optimizers` for one that nobody looked at before its step.

        `batch_number`: which of its captures; None: the newest.
        """
        batch_number = self.batch_number if batch_number is None else batch_number
        if self._finding is None or self._finding.batch_number != batch_number:
            self._look(batch_number, optimizers)
        finding, self._finding = self._finding, None
        if finding is None or finding.batch_number != batch_number:
            return
        self._reports += 1
        replay = finding.replay
        facts = BrokenBatchFacts(
            first_and_broken(finding.facts),
            self._of_several,
            rerun=None if replay is None else Rerun(replay.conclusion),
            rerun_words=NOT_AGAIN if replay is None else replay.message,
        )
        if self._reports <= MOST_FILES:
            facts = self._kept(facts, [finding.batch], step)
        emit(Finding.at(facts, step, Severity.INFO))
        if finding.replay is not None and finding.replay.origin is not None:
            emit(origin_event(step, finding.replay.origin, finding.layer))

    def _keep_spike(self, spike: Finding, emit: Callable[[Finding], None], passes: Sequence[CapturedBatch]) -> None:
        if not passes or not self.keeps_spikes or any(each.was_changed for each in passes):  # the script reuses it
            return
        self._spikes += 1
        self._spike_bytes += sum(each.bytes for each in passes)
        facts = SpikeBatchFacts(
            first_and_broken([one for each in passes for one in facts_of(each)]),
            self._of_several,
            spike=spike.kind,
            micro_batches=len(passes),
        )
        kept = self._kept(facts, passes, spike.step)
        emit(Finding.at(kept, spike.step, Severity.INFO, remedies=SpikeBatch.remedies))

    def _kept(self, facts: KeptBatch, passes: Sequence[CapturedBatch], step: int) -> KeptBatch:
        """Keep the tensors of a batch, and note where."""
        try:
            file = save_batch(passes, self._folder / f"batch-{step:06d}.pt")
        except OSError as error:
            why = f"Its tensors could not be saved in {self._folder} ({error.strerror or error})."
            return replace(facts, not_saved=why)
        if self._to_be_sent is not None and not self._announced:
            self._announced = True
            self._to_be_sent()
        return replace(facts, saved_in=str(file), in_run=self._to_be_sent is not None)


def _layer(batch: CapturedBatch, replay: Replay, optimizers: Sequence[Optimizer]) -> str:
    """What the recording calls the module in which the trouble began; the loss function is in none."""
    root, origin = batch.root(), replay.origin
    if root is None or origin is None or origin.source == "loss":
        return ""
    model = unwrapped(root)
    name = replay.first_broken if origin.source == "input" else origin.module
    module: Module = dict(Module.named_modules(model, remove_duplicate=False)).get(name, model)
    models = models_of(optimizers) or [root]
    return names_of_modules(models).get(id(module)) or names_of_modules([root])[id(module)]
