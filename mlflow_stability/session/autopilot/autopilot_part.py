"""Parts of the autopilot that an error of ours switches off one by one."""

from __future__ import annotations

from enum import Enum


class AutopilotPart(str, Enum):
    """A part; its value is its name in messages."""

    AUTOPILOT = "the autopilot"
    AUTOPILOT_END = "the autopilot's end"
    CHECKPOINTS = "checkpoints"
    CLIPPING_AND_EASING = "clipping and easing"
    DECISIONS = "decisions"
    FORWARD_PASSES = "forward passes"
    GUARD = "the guard"
    LOSS_SCALE = "the loss scale"
    PUTTING_BACK = "putting back"
    RANKS = "agreement of processes"
    ROLLBACK = "rollback"
    SMALLER_STEPS = "smaller steps"
    SNAPSHOTS = "snapshots"
    STOP_CONDITIONS = "stop conditions"
    TRAINING_PARTS = "the training's parts"
    UNDO_ROLLBACK = "undoing a rollback"

    __str__ = str.__str__
