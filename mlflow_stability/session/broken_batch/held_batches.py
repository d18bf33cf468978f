"""Decides who holds the batches of a recording, and what happens where no guard skips what is broken.

In: settings, a recording. Out: its batch report, and who looks at a broken step that is taken all the same. Guarantees:
without the guard only the first broken step is looked at, for after it the weights are broken; and only on the host,
where the norm of the gradients is known before the step. On an accelerator nobody waits for it, and nothing is held.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch.optim import Optimizer

from mlflow_stability.probes.probe_scheduler import BrokenSteps
from mlflow_stability.session.broken_batch.batch_report import BatchReport
from mlflow_stability.session.broken_batch.spike_batches import SpikeBatches
from mlflow_stability.session.guard import PartGuard
from mlflow_stability.session.ranks import rank_and_world_size
from mlflow_stability.session.recording import Recording
from mlflow_stability.vocabulary.settings import BATCHES_FOLDER, Settings


def report_of(settings: Settings, guard: PartGuard, recording: Recording, host_only: bool = False) -> BatchReport:
    """The report of a recording, which is known to it from now on.

    Of several processes the first one's batches are looked at: only that one has a recording.
    """
    folder = settings.journal_root() / BATCHES_FOLDER / recording.opening.recording

    def sent() -> None:
        recording.note(BATCHES_FOLDER, str(folder))

    announce: Callable[[], None] | None = sent if settings.capture_batch == "upload" else None
    of_several = rank_and_world_size()[1] > 1
    recording.batches = BatchReport(guard, folder, of_several, announce, host_only=host_only)
    return recording.batches


def held_batches(
    settings: Settings, guard: PartGuard, recording: Recording
) -> tuple[BatchReport | None, BrokenSteps | None]:
    """Who holds the batches; and who looks at broken steps, where that is not the autopilot."""
    if recording.batches is not None:
        return recording.batches, None
    if not settings.capture_batch or rank_and_world_size()[1] > 1:
        return None, None
    report = report_of(settings, guard, recording, host_only=True)
    recording.spikes = SpikeBatches(report, recording.emit, guard)
    return report, FirstBrokenStep(report, recording)


class FirstBrokenStep:
    """Looks at the first broken step that is taken."""

    def __init__(self, report: BatchReport, recording: Recording) -> None:
        self._report = report
        self._recording = recording
        self._is_over = False

    def inspect_step(self, _step: int, optimizers: Sequence[Optimizer]) -> None:
        """Runs before a step whose gradient norm is known not to be finite."""
        if not self._is_over:
            self._report.inspect_step(self._report.batch_number, optimizers)

    def taken(self, step: int) -> None:
        """Runs once that step was taken all the same: what comes after it tells nothing more."""
        if not self._is_over:
            self._is_over = True
            self._report.report(step, self._recording.emit)
            self._report.stop()
