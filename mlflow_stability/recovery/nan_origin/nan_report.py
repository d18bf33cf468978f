"""Says in words and numbers where the first number that is not finite was born.

In: a origin. Out: the event ``nan_origin``: its place is the module, its message the operation with the user's own line
and what went into it. Promised: one sentence that stands for itself.

Its evidence holds ``from.SOURCE`` = 1, SOURCE being ``input``, ``weight``, ``buffer``, ``optimizer``, ``forward``,
``backward``, ``loss`` or ``elsewhere``; the range of the first tensor that went into the operation as ``input.least``,
``input.greatest``, ``input.nan``, ``input.inf``; and what came out of it as ``output.nan`` and ``output.inf``, with
``dtype.TYPE`` = 1. Of an operation there is ``operation.NAME`` = 1, of the loss function each that can do it, and
``overflow``: 1 where large numbers exceeded the type, 0 where it is not defined for what went in.

Says what to change where the first number that is not finite was born.

In: a origin. Out: sentences, most useful first: by the operation where it is known, else by where it happened.
"""

from __future__ import annotations

from mlflow_stability.recovery.nan_origin.batch_facts import TensorFacts
from mlflow_stability.recovery.nan_origin.nan_trace import NanOrigin
from mlflow_stability.recovery.nan_origin.origin_checks import overflowed
from mlflow_stability.vocabulary.result.event import Event, Severity

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
    smaller = "Normalise or scale down what goes into this operation"
    if dtype != "float16":
        return (f"{smaller}, and look for what let it grow so large.",)
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
        return f"the batch itself was not finite: {_holds(origin)}{_in(origin, layer, ', which met it first')}."
    if source in ("weight", "buffer"):
        return f"a {source} of {layer} was not finite: {_holds(origin)}. No optimizer's numbers explain it."
    if source == "optimizer":
        return f"{_optimizer(origin)}: {_holds(origin)}."
    if source == "loss":
        return _loss(origin)
    if source == "backward":
        what = f"the gradient of {origin.operation}" if origin.operation else "the backward pass"
    elif source == "elsewhere":
        what = f"a tensor that {origin.operation} takes from outside of the batch and the model's weights"
    else:
        what = origin.operation
    later = f" {origin.nan_by} made a NaN of it." if origin.nan_by else ""
    return f"the first number that is not finite comes from {what}{_in(origin, layer)}{_made(origin)}.{later}"


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
    made = f", which made {_count(origin.output)} of {given}"
    return f"{made}; {origin.output.dtype} ends at {_LARGEST[origin.output.dtype]}" if overflowed(origin) else made


def _holds(origin: NanOrigin) -> str:
    facts = origin.output
    return origin.name if facts is None else f"{facts.name} is {in_words(facts)}"


def _optimizer(origin: NanOrigin) -> str:
    if origin.name == "update":
        return f"{origin.operation} itself wrote a weight that is not finite, and from the state it is in would again"
    return f"{origin.operation} wrote a weight that is not finite, for its {origin.name} is not"


def _loss(origin: NanOrigin) -> str:
    gave = f", which gave {in_words(origin.inputs[0])}" if origin.inputs else ""
    what = {"loss": "the loss is not finite", "gradient": "the loss is finite, and its gradient is not"}
    said = what.get(origin.name, "what came back from the loss is not finite")
    of = f": {origin.operation} can do that" if origin.operation else ""
    return f"the first number that is not finite comes from the loss function, not from the model{gave}; {said}{of}."


def _count(facts: TensorFacts) -> str:
    parts = [f"{number} {word}" for number, word in ((facts.nan, "NaN"), (facts.inf, "infinite")) if number]
    return " and ".join(parts)
