"""Everything this package raises on purpose.

StabilityError
 |- SettingsError         an argument with an invalid value
 |- RunNotFoundError      no such run, or no readable data in it
 |- TrackingError         the tracking server or store did not answer or refused
 |- JournalError          a journal that cannot be read, written or delivered
 |- RestoreRefused        a saved state does not match the model or optimizer; nothing was changed
 |- CheckpointsRefused    a folder of checkpoints belongs to another run or has no usable checkpoint
 |- TrainingDiverged      training stopped: ``stop_on`` was met, or nothing was left to lose
 |- ChangingPartsError    optimizers come and go too fast for rollbacks, which are switched off
 |- TorchLacksError       PyTorch lacks a symbol that is needed; that part is switched off
 `- UnreadableLogError    a file or folder that is not a training log or cannot be read

Nothing here is ever raised into a training loop, unless the user asked for ``strict=True``, ``stop_on`` or rollbacks.
"""

from __future__ import annotations

TORCH_IS_MISSING = (
    "needs PyTorch, which is not installed here. Install the build for this machine "
    "(https://pytorch.org/get-started/locally), then mlflow-stability beside it."
)
"""Behind what needs it."""


class StabilityError(Exception):
    """Base class of all errors; the message is for people."""


class TorchLacksError(StabilityError):
    """PyTorch lacks a symbol that is needed; that part is switched off."""


class ChangingPartsError(StabilityError):
    """Optimizers come and go too fast for rollbacks, which are switched off."""


class SettingsError(StabilityError, ValueError):
    """An argument has an invalid value."""


class RunNotFoundError(StabilityError, LookupError):
    """The run does not exist or has no readable data."""


class TrackingError(StabilityError):
    """The tracking server or store did not answer or refused."""


class JournalError(StabilityError):
    """A journal cannot be read, written or delivered."""


class RestoreRefused(StabilityError):  # noqa: N818 - a refusal is no malfunction
    """A saved state does not match the model or optimizer; nothing was changed."""


class CheckpointsRefused(StabilityError):  # noqa: N818
    """A folder of checkpoints belongs to another run or has no usable checkpoint."""


class UnreadableLogError(StabilityError):
    """A file or folder is not a training log or cannot be read."""


class TrainingDiverged(StabilityError):  # noqa: N818 - what happened to the training, not an error of ours
    """Training stopped on purpose: a condition of ``stop_on`` was met, or nothing was left to lose.

    Example:

        >>> try:
        ...     raise TrainingDiverged("Training stopped at step 7: loss is 60 (stop_on=loss>50).", "loss is 60")
        ... except TrainingDiverged as error:
        ...     print(error.reason)
        loss is 60
    """

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason or message  # why, without advice: ``loss is 60 (stop_on=loss>50)``
