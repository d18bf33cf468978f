"""Says in words and numbers where the first number that is not finite was born.

In: a birth. Out: the event ``nan_origin``: its place is the module, its message the operation with the user's own line
and what went into it. Promised: one sentence that stands for itself.

Its evidence holds ``from.SOURCE`` = 1, SOURCE being ``input``, ``weight``, ``buffer``, ``optimizer``, ``forward``,
``backward``, ``loss`` or ``elsewhere``; the range of the first tensor that went into the operation as ``input.least``,
``input.greatest``, ``input.nan``, ``input.inf``; and what came out of it as ``output.nan`` and ``output.inf``, with
``dtype.TYPE`` = 1. Of an operation there is ``operation.NAME`` = 1, of the loss function each that can do it, and
``overflow``: 1 where large numbers exceeded the type, 0 where it is not defined for what went in.
"""

from __future__ import annotations

from mlflow_stability.recovery.batch_facts import TensorFacts
from mlflow_stability.recovery.nan_birth import Birth
from mlflow_stability.recovery.nan_remedies import remedies_against
from mlflow_stability.recovery.overflow import overflowed
from mlflow_stability.vocabulary.event import Event, Severity

KIND = "nan_origin"
_LARGEST = {"float16": "65504", "bfloat16": "3.4e38", "float32": "3.4e38", "float64": "1.8e308"}


def origin_event(step: int, birth: Birth, layer: str) -> Event:
    """The event; `layer` is how the recording calls the module."""
    evidence = {f"from.{birth.source}": 1.0}
    for what, facts in (("input", birth.inputs[0] if birth.inputs else None), ("output", birth.output)):
        if facts is None:
            continue
        evidence[f"{what}.nan"], evidence[f"{what}.inf"] = float(facts.nan), float(facts.inf)
        if facts.least is not None and facts.greatest is not None:
            evidence[f"{what}.least"], evidence[f"{what}.greatest"] = facts.least, facts.greatest
    if birth.source in ("forward", "backward", "loss"):
        evidence |= {f"operation.{name}": 1.0 for name in birth.operation.split(", ") if name}
    if birth.output is not None:
        evidence[f"dtype.{birth.output.dtype}"] = 1.0
        if birth.source in ("forward", "backward"):
            evidence["overflow"] = float(overflowed(birth))
    message = f"Step {step}: {origin_sentence(birth, layer)}"
    return Event(step, KIND, Severity.INFO, message, layer, evidence, remedies_against(birth))


def origin_sentence(birth: Birth, layer: str) -> str:
    """Where the first number that is not finite was born."""
    source = birth.source
    if source == "input":
        return f"the batch itself was not finite: {_holds(birth)}{_in(birth, layer, ', which met it first')}."
    if source in ("weight", "buffer"):
        return f"a {source} of {layer} was not finite: {_holds(birth)}. No optimizer's numbers explain it."
    if source == "optimizer":
        return f"{_optimizer(birth)}: {_holds(birth)}."
    if source == "loss":
        return _loss(birth)
    if source == "backward":
        what = f"the gradient of {birth.operation}" if birth.operation else "the backward pass"
    elif source == "elsewhere":
        what = f"a tensor that {birth.operation} takes from outside of the batch and the model's weights"
    else:
        what = birth.operation
    later = f" {birth.nan_by} made a NaN of it." if birth.nan_by else ""
    return f"the first number that is not finite comes from {what}{_in(birth, layer)}{_made(birth)}.{later}"


def in_words(facts: TensorFacts) -> str:
    """One tensor in a few words: ``float32 6x8 from -0.3 to 2.1``."""
    shape = "x".join(map(str, facts.shape)) or "scalar"
    words = f"{facts.dtype} {shape}"
    if facts.least is not None and facts.greatest is not None:
        words += f" from {facts.least + 0.0:.4g} to {facts.greatest + 0.0:.4g}"
    if facts.nan + facts.inf:
        words += f" ({_count(facts)})"
    return words


def _in(birth: Birth, layer: str, more: str = "") -> str:
    module = f" in {layer}{more}" if layer else ""
    return f"{module} ({birth.line})" if birth.line else module


def _made(birth: Birth) -> str:
    if not birth.inputs:
        return ""
    given = " and ".join(f"{'' if each.name == 'input' else each.name + ', '}{in_words(each)}" for each in birth.inputs)
    if birth.output is None:
        return f", from {given}"
    made = f", which made {_count(birth.output)} of {given}"
    return f"{made}; {birth.output.dtype} ends at {_LARGEST[birth.output.dtype]}" if overflowed(birth) else made


def _holds(birth: Birth) -> str:
    facts = birth.output
    return birth.name if facts is None else f"{facts.name} is {in_words(facts)}"


def _optimizer(birth: Birth) -> str:
    if birth.name == "update":
        return f"{birth.operation} itself wrote a weight that is not finite, and from the state it is in would again"
    return f"{birth.operation} wrote a weight that is not finite, for its {birth.name} is not"


def _loss(birth: Birth) -> str:
    gave = f", which gave {in_words(birth.inputs[0])}" if birth.inputs else ""
    what = {"loss": "the loss is not finite", "gradient": "the loss is finite, and its gradient is not"}
    said = what.get(birth.name, "what came back from the loss is not finite")
    of = f": {birth.operation} can do that" if birth.operation else ""
    return f"the first number that is not finite comes from the loss function, not from the model{gave}; {said}{of}."


def _count(facts: TensorFacts) -> str:
    parts = [f"{number} {word}" for number, word in ((facts.nan, "NaN"), (facts.inf, "infinite")) if number]
    return " and ".join(parts)
