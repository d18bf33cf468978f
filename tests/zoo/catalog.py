"""The inhabitants of the zoo."""

from __future__ import annotations

from zoo import (
    aggressive_scaler,
    division_by_zero,
    exploding_rnn,
    gpt_lr1_at_200,
    heavy_tailed_reward,
    huge_inputs,
    log_of_zero,
    nan_in_optimizer,
    nan_inputs,
    repeated_data,
    wrong_targets,
    zero_variance,
)

from mlflow_stability.demo import failures
from mlflow_stability.demo.training_loop import Failure

ZOO: tuple[Failure, ...] = (
    failures.JUMP,
    wrong_targets.FAILURE,
    nan_inputs.FAILURE,
    huge_inputs.FAILURE,
    aggressive_scaler.FAILURE,
    failures.BIT_FLIP,
    nan_in_optimizer.FAILURE,
    zero_variance.FAILURE,
    failures.NO_WARM_UP,
    failures.ATTENTION_LOGITS,
    exploding_rnn.FAILURE,
    heavy_tailed_reward.FAILURE,
    repeated_data.FAILURE,
    failures.NO_ZERO_GRAD,
    failures.WEIGHT_DECAY,
    log_of_zero.FAILURE,
    division_by_zero.FAILURE,
    failures.BAD_BATCH,
    failures.NAN_BATCH,
    failures.HALF_OVERFLOW,
    gpt_lr1_at_200.FAILURE,
    failures.TOO_HIGH,
)

CANNOT_BE_SAVED = {
    "GPT: lr 1.0 from 0": "There was never a good state; the learning rate has to change.",
    "missing warm-up": "There was never a good state; the schedule has to change.",
    "accumulation bug": "After a rollback gradients accumulate again; the script has to change.",
    "GPT: fp16 overflow": "No step can be taken any more; the loss scale of the script has to change.",
    "repeated data": "Whatever it goes back to, the next batch is the same again; nothing in the loss is wrong.",
}
"""Why no rollback or skip can save a failure without changes to script or data, by its name."""


def failure_named(name: str) -> Failure:
    """The one with this name."""
    return next(entry for entry in ZOO if entry.name == name)
