"""The inhabitants of the zoo."""

from __future__ import annotations

from zoo import (
    accumulation_bug,
    aggressive_scaler,
    attention_logits,
    bit_flip,
    division_by_zero,
    exploding_rnn,
    gpt_bad_batch,
    gpt_half_overflow,
    gpt_lr1_at_200,
    gpt_lr1_from_0,
    gpt_nan_batch,
    heavy_tailed_reward,
    huge_inputs,
    learning_rate_jump,
    log_of_zero,
    missing_warm_up,
    nan_in_optimizer,
    nan_inputs,
    repeated_data,
    weight_decay,
    wrong_targets,
    zero_variance,
)
from zoo.failure import Failure

ZOO: tuple[Failure, ...] = (
    learning_rate_jump.FAILURE,
    wrong_targets.FAILURE,
    nan_inputs.FAILURE,
    huge_inputs.FAILURE,
    aggressive_scaler.FAILURE,
    bit_flip.FAILURE,
    nan_in_optimizer.FAILURE,
    zero_variance.FAILURE,
    missing_warm_up.FAILURE,
    attention_logits.FAILURE,
    exploding_rnn.FAILURE,
    heavy_tailed_reward.FAILURE,
    repeated_data.FAILURE,
    accumulation_bug.FAILURE,
    weight_decay.FAILURE,
    log_of_zero.FAILURE,
    division_by_zero.FAILURE,
    gpt_bad_batch.FAILURE,
    gpt_nan_batch.FAILURE,
    gpt_half_overflow.FAILURE,
    gpt_lr1_at_200.FAILURE,
    gpt_lr1_from_0.FAILURE,
)


def failure_named(name: str) -> Failure:
    """The one with this name."""
    return next(each for each in ZOO if each.name == name)
