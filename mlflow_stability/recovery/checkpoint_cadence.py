"""Says when a checkpoint is due, and lets it prove itself.

In: steps, and whether they were healthy. Out: checkpoints through the writer, marked good or taken back. Promised: one
at a time waits for its proof; while it does, or while it is being written, none is due.
"""

from __future__ import annotations

from mlflow_stability.recovery.checkpoint_writer import CheckpointWriter
from mlflow_stability.recovery.rollback_policy import RollbackPolicy
from mlflow_stability.recovery.state_copy import StateCopy


class CheckpointCadence:
    """The rhythm of the checkpoints of one training."""

    def __init__(self, policy: RollbackPolicy, writer: CheckpointWriter) -> None:
        self._policy = policy
        self._writer = writer
        self._last = 0
        self._waiting: int | None = None

    def is_due(self, step: int) -> bool:
        """Whether a checkpoint should be taken after this step."""
        if self._waiting is not None or self._writer.is_busy:
            return False
        return step - self._last >= self._policy.checkpoint_every

    def take(self, copy: StateCopy, loss: float) -> bool:
        """Have it written; False while the one before is still on its way."""
        if not self._writer.submit(copy, loss):
            return False
        self._last = self._waiting = copy.step
        return True

    def healthy(self, step: int) -> None:
        """Runs after a healthy step."""
        if self._waiting is not None and step - self._waiting >= self._policy.healthy_after:
            self._writer.promote(self._waiting)
            self._waiting = None

    def trouble(self) -> None:
        """Runs after a step that was not healthy: the newest checkpoint may carry what led to it."""
        if self._waiting is not None:
            self._writer.reject(self._waiting)
            self._waiting = None
