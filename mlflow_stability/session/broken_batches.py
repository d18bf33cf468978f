"""Report batches of broken steps and of loss spikes, and where the first non-finite value began.

Guarantees: a bounded number of reports and files for one training; batches are released when the next step begins. Of
the steps that wait to be judged, one batch is held for a spike, that of the highest loss, by reference and within a
budget; a step with a lower loss costs one comparison.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from torch.nn import Module
from torch.optim import Optimizer

from mlflow_stability.kinds.reported.broken_steps import (
    BrokenBatchFacts,
    Rerun,
    SpikeBatch,
    SpikeBatchFacts,
    TensorFacts,
    first_and_broken,
)
from mlflow_stability.probes.model_discovery import models_of, names_of_modules, unwrapped
from mlflow_stability.probes.probe import Guard
from mlflow_stability.recovery.nan_origin.batch_capture import BatchCapture, CapturedBatch, facts_of, save_batch
from mlflow_stability.recovery.nan_origin.batch_replay import Replay, replay_step
from mlflow_stability.recovery.nan_origin.origin_checks import origin_event
from mlflow_stability.recovery.skipping.skip_count import SkippedBy
from mlflow_stability.vocabulary.measured.signal import Signal
from mlflow_stability.vocabulary.result import Finding, Severity

PART = BatchCapture.part
MOST_REPORTS = 10
MOST_LOOKS = 20  # steps that are inspected, including those skipped by a loss scaler, which are not reported
MOST_FILES = 3
MOST_SPIKES = 10
MOST_SPIKE_BYTES = 256 * 2**20  # limits of the batches of spikes that are saved
MOST_SECONDS = 60.0  # limit for all inspections: the training waits for them
MOST_OF_ONE = 10.0  # limit for one inspection, or `MOST_STEPS_OF_ONE` steps where that is longer
MOST_STEPS_OF_ONE = 5
NOT_AGAIN = "Batches of the other processes were not inspected, and the batch was not run again without them."

KeptBatch = TypeVar("KeptBatch", BrokenBatchFacts, SpikeBatchFacts)


@dataclass(frozen=True, slots=True)
class BrokenBatch:
    """Result of inspecting a broken step."""

    batch_number: int  # number of its capture
    batch: CapturedBatch
    facts: tuple[TensorFacts, ...]
    replay: Replay | None
    layer: str = ""  # name of the module in the recording where it began


class BatchReport:
    def __init__(
        self,
        guard: Guard,
        folder: Path,
        of_several: bool = False,
        to_be_sent: Callable[[], None] | None = None,
        host_only: bool = False,
    ) -> None:
        self._folder = folder
        self._of_several = of_several  # other ranks have batches that are not seen here
        self._to_be_sent = to_be_sent  # requests the upload of the folder; None: files stay there
        self.capture = BatchCapture(host_only=host_only)  # observes forward and backward passes
        self._looks = self._reports = self._spikes = self._spike_bytes = 0
        self._seconds = 0.0
        self._batch_at = self._step_seconds = 0.0  # when the last step began, and how long it took
        self._announced = False
        self._finding: BrokenBatch | None = None
        self.batch_number = -1  # number of the last capture; parallel trainings have several in a step
        self._looked = -1  # the last capture that was broken
        self._row_is_inspected = False  # whether the first of its row of broken steps was inspected
        self.judged: Callable[..., Any] = guard(PART, self._inspect_skipped)
        """Runs before a step that is skipped, or whose flag is only on the device."""
        self.inspect_step: Callable[..., Any] = guard(PART, self._look)
        """Runs before a broken step, while the weights are those from before it."""
        self.report: Callable[..., Any] = guard(PART, self._report)  # reports a broken step once its outcome is known
        self.keep_spike: Callable[..., Any] = guard(PART, self._keep_spike)  # saves and reports the batch of a spike

    def before_steps(self) -> None:
        """Runs before the first step of each capture: later forward passes belong to the next one."""
        self.batch_number += 1
        self.capture.step = self.batch_number + 1
        now = time.perf_counter()
        self._batch_at, self._step_seconds = now, now - self._batch_at if self._batch_at else 0.0

    def stop(self) -> None:
        self.capture.stop()
        self._finding = None

    @property
    def keeps_spikes(self) -> bool:
        return self._spikes < MOST_SPIKES and self._spike_bytes < MOST_SPIKE_BYTES

    def inputs_of_step(self, batch_number: int | None = None) -> tuple[CapturedBatch, ...]:
        """Return the inputs of a step without outputs; empty where they are too large."""
        passes = self.capture.passes(self.batch_number if batch_number is None else batch_number)
        inputs = tuple(batch.without_outputs() for batch in passes)
        room = MOST_SPIKE_BYTES - self._spike_bytes
        return inputs if sum(batch.bytes for batch in inputs) <= room else ()

    def _inspect_skipped(self, skipped_by: SkippedBy | None, flagged: bool, optimizers: Sequence[Optimizer]) -> None:
        if skipped_by == "guard":
            self._look(self.batch_number, optimizers)
        elif flagged:
            self.capture.steps_kept = 2  # only the device knows, and is asked when the next step is under way

    def _look(self, batch_number: int, optimizers: Sequence[Optimizer]) -> None:
        if batch_number == self._looked:
            return
        in_row = self._row_is_inspected and batch_number == self._looked + 1
        self._looked, self._row_is_inspected = batch_number, in_row
        passes = self.capture.passes(batch_number)
        enough = self._looks >= MOST_LOOKS or self._reports >= MOST_REPORTS or self._seconds >= MOST_SECONDS
        if in_row or not passes or enough:
            return
        self._looks += 1
        self._row_is_inspected = True
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
        """`step`: as recorded. `optimizers`: for a step that was not inspected before. `batch_number`: default the
        newest.
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
            changed_in_place=finding.batch.was_changed,
        )
        if self._reports <= MOST_FILES:
            facts = self._save_tensors(facts, [finding.batch], step)
        emit(Finding.at(facts, step, Severity.INFO))
        if finding.replay is not None and finding.replay.origin is not None:
            emit(origin_event(step, finding.replay.origin, finding.layer))

    def _keep_spike(self, spike: Finding, emit: Callable[[Finding], None], passes: Sequence[CapturedBatch]) -> None:
        if not passes or not self.keeps_spikes or any(batch.was_changed for batch in passes):  # the script reuses it
            return
        self._spikes += 1
        self._spike_bytes += sum(batch.bytes for batch in passes)
        facts = SpikeBatchFacts(
            first_and_broken([tensor for batch in passes for tensor in facts_of(batch)]),
            self._of_several,
            spike=spike.kind,
            micro_batches=len(passes),
        )
        kept = self._save_tensors(facts, passes, spike.step)
        emit(Finding.at(kept, spike.step, Severity.INFO, remedies=SpikeBatch.remedies))

    def _save_tensors(self, facts: KeptBatch, passes: Sequence[CapturedBatch], step: int) -> KeptBatch:
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
    """Return the module's name in the recording; empty for the loss function."""
    root, origin = batch.root(), replay.origin
    if root is None or origin is None or origin.source == "loss":
        return ""
    model = unwrapped(root)
    name = replay.first_broken if origin.source == "input" else origin.module
    module: Module = dict(Module.named_modules(model, remove_duplicate=False)).get(name, model)
    models = models_of(optimizers) or [root]
    return names_of_modules(models).get(id(module)) or names_of_modules([root])[id(module)]


