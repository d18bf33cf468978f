"""The event ``nan_origin``: where the first non-finite value comes from, and what to change.

In: an origin. Out: an event whose place is the module, and whose message is one sentence with the operation, the
user's line and its inputs; remedies, most useful first, by operation where it is known.
"""

from __future__ import annotations

from mlflow_stability.recovery.nan_origin.nan_trace import NanOrigin
from mlflow_stability.recovery.nan_origin.origin_checks import overflowed
from mlflow_stability.vocabulary.facts import NanOriginFacts, NanSource
from mlflow_stability.vocabulary.result import Event, Severity

REMEDIES = {
    "input": ("Inspect the saved batch and the code that makes it.",),
    "weight": ("Check what else writes to this weight, and the checkpoint it was loaded from.",),
    "buffer": ("Check what writes to this buffer.",),
    "optimizer": ("Lower the learning rate by a factor of 2 to 5.", "Raise eps, or reset the optimizer's state."),
    "forward": ("Keep the inputs of this operation in its valid range: clamp them, or add a small constant.",),
    "backward": ("Keep the inputs of this operation away from points of infinite slope: add a small constant.",),
    "loss": ("Check the labels, and logarithms, roots and divisions in the loss function.",),
    "elsewhere": ("Check the tensor that the script keeps there.",),
}
"""Where no more is known than where it happened."""
_MASK = (
    "Do not mask a whole row: leave each query at least one key.",
    "Mask with torch.finfo(dtype).min instead of -inf, and leave fully masked rows out of the loss.",
)
_LOGARITHM = (
    "Keep the input of the logarithm above zero: add a small constant.",
    "Use log_softmax or logsigmoid of the logits, or a loss function that takes logits.",
)
_ROOT = (("Keep the input of the root above zero: clamp it, or add a small constant; its slope at zero is infinite."),)
_DIVISION = ("Keep the divisor away from zero: add a small constant, or clamp it.",)
_POWER = ("Keep the base of a negative or fractional power above zero: clamp it, or add a small constant.",)
_ENDS = ("Clamp the input to slightly less than the range in which this operation is defined.",)
_EXPONENTIAL = ("Subtract the maximum before the exponential, or use softmax or torch.logsumexp.",)
_TARGETS = ("Skip batches without targets: the mean over none is 0/0.",)
_EPS = ("Set eps of the normalisation above zero.",)
_SPREAD = ("Compute the spread over more than one value, and add a small constant to it.",)
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


def remedies_against(origin: NanOrigin) -> tuple[str, ...]:
    """What to change."""
    names = origin.operation.split(", ") if origin.source in ("forward", "backward", "loss") else []
    if overflowed(origin):
        return _OF[names[0]] if _OF.get(names[0]) == _EXPONENTIAL else _against_overflow(origin)
    if any(map(_normalises, names)) and any(each.inf for each in origin.inputs):
        return _MASK
    found = tuple(dict.fromkeys(said for name in names for said in _OF.get(name, ())))
    return found or REMEDIES[origin.source]


def _against_overflow(origin: NanOrigin) -> tuple[str, ...]:
    dtype = "" if origin.output is None else origin.output.dtype
    smaller = "Normalise or scale down the inputs of this operation"
    if dtype != "float16":
        return (f"{smaller}, and find what made them so large.",)
    if origin.source == "backward":
        return ("Lower the loss scale.", "Train in bf16 instead of fp16.")
    return ("Train in bf16 instead of fp16.", f"{smaller}, or compute it in float32.")


def _normalises(name: str) -> bool:
    return "softmax" in name or name.startswith("scaled_dot_product")


KIND = "nan_origin"


def origin_event(step: int, origin: NanOrigin, layer: str) -> Event:
    """The event; `layer` is how the recording calls the module."""
    return Event.of(origin_facts(origin, layer), step, Severity.INFO, place=layer, remedies=remedies_against(origin))


def origin_facts(origin: NanOrigin, layer: str) -> NanOriginFacts:
    """What is recorded of an origin."""
    traced = origin.source in ("forward", "backward") and origin.output is not None
    return NanOriginFacts(
        NanSource(origin.source),
        layer,
        tuple(name for name in origin.operation.split(", ") if name),
        origin.line,
        origin.name,
        origin.inputs,
        origin.output,
        origin.nan_by,
        overflowed(origin) if traced else None,
    )
