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


def failure_named(name: str) -> Failure:
    """The one with this name."""
    return next(each for each in ZOO if each.name == name)