SPIKES = frozenset({"loss_spike", "gradient_explosion"})


def is_new_spike(event: Finding) -> bool:
    """Whether its batch is saved: not again where a spike has become a warning."""
    return event.kind in SPIKES and event.facts.found_first is None


_Held: TypeAlias = tuple[int, tuple[CapturedBatch, ...]]  # a step that is not judged yet, and its batch


class SpikeBatches:
    """Holds the batch with the highest loss of the steps that wait to be judged."""

    def __init__(self, report: BatchReport, emit: Callable[[Finding], None], guard: Guard) -> None:
        self._report = report
        self._emit = emit
        self.first: Signal | None = None  # first signal of a step, where that is its loss
        self.highest = -math.inf  # losses above this one are held
        self._held: _Held | None = None
        self._found: tuple[_Held, Finding] | None = None  # found by whichever thread judges; reported at the next step
        self.see = guard(PART, self._hold_highest)
        """Runs with a step of a new highest loss, or with another first signal."""

    def judged(self, step: int, events: Sequence[Finding]) -> None:
        held = self._held
        if held is None or step < held[0]:
            return
        if step == held[0]:
            spike = next((event for event in events if is_new_spike(event)), None)
            self._found = None if spike is None else (held, spike)
        self._held, self.highest = None, -math.inf

    def close(self) -> None:
        self._tell()
        self._held, self.highest = None, math.inf

    def _hold_highest(self, step: int, signals: Sequence[Signal], values: Sequence[float]) -> None:
        self._tell()
        at = next((place for place, signal in enumerate(signals) if signal.quantity == "loss"), None)
        if at is None:
            return
        self.first = signals[0] if at == 0 else None
        if not self._report.keeps_spikes:
            self.highest = math.inf
        elif math.isfinite(values[at]) and values[at] > self.highest:
            self._held, self.highest = (step, self._report.inputs_of_step()), values[at]

    def _tell(self) -> None:
        if self._found is not None:
            ((_, passes), spike), self._found = self._found, None
            self._report.keep_spike(spike, self._emit, passes)
