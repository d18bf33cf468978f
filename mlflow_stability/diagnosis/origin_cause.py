"""Looks for the cause in what was found when the broken step was run again: where its first non-finite number was born.

In: the events ``nan_origin`` and ``broken_batch`` of the step that broke. What the batch held before the model met
it, and what the optimizer's state holds, is seen directly; an operation that overflowed is the end of a story, and what
came before it is asked first.
"""

from __future__ import annotations

from dataclasses import replace
from math import isfinite

from mlflow_stability.diagnosis.look import Look, is_it, is_not, not_seen
from mlflow_stability.diagnosis.one_batch_cause import sudden_look, unsound_before, value_at
from mlflow_stability.diagnosis.surroundings import Surroundings, shown
from mlflow_stability.vocabulary.event import Event

NEAR = 2
"""What broke at most so many steps later is the same."""
ABSURD = 1e15
"""Numbers beyond this are not reached by one step of a training that was sound."""
SOURCES = ("input", "weight", "buffer", "optimizer", "forward", "backward", "loss", "elsewhere")


def origin_look(around: Surroundings) -> Look:
    """Where the first number that is not finite was born."""
    origin = _origin(around)
    if origin is None:
        return not_seen("origin: the broken step was not run again, so where it was born is not known")
    source = next((each for each in SOURCES if f"from.{each}" in origin.evidence), "elsewhere")
    sound = not unsound_before(around)
    evidence = _inputs(origin)
    if source == "input":
        return is_it("bad_batch", _said(origin), evidence, certainty="certain")
    if source == "optimizer":
        sure = "certain" if sound else "likely"
        return is_it("optimizer_state", _said(origin), evidence, certainty=sure, place=origin.place)
    if source in ("weight", "buffer"):
        return is_it("damaged_weights", _said(origin), evidence, place=origin.place)
    if source == "loss":
        # With a finite loss it broke on the way back: a slope, a hook, a loss scale.
        name = "gradient_non_finite" if _loss_was_finite(around, origin.step) else "loss_function"
        return is_it(name, _said(origin), evidence)
    if source == "backward":
        return is_it("gradient_non_finite", _said(origin), evidence, place=origin.place)
    if source == "elsewhere":
        return is_it("tensor_from_outside", _said(origin), evidence, place=origin.place)
    return _of_the_forward_pass(around, origin, sound)


def one_step_look(around: Surroundings) -> Look:
    """Whether it was one batch out of a sound training, and if so, what in the model or the loss could not bear it."""
    batch, origin = sudden_look(around), _origin(around)
    if batch.cause is None or origin is None:
        return batch
    born = origin_look(around).cause
    if born is None or born.name in ("bad_batch", "damaged_weights", "optimizer_state"):
        return batch
    if born.name == "overflow":  # large numbers in, larger ones out: whether they were the batch's is not known
        return Look(replace(batch.cause, evidence=(*batch.cause.evidence, _said(origin)), place=born.place))
    return Look(replace(born, evidence=(*born.evidence, *batch.cause.evidence)))


def hardware_look(around: Surroundings) -> Look:
    """Whether the same batch gave finite numbers the second time."""
    looked = [each for each in around.said("broken_batch") if _near(around, each)]
    if not looked or "finite_again" not in looked[0].evidence:
        return not_seen("hardware: the batch was not run again")
    if looked[0].evidence["finite_again"] == 1.0:
        return is_it(
            "hardware",
            f"The batch of step {looked[0].step} broke once and was finite when it was run again, on the same weights "
            "and with the same random numbers: the device, or an operation that does not always give the same.",
            looked[0].message,
        )
    return is_not("hardware: the same batch broke again when it was run a second time")


def _of_the_forward_pass(around: Surroundings, origin: Event, sound: bool) -> Look:
    evidence = origin.evidence
    largest = max((abs(evidence[key]) for key in ("input.least", "input.greatest") if key in evidence), default=0.0)
    given = _modest_batch(around)
    if sound and largest > ABSURD and given:
        return is_it(
            "damaged_weights",
            f"Weights were absurd at step {origin.step}: numbers up to {shown(largest)} came to "
            f"{origin.place or 'the model'} out of {given}, one step after all was as usual. No update does that: look "
            "at what writes into weights, and at the memory of the device.",
            _said(origin),
            place=origin.place,
        )
    overflowed = evidence.get("output.inf", 0.0) > 0 and evidence.get("output.nan", 0.0) == 0
    name = "overflow" if overflowed or largest > ABSURD else "invalid_operation"
    return is_it(name, _said(origin), _inputs(origin), place=origin.place)


def _modest_batch(around: Surroundings) -> str:
    """What came in, in words, where it is known to hold no absurd number; empty: it may."""
    if around.history.params.get("stability.batch", "").startswith(("int", "uint", "bool")):
        return "a batch of whole numbers"
    for each in around.said("broken_batch"):
        ranges = [abs(value) for key, value in each.evidence.items() if key.startswith(("least.", "greatest."))]
        if _near(around, each) and ranges and max(ranges) < ABSURD:
            return f"a batch whose numbers reach {shown(max(ranges))}"
    return ""


def _loss_was_finite(around: Surroundings, step: int) -> bool:
    loss = around.loss
    value = None if loss is None else value_at(loss, step)
    return value is not None and isfinite(value)


def _origin(around: Surroundings) -> Event | None:
    return next((each for each in around.said("nan_origin") if _near(around, each)), None)


def _near(around: Surroundings, event: Event) -> bool:
    return around.episode.start <= event.step <= around.episode.start + NEAR


def _said(origin: Event) -> str:
    """The event's sentence without its step."""
    _, _, said = origin.message.partition(": ")
    return f"{said[:1].upper()}{said[1:]}" if said else origin.message


def _inputs(origin: Event) -> str:
    low, high = origin.evidence.get("input.least"), origin.evidence.get("input.greatest")
    return "" if low is None or high is None else f"what went in ranges from {shown(low)} to {shown(high)}"
