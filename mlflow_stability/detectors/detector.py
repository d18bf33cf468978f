"""Base class of detectors, and the points that they look at.

A detector is a frozen dataclass whose fields are its thresholds. It is pure: what it finds depends on the given state
and point alone, so that a recording can be judged again afterwards. The panel owns the state; a detector may change it
in place and keeps no reference to it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from mlflow_stability.detectors.finding_type import FindingType
from mlflow_stability.detectors.sensitivity import factor_of
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.judging import MAX_SCORE
from mlflow_stability.vocabulary.loss_level import NoLevel
from mlflow_stability.vocabulary.result.finding import Finding, Severity, Source, Span, Where, most_severe

ALL, WHOLE, LAYERS = "all", "whole", "layers"  # which places a detector can ask for


class Point(NamedTuple):
    """One value of a signal, compared with the signal's own baseline."""

    quantity: str
    place: str
    step: int
    value: float
    attempt: int = 0
    time: float = 0.0
    finite: bool = True
    before: float | None = None  # the last finite value of the same signal
    z: float = 0.0  # distance above the baseline in σ of the signal's own noise; 0 without a baseline
    accepted: bool = True  # whether the value went into the baseline, as values that are finite and no outliers do
    center: float = 0.0  # the level of the baseline, in the unit of the value; 0 without a baseline
    scale: float = 0.0  # σ of the noise: as a share of the level where `logarithmic`, else in the unit of the value
    tail: float = 0.0  # the z that this signal's own noise is expected to reach once in 100,000 values
    logarithmic: bool = True  # whether z compares ratios, as for positive values; else it compares differences
    has_level: bool = True  # whether the level of the losses measures progress: not in a GAN, for example
    reason: NoLevel | None = None  # why it does not


@dataclass(frozen=True, slots=True)
class Detector(FindingType, ABC):
    """One judgement. Its class documents it: what it sees, why it matters, what to try, when it is wrong.

    Annotated fields are thresholds; class variables say what the detector looks at.
    """

    quantities: ClassVar[tuple[str, ...]]  # the quantities to look at; those of one place share one state
    compared: ClassVar[tuple[str, ...]] = ()  # those of them that are compared with their baseline
    across_places: ClassVar[bool] = False  # whether all places share one state
    takes_losses: ClassVar[bool] = True  # whether `step` gets each loss; else the detector reads `Progress` alone
    places: ClassVar[str] = ALL
    """Of quantities measured by layer: ``whole``, values of the whole model only; ``layers``, those of layers only."""
    on_request: ClassVar[bool] = False  # whether it runs only when it is asked for by name
    state_type: ClassVar[type[Any]]  # class of its state, made without arguments, unless `begin` is overridden

    def begin(self) -> Any:
        """Return the state of a new training."""
        return self.state_type()

    def after_rollback(self, state: Any) -> Any:  # noqa: ARG002 - for those that keep some of it
        """Return the state after a rollback: a new one, with what weights do not influence, such as learning rates."""
        return self.begin()

    @abstractmethod
    def step(self, state: Any, point: Point) -> tuple[Any, Finding | None]:
        """Look at the next point; return the new state, and a finding or None."""

    def finding(self, point: Point, severity: Severity, facts: Facts) -> Finding:
        """Return the finding of these facts at a point; its severity is lowered where its score is low."""
        score = self._score(facts)
        return Finding(
            self.kind,
            severity if score is None else min(severity, most_severe(score)),
            Span(point.step, point.step, point.step),
            Where(point.place, attempt=point.attempt),
            facts,
            self.remedies,
            Source.DETECTOR,
            MAX_SCORE if score is None else score,
            point.time,
        )

    def severity_of(self, facts: Facts, worst: Severity = Severity.CRITICAL) -> Severity:
        """Return the severity that the score of these facts allows, `worst` at most."""
        score = self._score(facts)
        return worst if score is None else min(worst, most_severe(score))

    def _score(self, facts: Facts) -> float | None:
        """By how much the threshold is exceeded; None for facts that are not compared with one."""
        ratio = facts.exceeds
        if ratio is None or not ratio > 0:
            return None
        return round(min(MAX_SCORE, max(1.0, ratio) * factor_of(self)), 2)
