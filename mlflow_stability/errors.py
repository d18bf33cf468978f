"""Everything this package raises on purpose.

StabilityError
 |- SettingsError         an argument that cannot be meant
 |- RunNotFoundError      no such run, or nothing of ours in it
 |- TrackingError         the tracking server or store could not be reached or refused
 |- JournalError          a journal that cannot be read, written or delivered
 |- RestoreRefused        a saved state does not fit the training it should be put into; nothing was changed
 |- CheckpointsRefused    a folder of checkpoints belongs to another run, or holds nothing that can be used
 |- TrainingDiverged      a training ends here: ``stop_on``, or rollbacks that did not help
 |- TorchLacksError       this torch has not what a part of us needs; that part is off
 `- UnreadableLogError    a file or folder that is no training log, or one that cannot be read

Nothing here is ever raised into a training loop, unless the user asked for ``strict=True``, ``stop_on`` or rollbacks.
"""

from __future__ import annotations

TORCH_IS_MISSING = (
    "needs PyTorch, which is not installed here. Install the build for this machine "
    "(https://pytorch.org/get-started/locally), then mlflow-stability beside it."
)
"""Behind what needs it."""


class StabilityError(Exception):
    """Something that mlflow-stability has to say in one sentence."""


class TorchLacksError(StabilityError):
    """This torch has not what a part of us needs: that part is off."""


class SettingsError(StabilityError, ValueError):
    """An argument is outside of what it can mean."""


class RunNotFoundError(StabilityError, LookupError):
    """There is no such run, or nothing in it that could be read."""


class TrackingError(StabilityError):
    """The tracking server or store is away, or refused."""


class JournalError(StabilityError):
    """A journal cannot be read, written or delivered."""


class RestoreRefused(StabilityError):  # noqa: N818 - a refusal is no malfunction
    """A saved state does not fit the training it should be put into; nothing was changed."""


class CheckpointsRefused(StabilityError):  # noqa: N818
    """A folder of checkpoints belongs to another run, or holds nothing that can be used."""


class UnreadableLogError(StabilityError):
    """A file or folder is no training log, or one that cannot be read."""


class TrainingDiverged(StabilityError):  # noqa: N818 - what happened to the training, not an error of ours
    """A training was ended because it diverged, by ``stop_on`` or because rollbacks did not help."""
