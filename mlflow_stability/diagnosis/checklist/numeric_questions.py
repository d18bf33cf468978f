"""Questions about numbers: where a NaN came from, number formats, the optimizer's arithmetic."""

from __future__ import annotations

from mlflow_stability.diagnosis.checklist.answers import by_hand, change, found, reported, setting
from mlflow_stability.diagnosis.checklist.check_findings import inputs, locate, numerics, overflow
from mlflow_stability.diagnosis.checklist.question import Question

HALF = "precision|mixed_precision|autocast|amp|dtype|torch_dtype|parameter_types|fp16|bf16|autocast_type"


QUESTIONS: dict[str, Question] = {
    "locate": Question(
        "Where did the first non-finite value appear?",
        "Test every output with torch.isfinite in forward hooks; torch.autograd.set_detect_anomaly(True).",
        locate,
    ),
    "inputs": Question(
        "Are the inputs of that step finite and in range?",
        "Test inputs and targets with torch.isfinite; look for empty targets, divisions by zero, logarithms of zero.",
        inputs,
    ),
    "overflow": Question(
        "Did numbers overflow before they became NaN?",
        "Look for an infinity before the first NaN; try bf16 or fp32; bound exponentials and divisions.",
        overflow,
    ),
    "numerics": Question(
        "Are all values finite, and is the loss scale steady?",
        "Train some steps in fp32; log the loss scale; use bf16 where the device has it.",
        numerics,
    ),
    "activations_finite": Question(
        "Are all activations finite?",
        "Register a forward hook on every module that prints the first name whose output is not finite.",
        found("activation_nonfinite"),
    ),
    "activations_large": Question(
        "Did activations grow before it?",
        "Print output.abs().max() of each block at the last good step; fp16 ends at 65504, bf16 and fp32 at 3e38.",
        change("activation_max", "largest activation", rise=10.0),
    ),
    "loss_function": Question(
        "Is every part of the loss defined for its inputs?",
        "Evaluate each term of the loss alone on the saved batch; look for log(0), sqrt(0), 0/0 and all-masked means.",
        reported("origin of a non-finite value", "nan_origin"),
    ),
    "skipped": Question(
        "Were steps skipped before it?",
        "Compare the scaler's scale before and after each step; a lower scale means that the step was skipped.",
        found("step_skipped"),
    ),
    "loss_scale": Question(
        "Did the loss scale fall?",
        "Print scaler.get_scale() every 100 steps; below 1 even gradients of usual size overflow.",
        found("loss_scale_collapse"),
    ),
    "precision": Question(
        "In which number format does it compute?",
        "Train 200 steps before the trouble in fp32 with the same batches; if it passes, the format is the cause.",
        setting(HALF, "the number format"),
    ),
    "eps": Question(
        "Is the optimizer's eps large enough for its number format?",
        "In fp16 an eps below 6e-8 is zero; raise it to 1e-6, or keep the optimizer's state in fp32.",
        setting("eps", "eps"),
    ),
    "beta2": Question(
        "Does Adam's second moment follow the gradient fast enough?",
        "Train from the last checkpoint with beta2 = 0.95; if the spike is gone, beta2 was too high.",
        setting("betas|beta2|adam_beta2", "beta2"),
    ),
    "adam_rms": Question(
        "Did the gradient outrun Adam's second moment?",
        "Log sqrt(mean(grad^2 / max(v, eps^2))) by layer; above 2 the step is larger than the learning rate means.",
        found("adam_rms_high"),
    ),
    "optimizer_state": Question(
        "Is the optimizer's state finite?",
        "Test every tensor of optimizer.state_dict() with torch.isfinite; reset the state of those that are not.",
        change("momentum_norm", "norm of the momentum", rise=10.0),
    ),
    "anomaly": Question(
        "Does the same batch fail again from the last good state?",
        "Restore the last good checkpoint, run the saved batch twice; a different result points to the device.",
        by_hand,
    ),
    "skipped_rounding": Question(
        "Are updates large enough for the number format of the weights?",
        "In bf16 an update below 0.4 % of a weight changes nothing: keep a copy of the weights in fp32.",
        found("update_ratio_low"),
    ),
}
"""By key."""
