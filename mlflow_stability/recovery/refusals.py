"""What recovery refuses to do, each with a sentence that names the reason.

RestoreRefused       a saved state does not fit the training it should be put into; nothing was changed
CheckpointsRefused   a folder of checkpoints belongs to another run, or holds nothing that can be used
"""

from __future__ import annotations

from mlflow_stability.errors import StabilityError


class RestoreRefused(StabilityError):  # noqa: N818 - a refusal is no malfunction
    """A saved state does not fit the training it should be put into; nothing was changed."""


class CheckpointsRefused(StabilityError):  # noqa: N818
    """A folder of checkpoints belongs to another run, or holds nothing that can be used."""
