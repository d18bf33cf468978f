"""What can be found in a training, whoever finds it: its name, its words, how bad it can be, what to do about it.

Each type is a class in a file of a sub-package of `detectors`, and nothing else has to know of it: `catalog` finds it,
and `explain`, the manual, the reports and the tests take what they say of it from here and from its docstring.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Literal

from mlflow_stability.detectors.rendered_numbers import defaults_of, rendered
from mlflow_stability.vocabulary.result import Remedy
from mlflow_stability.vocabulary.result.severity import Severity

Moves = Literal["times", "power", "inverse"]
"""How a threshold follows the sensitivity: ``times`` for σ, nats and shares that a value must exceed; ``power`` for a
value as a multiple of a level; ``inverse`` for what a value must stay below."""


class Symptom(Enum):
    """What a finding looks like to who asks why it came about; each check of causes says for which it is asked."""

    NONE = "none"
    """Nobody asks for its cause."""
    NON_FINITE = "non-finite"
    RISING = "rising"
    VANISHING = "vanishing"
    STUCK = "stuck"
    DEAD_LAYER = "dead layer"
    LEARNING_RATE = "learning rate"
    LARGE_UPDATES = "large updates"
    REPEATED_DATA = "repeated data"
    OVERFITTING = "overfitting"
    INSIDE = "inside"
    ENDED = "ended"


class Instability(Enum):
    """Whether a finding is about a training that becomes unstable. Such findings come together, one of them leads to
    the others, and while it trains they are reported as one.
    """

    NONE = "none"
    """It is about something else: progress, speed, memory, settings."""
    SIGN = "sign"
    """It says nothing bad of the weights: the step was skipped, or they may still be good."""
    HARMFUL = "harmful"
    """Weights of its step may carry what led to it: a state that is not confirmed as good yet is given up."""


LAST = 10_000
"""Where a type stands that does not say where."""


@dataclass(frozen=True, slots=True)
class FindingType:
    """A type of finding. Its docstring says what it sees, why it matters, what to try, when it is wrong."""

    kind: ClassVar[str]
    """The name of what is found: ``nan_detected``."""
    noun: ClassVar[str] = ""
    """What one of it is called within a sentence, with its article: "a loss spike"; empty: the words of its name."""
    plural: ClassVar[str] = ""
    """What several are called behind a number: "loss spikes"; empty for what is not counted, such as NaN."""
    question: ClassVar[str] = ""
    """What checklists ask about it: "Are units dead?"; empty: nothing. A run answers it by its findings."""
    check_by_hand: ClassVar[str] = ""
    """How to answer the question without a recording; thresholds in braces, as in the docstring."""
    rule: ClassVar[str] = ""
    """Which way of finding it: empty for our own, ``classic`` for the one that is in general use."""
    severities: ClassVar[tuple[Severity, ...]] = (Severity.WARNING,)
    """How bad its findings can be, the mildest first."""
    experimental: ClassVar[bool] = False
    """Whether it is not relied upon yet; such findings are never above INFO, and change no verdict."""
    remedies: ClassVar[tuple[Remedy, ...]] = ()
    """What to try, most likely first."""
    symptom: ClassVar[Symptom] = Symptom.NONE
    """By which its cause is looked for."""
    instability: ClassVar[Instability] = Instability.NONE
    """Whether it is part of an unstable training."""
    of_setup: ClassVar[bool] = False
    """Whether it is a mistake in the set-up, which leaves a training stable."""
    of_hardware: ClassVar[bool] = False
    """Whether it is about the machine, not about the training."""
    order: ClassVar[int] = LAST
    """Where it stands among the others: detectors look, and types are listed, from the lowest on, then by name."""
    by_sensitivity: ClassVar[Mapping[str, Moves]] = {}
    """Which of its thresholds follow the sensitivity, and how; what is no matter of degree has none."""

    def __init_subclass__(cls) -> None:
        """Put the thresholds into the texts; not again when `dataclass` makes the class anew with slots."""
        if "__dataclass_fields__" in vars(cls):
            return
        thresholds = defaults_of(cls)
        cls.__doc__ = rendered(cls.__doc__ or "", thresholds, cls.__module__) or None
        cls.check_by_hand = " ".join(rendered(cls.check_by_hand, thresholds, cls.__module__).split())
