"""The checklist of each type of finding: its questions in the order to ask them, and how to decide at the end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mlflow_stability.diagnosis.checklist import (
    layer_questions,
    numeric_questions,
    resource_questions,
    training_questions,
)
from mlflow_stability.diagnosis.checklist.decision import Branch, always, bad, caused_by, recovered
from mlflow_stability.diagnosis.checklist.question import Case, Question, State

QUESTIONS: dict[str, Question] = {
    **training_questions.QUESTIONS,
    **numeric_questions.QUESTIONS,
    **layer_questions.QUESTIONS,
    **resource_questions.QUESTIONS,
}
"""All questions, by key."""


@dataclass(frozen=True, slots=True)
class Order:
    """One checklist."""

    keys: tuple[str, ...]
    branches: tuple[Branch, ...]


def _keys(words: str) -> tuple[str, ...]:
    return tuple(words.split())


def _loss_normal(case: Case, _states: Mapping[str, State]) -> bool:
    rises = ("loss_spike", "divergence", "nan_detected", "inf_detected")
    return not any(each.kind in rises and each.start >= case.around.episode.start for each in case.diagnosis.episodes)


TOO_FAST = caused_by(
    "learning_rate_too_high",
    "learning_rate_jump",
    "gradient_explosion",
    "optimizer_lag",
    "attention_logit_growth",
    "attention_collapse",
    "router_logit_growth",
    "dead_units",
    "saturated_activation",
)
PASSED = Branch(
    "the run recovered by itself",
    "Continue. If it recurs, leave out the batch of {step}, and lower the learning rate {lower}.",
    recovered,
)
ONE_BATCH = Branch(
    "one batch is the cause",
    "Skip: leave out the batch of {step}, repair the data, and continue from {checkpoint}.",
    caused_by("bad_batch", "tensor_from_outside"),
)
DAMAGED = Branch(
    "weights, optimizer state or the device are damaged",
    "Roll back: restart from {checkpoint} with the same learning rate; test the device if it happens again.",
    caused_by("damaged_weights", "optimizer_state", "hardware"),
)
CHANGED = Branch(
    "a setting changed just before",
    "Roll back: undo the change, and restart from {checkpoint}.",
    caused_by("configuration_changed", "frozen_parameters", "gradients_not_cleared", "repeated_data", "weight_decay"),
)
NO_WARM_UP = Branch(
    "the learning rate was not warmed up",
    "Restart from step 0 with a warm-up over 1-5 % of the steps and the same peak rate.",
    caused_by("no_warm_up"),
)
SLOWER = Branch(
    "steps were too large",
    "Lower the rate: restart from {checkpoint} with the learning rate lowered {lower}.",
    TOO_FAST,
)
OTHERWISE = Branch(
    "no cause was found",
    "Roll back: restart from {checkpoint} and leave out the batches around {step}. If it happens again, lower the "
    "learning rate {lower}.",
    always,
)

NON_FINITE = Order(
    _keys(
        "locate inputs overflow loss_function activations_finite activations_large learning_rate rate_jump "
        "gradients clipping numerics loss_scale skipped precision eps optimizer_state weights logit_size "
        "configuration anomaly"
    ),
    (
        ONE_BATCH,
        Branch(
            "an operation or the loss is undefined for its inputs",
            "Fix the operation, then restart from {checkpoint} with the same learning rate.",
            caused_by("loss_function", "invalid_operation"),
        ),
        Branch(
            "numbers overflowed in half precision",
            "Change the format: restart from {checkpoint} in bf16, or with a loss scale of 1024.",
            caused_by("overflow", "fp16_scale", "gradient_non_finite"),
        ),
        DAMAGED,
        CHANGED,
        NO_WARM_UP,
        SLOWER,
        OTHERWISE,
    ),
)
SPIKE = Order(
    (
        "data",
        "batch",
        "recurs",
        "gradients",
        "layer_explosion",
        "clipping",
        "learning_rate",
        "rate_jump",
        "update_ratio",
        "adam_rms",
        "beta2",
        "weights",
        "logits",
        "activations_large",
        "numerics",
        "precision",
        "batch_size",
        "configuration",
        "rollbacks",
    ),
    (PASSED, ONE_BATCH, DAMAGED, CHANGED, NO_WARM_UP, SLOWER, OTHERWISE),
)
DIVERGENCE = Order(
    (
        "learning_rate",
        "rate_jump",
        "warm_up",
        "gradients",
        "layer_explosion",
        "clipping",
        "zero_grad",
        "update_ratio",
        "adam_rms",
        "beta2",
        "weights",
        "weight_decay",
        "logits",
        "data",
        "repeated",
        "batch_size",
        "numerics",
        "precision",
        "configuration",
        "rollbacks",
        "seed",
    ),
    (ONE_BATCH, DAMAGED, CHANGED, NO_WARM_UP, SLOWER, PASSED, OTHERWISE),
)
EXPLODING = Order(
    _keys(
        "gradients explosion layer_explosion flow clipping zero_grad learning_rate rate_jump warm_up data batch "
        "update_ratio weights initialisation activations_large logits reduction residual numerics precision"
    ),
    (
        ONE_BATCH,
        DAMAGED,
        CHANGED,
        NO_WARM_UP,
        SLOWER,
        PASSED,
        Branch(
            "gradients are not clipped",
            "Clip gradients at 1.0, and restart from {checkpoint} with the same learning rate.",
            bad("clipping"),
        ),
        OTHERWISE,
    ),
)
VANISHING = Order(
    _keys(
        "gradients vanished flow imbalance dead_layer dead_units saturated activation_scale initialisation "
        "residual activation_function depth learning_rate rate_left tiny_updates weight_decay model_check labels "
        "numerics precision"
    ),
    (
        CHANGED,
        Branch(
            "units died or saturated at a high rate",
            "Lower the rate: restart from {checkpoint} with the learning rate lowered {lower}.",
            lambda case, states: TOO_FAST(case, states) or bad("dead_units", "saturated", "rate_jump")(case, states),
        ),
        Branch(
            "the learning rate is too low",
            "Raise the learning rate {higher}, and continue.",
            caused_by("learning_rate_too_low"),
        ),
        Branch("the gradient returned by itself", "Continue: the gradient returned.", recovered),
        Branch(
            "the gradient does not reach the first layers",
            "Stop: restart from step 0 with residual connections, normalisation, or another initialisation.",
            always,
        ),
    ),
)
PLATEAU = Order(
    _keys(
        "labels overfit_batch data repeated shuffling learning_rate rate_left warm_up noise gradients flow "
        "dead_layer dead_units saturated tiny_updates model_check collapse weight_decay batch_size "
        "skipped_rounding"
    ),
    (
        CHANGED,
        Branch(
            "the loss never left chance level",
            "Stop: check labels, inputs and frozen parameters, then restart from step 0.",
            caused_by("guessing", "constant_output"),
        ),
        Branch(
            "the learning rate is too low, or its schedule ended",
            "Raise the learning rate {higher}, and continue from the newest checkpoint.",
            lambda case, states: (
                caused_by("learning_rate_too_low")(case, states) or bad("rate_left", "tiny_updates")(case, states)
            ),
        ),
        Branch(
            "units died, saturated or collapsed",
            "Lower the rate: restart from {checkpoint} with the learning rate lowered {lower}.",
            lambda case, states: (
                TOO_FAST(case, states) or bad("dead_units", "saturated", "collapse", "noise")(case, states)
            ),
        ),
        Branch(
            "no cause was found",
            "Lower the learning rate {lower} for 500 steps. If the loss does not fall, stop: capacity or data are "
            "exhausted.",
            always,
        ),
    ),
)
OVERFITTING = Order(
    _keys(
        "validation gap epochs data repeated shuffling leak eval_mode augmentation dropout weight_decay model_size "
        "learning_rate batch_size seed"
    ),
    (
        Branch("the validation loss fell again", "Continue: the validation loss returned to its best.", recovered),
        Branch(
            "the validation loss rises while the training loss falls",
            "Stop: keep {best}. To go on, restart from it with more data, augmentation or weight decay.",
            always,
        ),
    ),
)
SLOW = Order(
    _keys(
        "step_time throughput data_time forward_time backward_time optimizer_time overhead mfu batch_size "
        "precision matmul compiled threads devices memory_share synchronisation io heat"
    ),
    (
        Branch(
            "the training waits for data",
            "Restart from the newest checkpoint with more data workers; the learning rate stays.",
            bad("data_time"),
        ),
        Branch(
            "memory is nearly full",
            "Restart from the newest checkpoint with half the micro-batch and twice the accumulation.",
            bad("memory_share"),
        ),
        Branch("it passed", "Continue: the pace returned.", recovered),
        Branch(
            "the device computes more slowly",
            "Continue if the time left is acceptable; else restart from the newest checkpoint on another device.",
            always,
        ),
    ),
)
MEMORY = Order(
    _keys(
        "memory memory_share host_memory end batch_size lengths accumulation precision checkpointing "
        "optimizer_memory graph no_grad fragmentation threads devices compiled"
    ),
    (
        Branch(
            "memory grew from step to step",
            "Fix what keeps tensors, then restart from the newest checkpoint with the same settings.",
            bad("memory", "host_memory"),
        ),
        Branch(
            "memory was full from the start",
            "Restart from the newest checkpoint with half the micro-batch and twice the accumulation.",
            always,
        ),
    ),
)
CODES = Order(
    _keys(
        "codes code_diversity unique_ratio code_inputs repeated active_bits bit_usage duty temperature code_loss "
        "code_width rank collapse learning_rate rate_jump gradients dead_layer weights"
    ),
    (
        Branch(
            "the inputs of the encoder are alike",
            "Fix the data, then restart from {checkpoint} with the same learning rate.",
            bad("code_inputs", "repeated"),
        ),
        SLOWER,
        Branch(
            "the temperature is too low",
            "Raise the temperature by a factor of 2 to 3, and restart from {checkpoint}.",
            bad("temperature"),
        ),
        Branch("the codes spread again", "Continue: the codes differ again.", recovered),
        Branch(
            "codes collapsed without another cause",
            "Roll back: restart from {checkpoint} with a loss that separates codes and the learning rate lowered "
            "{lower}.",
            always,
        ),
    ),
)
ATTENTION = Order(
    _keys(
        "attention entropy logits logit_size qk_scale mask positions learning_rate rate_jump warm_up gradients "
        "clipping layer_explosion weight_growth weight_decay update_ratio collapse precision"
    ),
    (
        NO_WARM_UP,
        CHANGED,
        Branch("the attention spread again", "Continue: the attention spread again.", recovered),
        Branch(
            "attention logits grew",
            "Roll back: restart from {checkpoint} with normalised queries and keys and the learning rate lowered "
            "{lower}.",
            bad("logits", "logit_size"),
        ),
        Branch(
            "the loss still falls",
            "Continue for now; if the loss stops falling, restart from {checkpoint} with the learning rate lowered "
            "{lower}.",
            always,
        ),
    ),
)
EXPERTS = Order(
    _keys(
        "router experts load router_logits dropped balance capacity learning_rate rate_jump warm_up gradients clipping "
        "dead_layer update_ratio weights data batch_size precision"
    ),
    (
        CHANGED,
        NO_WARM_UP,
        Branch("the load evened out again", "Continue: the load evened out again.", recovered),
        Branch(
            "router logits grew",
            "Roll back: restart from {checkpoint} with a router z-loss and the learning rate lowered {lower}.",
            bad("router_logits"),
        ),
        Branch(
            "experts are not used",
            "Restart from {checkpoint} with a load-balancing loss of 0.01 to 0.1, or ten times the one there is.",
            always,
        ),
    ),
)
HALF_PRECISION = Order(
    _keys(
        "numerics loss_scale skipped overflow activations_finite activations_large gradients clipping "
        "learning_rate precision eps loss_function"
    ),
    (
        Branch("the scale grew again", "Continue: the loss scale grew again.", recovered),
        Branch(
            "the loss scale stays low",
            "Change the format: restart from {checkpoint} in bf16, or with a loss scale of 1024.",
            always,
        ),
    ),
)
ENDED = Order(
    _keys("end memory host_memory numerics stalls io"),
    (
        Branch(
            "the process ended before its time",
            "Restart from the newest checkpoint once the reason of the end is fixed.",
            always,
        ),
    ),
)
RATE = Order(
    _keys("learning_rate rate_jump warm_up configuration gradients update_ratio"),
    (
        Branch("the loss was normal after it", "Continue if the new rate is intended.", _loss_normal),
        Branch(
            "the loss rose after it",
            "Lower the rate: restart from {checkpoint} with the schedule corrected.",
            always,
        ),
    ),
)
GENERAL = Order(("data", "gradients", "learning_rate", "numerics"), (PASSED, ONE_BATCH, SLOWER, OTHERWISE))
"""For what has no checklist of its own: the order in which experienced people look."""

ORDERS: dict[str, Order] = {
    "nan_detected": NON_FINITE,
    "inf_detected": NON_FINITE,
    "activation_nonfinite": NON_FINITE,
    "loss_spike": SPIKE,
    "divergence": DIVERGENCE,
    "gradient_explosion": EXPLODING,
    "layer_explosion": EXPLODING,
    "gradient_vanishing": VANISHING,
    "dead_layer": VANISHING,
    "gradient_imbalance": VANISHING,
    "plateau": PLATEAU,
    "slow_progress": PLATEAU,
    "overfitting": OVERFITTING,
    "step_time_increase": SLOW,
    "throughput_drop": SLOW,
    "low_mfu": SLOW,
    "memory_pressure": MEMORY,
    "out_of_memory": MEMORY,
    "sdr_collapse": CODES,
    "sdr_low_diversity": CODES,
    "sdr_bit_usage": CODES,
    "sdr_temperature": CODES,
    "attention_collapse": ATTENTION,
    "attention_logit_growth": ATTENTION,
    "router_collapse": EXPERTS,
    "dead_expert": EXPERTS,
    "loss_scale_collapse": HALF_PRECISION,
    "step_skipped": HALF_PRECISION,
    "learning_rate_jump": RATE,
    "crashed": ENDED,
    "killed": ENDED,
    "stall": ENDED,
}
"""For each type of finding its checklist."""
