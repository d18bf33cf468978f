"""What actions are about, and what a run must have for them."""

from __future__ import annotations

from enum import Enum


class Topic(Enum):
    """What an action changes or looks at. Of several remedies about one topic a report has one."""

    LOWER_RATE = "lower learning rate"
    RAISE_RATE = "higher learning rate"
    WARM_UP = "warm-up"
    NEW_RATE = "warm-up to a new learning rate"
    SCHEDULE = "schedule"
    CLIP_GRADIENTS = "gradient clipping"
    CLIP_UPDATES = "update clipping"
    BETA2 = "beta2"
    GO_BACK = "earlier state"
    INSPECT_BATCH = "batch"
    SAVED_BATCH = "saved batch"
    HALF_PRECISION = "half precision"
    LOSS_SCALE = "loss scale"
    VALID_RANGE = "valid range of an operation"
    INITIALISATION = "initialisation"
    BLOCKS = "normalisation and residual connections"
    FROZEN_PARAMETERS = "frozen parameters"
    QUERY_KEY_NORM = "query-key norm"
    QUERY_KEY_CLIP = "query-key clipping"
    TEMPERATURE = "temperature"
    REGULARISATION = "regularisation"
    LARGER_BATCHES = "larger batches"
    ACTIVATION_CHECKPOINTING = "activation checkpointing"
    DATA_LOADER = "data loader"
    DEVICE_CLOCK = "device clock"
    KERNEL_LOG = "kernel log"
    FIX_CAUSE = "cause of a rollback"

    @property
    def contradicts(self) -> frozenset[Topic]:
        """The topics whose actions do the opposite."""
        if self is Topic.RAISE_RATE:
            return RATE_TOPICS | {Topic.NEW_RATE}
        return frozenset({Topic.RAISE_RATE}) if self in Topic.RAISE_RATE.contradicts else frozenset()


RATE_TOPICS = frozenset({Topic.LOWER_RATE, Topic.WARM_UP})  # what helps only where the learning rate is the cause
SMALLER_UPDATE_TOPICS = RATE_TOPICS | {Topic.CLIP_GRADIENTS}
"""What helps only where the size of the optimizer steps is the cause."""


class Need(Enum):
    """What a run must have for an action to make sense."""

    CHECKPOINT = "checkpoint"
    FP16 = "fp16"
    TEMPERATURE = "temperature"
