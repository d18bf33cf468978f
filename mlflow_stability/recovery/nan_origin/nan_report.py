"""The event ``nan_origin``: where the first non-finite value comes from, and what to change.

In: an origin. Out: an event whose place is the module, and whose message is one sentence with the operation, the
user's line and its inputs; remedies, most useful first, by operation where it is known.
"""

from __future__ import annotations

from mlflow_stability.kinds.reported.nan_origin import NanOriginFacts, NanSource
from mlflow_stability.recovery.nan_origin.nan_trace import NanOrigin
from mlflow_stability.recovery.nan_origin.origin_checks import overflowed
from mlflow_stability.vocabulary.result import LOWER_RATE_2_TO_5, Action, Finding, Remedy, Severity

REMEDIES = {
    "input": (Remedy(Action.INSPECT_SAVED_BATCH),),
    "weight": (Remedy(Action.CHECK_WRITER_OF_WEIGHT),),
    "buffer": (Remedy(Action.CHECK_WRITER_OF_BUFFER),),
    "optimizer": (LOWER_RATE_2_TO_5, Remedy(Action.RAISE_EPS_OR_RESET_OPTIMIZER)),
    "forward": (Remedy(Action.KEEP_INPUTS_VALID),),
    "backward": (Remedy(Action.KEEP_INPUTS_FROM_SLOPE),),
    "loss": (Remedy(Action.CHECK_LOSS_FUNCTION),),
    "elsewhere": (Remedy(Action.CHECK_TENSOR_OF_SCRIPT),),
}
"""Where no more is known than where it happened."""
_MASK = (
    Remedy(Action.KEEP_ONE_KEY),
    Remedy(Action.MASK_WITH_FINITE_VALUE),
)
_LOGARITHM = (
    Remedy(Action.KEEP_LOGARITHM_ABOVE_ZERO),
    Remedy(Action.USE_LOG_SOFTMAX),
)
_ROOT = (Remedy(Action.KEEP_ROOT_ABOVE_ZERO),)
_DIVISION = (Remedy(Action.KEEP_DIVISOR_FROM_ZERO),)
_POWER = (Remedy(Action.KEEP_BASE_ABOVE_ZERO),)
_ENDS = (Remedy(Action.CLAMP_BELOW_RANGE),)
_EXPONENTIAL = (Remedy(Action.SUBTRACT_MAXIMUM),)
_TARGETS = (Remedy(Action.SKIP_EMPTY_BATCHES),)
_EPS = (Remedy(Action.RAISE_EPS_OF_NORM),)
_SPREAD = (Remedy(Action.COMPUTE_SPREAD_OF_SEVERAL),)
_OF: dict[str, tuple[Remedy, ...]] = {
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


def remedies_against(origin: NanOrigin) -> tuple[Remedy, ...]:
    """What to change."""
    if origin.source == "loss" and origin.name == "hook":
        return (Remedy(Action.CHECK_HOOK_OF_OUTPUT), Remedy(Action.LOWER_LOSS_SCALE), *REMEDIES["loss"])
    names = origin.operation.split(", ") if origin.source in ("forward", "backward", "loss") else []
    if overflowed(origin):
        return _OF[names[0]] if _OF.get(names[0]) == _EXPONENTIAL else _against_overflow(origin)
    if any(map(_normalises, names)) and any(each.inf for each in origin.inputs):
        return _MASK
    found = tuple(dict.fromkeys(said for name in names for said in _OF.get(name, ())))
    return found or REMEDIES[origin.source]


def _against_overflow(origin: NanOrigin) -> tuple[Remedy, ...]:
    dtype = "" if origin.output is None else origin.output.dtype
    if dtype != "float16":
        return (Remedy(Action.SCALE_DOWN_AND_FIND_SOURCE),)
    if origin.source == "backward":
        return (Remedy(Action.LOWER_LOSS_SCALE), Remedy(Action.TRAIN_IN_BF16))
    return (Remedy(Action.TRAIN_IN_BF16), Remedy(Action.SCALE_DOWN_OR_FLOAT32))


def _normalises(name: str) -> bool:
    return "softmax" in name or name.startswith("scaled_dot_product")


KIND = "nan_origin"


def origin_event(step: int, origin: NanOrigin, layer: str) -> Finding:
    """The event; `layer` is how the recording calls the module."""
    return Finding.at(origin_facts(origin, layer), step, Severity.INFO, place=layer, remedies=remedies_against(origin))


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
