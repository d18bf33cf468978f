"""Says what to change where the first number that is not finite was born.

In: a birth. Out: sentences, most useful first: by the operation where it is known, else by where it happened.
"""

from __future__ import annotations

from mlflow_stability.recovery.nan_birth import Birth
from mlflow_stability.recovery.overflow import overflowed

REMEDIES = {
    "input": ("Look at the saved batch, and at what makes it.",),
    "weight": ("Look at what writes to this weight besides the optimizer, and at the checkpoint it came from.",),
    "buffer": ("Look at what writes to this buffer.",),
    "optimizer": ("Lower the learning rate 2-5 times.", "Give eps a larger value, or reset the optimizer's state."),
    "forward": ("Keep what goes into this operation within its range: clamp it, or add a small number.",),
    "backward": ("Keep what goes into this operation away from where its slope is infinite: add a small number.",),
    "loss": ("Look at the labels, and at logarithms, roots and divisions in the loss function.",),
    "elsewhere": ("Look at the tensor that the script keeps there.",),
}
"""Where no more is known than where it happened."""
_MASK = (
    "Do not mask a whole row: leave each row one place that it may look at.",
    "Mask with torch.finfo(dtype).min instead of -inf, and leave such rows out of the loss.",
)
_LOGARITHM = (
    "Keep what goes into the logarithm above zero: add a small number to it.",
    "Of probabilities take log_softmax or logsigmoid of the scores instead, or a loss function that takes scores.",
)
_ROOT = ("Keep what is under the root above zero: clamp it, or add a small number; at zero its slope is infinite.",)
_DIVISION = ("Keep the divisor away from zero: add a small number to it, or clamp it.",)
_POWER = ("Keep what is raised to a negative or fractional power above zero: clamp it, or add a small number.",)
_ENDS = ("Clamp what goes in to a little less than the range in which this operation is defined.",)
_EXPONENTIAL = ("Subtract the maximum before the exponential, or use softmax or torch.logsumexp, which do so.",)
_TARGETS = ("Leave out batches that have no target to learn from: the mean over none is 0/0.",)
_EPS = ("Give the normalisation an eps above zero.",)
_SPREAD = ("Give it more than one value to take a spread of, and add a small number to the spread.",)
_OF: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("log", "log10", "log2", "xlogy", "binary_cross_entropy"), _LOGARITHM),
    **dict.fromkeys(("sqrt", "norm", "linalg_vector_norm", "cdist", "cdist_forward"), _ROOT),
    **dict.fromkeys(("div", "divide", "true_divide", "addcdiv", "reciprocal", "rsqrt"), _DIVISION),
    **dict.fromkeys(("acos", "acosh", "asin", "atanh", "erfinv", "log1p", "logit", "special_logit"), _ENDS),
    **dict.fromkeys(("exp", "exp2", "expm1", "cosh", "sinh"), _EXPONENTIAL),
    **dict.fromkeys(("nll_loss", "nll_loss2d", "nll_loss_forward", "nll_loss2d_forward", "mean"), _TARGETS),
    **dict.fromkeys(("std", "var", "std_mean", "var_mean"), _SPREAD),
    **dict.fromkeys(("batch_norm", "group_norm", "layer_norm", "rms_norm", "fused_rms_norm"), _EPS),
    "pow": _POWER,
}


def remedies_against(birth: Birth) -> tuple[str, ...]:
    """What to change."""
    names = birth.operation.split(", ") if birth.source in ("forward", "backward", "loss") else []
    if overflowed(birth):
        return _OF[names[0]] if _OF.get(names[0]) == _EXPONENTIAL else _against_overflow(birth)
    if any(map(_normalises, names)) and any(each.inf for each in birth.inputs):
        return _MASK
    found = tuple(dict.fromkeys(said for name in names for said in _OF.get(name, ())))
    return found or REMEDIES[birth.source]


def _against_overflow(birth: Birth) -> tuple[str, ...]:
    dtype = "" if birth.output is None else birth.output.dtype
    smaller = "Normalise or scale down what goes into this operation"
    if dtype != "float16":
        return (f"{smaller}, and look for what let it grow so large.",)
    if birth.source == "backward":
        return ("Lower the loss scale.", "Train in bf16 instead of fp16.")
    return ("Train in bf16 instead of fp16.", f"{smaller}, or compute it in float32.")


def _normalises(name: str) -> bool:
    return "softmax" in name or name.startswith("scaled_dot_product")
