"""The event ``nan_origin``: where the first non-finite value comes from, and what to change.

In: an origin. Out: an event whose place is the module, and whose message is one sentence with the operation, the
user's line and its inputs; remedies, most useful first, by operation where it is known.

Evidence: ``from.SOURCE`` = 1, SOURCE being ``input``, ``weight``, ``buffer``, ``optimizer``, ``forward``,
``backward``, ``loss`` or ``elsewhere``; ``input.least``, ``input.greatest``, ``input.nan``, ``input.inf`` of the
operation's first tensor; ``output.nan``, ``output.inf`` and ``dtype.TYPE`` = 1 of its result; ``operation.NAME`` = 1,
for the loss function each possible one; ``overflow``: 1 where large numbers exceeded the type, 0 where the operation
is undefined for its input.
"""

from __future__ import annotations

from mlflow_stability.recovery.nan_origin.batch_facts import TensorFacts
from mlflow_stability.recovery.nan_origin.nan_trace import NanOrigin
from mlflow_stability.recovery.nan_origin.origin_checks import overflowed
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
_LARGEST = {"float16": "65504", "bfloat16": "3.4e38", "float32": "3.4e38", "float64": "1.8e308"}


def origin_event(step: int, origin: NanOrigin, layer: str) -> Event:
    """The event; `layer` is how the recording calls the module."""
    evidence = {f"from.{origin.source}": 1.0}
    for what, facts in (("input", origin.inputs[0] if origin.inputs else None), ("output", origin.output)):
        if facts is None:
            continue
        evidence[f"{what}.nan"], evidence[f"{what}.inf"] = float(facts.nan), float(facts.inf)
        if facts.least is not None and facts.greatest is not None:
            evidence[f"{what}.least"], evidence[f"{what}.greatest"] = facts.least, facts.greatest
    if origin.source in ("forward", "backward", "loss"):
        evidence |= {f"operation.{name}": 1.0 for name in origin.operation.split(", ") if name}
    if origin.output is not None:
        evidence[f"dtype.{origin.output.dtype}"] = 1.0
        if origin.source in ("forward", "backward"):
            evidence["overflow"] = float(overflowed(origin))
    message = f"Step {step}: {origin_sentence(origin, layer)}"
    return Event(step, KIND, Severity.INFO, message, layer, evidence, remedies_against(origin))


def origin_sentence(origin: NanOrigin, layer: str) -> str:
    """Where the first number that is not finite was born."""
    source = origin.source
    if source == "input":
        return f"the batch itself was non-finite: {_holds(origin)}{_in(origin, layer, ', where it was first used')}."
    if source in ("weight", "buffer"):
        return f"a {source} of {layer} was non-finite: {_holds(origin)}. The optimizer's state does not explain it."
    if source == "optimizer":
        return f"{_optimizer(origin)}: {_holds(origin)}."
    if source == "loss":
        return _loss(origin)
    if source == "backward":
        what = f"the gradient of {origin.operation}" if origin.operation else "the backward pass"
    elif source == "elsewhere":
        what = f"a tensor that {origin.operation} takes from outside the batch and the model"
    else:
        what = origin.operation
    later = f" {origin.nan_by} turned it into NaN." if origin.nan_by else ""
    return f"the first non-finite value comes from {what}{_in(origin, layer)}{_made(origin)}.{later}"


def in_words(facts: TensorFacts) -> str:
    """One tensor in a few words: ``float32 6x8 from -0.3 to 2.1``."""
    shape = "x".join(map(str, facts.shape)) or "scalar"
    words = f"{facts.dtype} {shape}"
    if facts.least is not None and facts.greatest is not None:
        words += f" from {facts.least + 0.0:.4g} to {facts.greatest + 0.0:.4g}"
    if facts.nan + facts.inf:
        words += f" ({_count(facts)})"
    return words


def _in(origin: NanOrigin, layer: str, more: str = "") -> str:
    module = f" in {layer}{more}" if layer else ""
    return f"{module} ({origin.line})" if origin.line else module


def _made(origin: NanOrigin) -> str:
    if not origin.inputs:
        return ""
    given = " and ".join(
        f"{'' if each.name == 'input' else each.name + ', '}{in_words(each)}" for each in origin.inputs
    )
    if origin.output is None:
        return f", from {given}"
    made = f", which produced {_count(origin.output)} from {given}"
    return (
        f"{made}; the largest {origin.output.dtype} is {_LARGEST[origin.output.dtype]}" if overflowed(origin) else made
    )


def _holds(origin: NanOrigin) -> str:
    facts = origin.output
    return origin.name if facts is None else f"{facts.name} is {in_words(facts)}"


def _optimizer(origin: NanOrigin) -> str:
    if origin.name == "update":
        return f"{origin.operation} wrote a non-finite weight, and would again from its present state"
    return f"{origin.operation} wrote a non-finite weight, because its {origin.name} is non-finite"


def _loss(origin: NanOrigin) -> str:
    gave = f", which returned {in_words(origin.inputs[0])}" if origin.inputs else ""
    what = {"loss": "the loss is non-finite", "gradient": "the loss is finite, its gradient is not"}
    said = what.get(origin.name, "the gradient from the loss is non-finite")
    of = f": possible source {origin.operation}" if origin.operation else ""
    return f"the first non-finite value comes from the loss function, not from the model{gave}; {said}{of}."


def _count(facts: TensorFacts) -> str:
    parts = [f"{number} {word}" for number, word in ((facts.nan, "NaN"), (facts.inf, "infinite")) if number]
    return " and ".join(parts)
