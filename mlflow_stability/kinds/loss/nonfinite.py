"""Detect the first NaN and the first infinity of a loss or a gradient norm.

A series of non-finite values is one finding, which is over when every quantity is finite again. Gradients that a loss
scaler found to be infinite and discarded are its normal search for a scale and do not count.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.curves.curves import Curve, RunCurves
from mlflow_stability.detectors.detector import WHOLE, Detector, Point
from mlflow_stability.detectors.finding_type import Instability, Symptom
from mlflow_stability.kinds.rule import Rule
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.result import LOWER_RATE_2_TO_5_OR_CLIP, Action, Finding, Remedy, Severity
from mlflow_stability.vocabulary.text.phrases import infinite


@dataclass(frozen=True, slots=True)
class NonFiniteFacts(Facts):
    """A loss or a gradient norm that is NaN or infinite."""

    kind = "non_finite"

    signal: str  # What is not finite, by the name that the log gives it
    value: float  # Its first value that is not finite
    last_finite: float | None  # Its last finite value before, if there was one
    nan_from: int | None = None  # The step at which an infinity became NaN; None where it did not
    count: int | None = None  # Number of values that are not finite; None while the training runs
    last_step: int | None = None  # The step of the last of several
    finite_afterwards: bool | None = None
    """Whether finite values follow; None where the log ends with the only value, and while the training runs."""
    loss_step: int | None = None  # Of a gradient norm: the first step at which the loss is not finite, too

    def numbers(self) -> dict[str, float]:
        if self.count is None:
            return {self.signal: self.value}
        before = {} if self.last_finite is None else {"before": self.last_finite}
        return {self.signal: self.value, "count": float(self.count), **before}

    @property
    def last_finite_clause(self) -> str:
        """``; last finite value 0.31``."""
        return "; no finite value before" if self.last_finite is None else f"; last finite value {self.last_finite:.4g}"

    def sentence(self, step: int, unit: str = "step", /) -> str:
        sentence = f"{self.signal} is {'NaN' if math.isnan(self.value) else infinite(self.value)} at {unit} {step}"
        if self.nan_from is not None:
            sentence += f" and NaN from {unit} {self.nan_from} on"
        sentence += self.last_finite_clause
        if self.count is not None and self.count > 1:
            sentence += f"; {self.count} non-finite values up to {unit} {self.last_step}"
        if self.finite_afterwards is not None:
            sentence += f"; {'finite again' if self.finite_afterwards else 'none finite'} afterwards"
        return f"{sentence}."


@dataclass(slots=True)
class NonFiniteState:
    broken: set[str] = field(default_factory=set)  # the quantities that are non-finite at the moment
    skips: float = 0.0
    skipped_step: int = -1  # the last step that the loss scaler skipped


@dataclass(frozen=True, slots=True)
class NonFiniteDetector(Detector):
    """What the detectors of NaN and of infinity share."""

    symptom = Symptom.NON_FINITE
    quantities = ("skipped_steps", "loss", "grad_norm")
    places = WHOLE
    severities = (Severity.CRITICAL,)
    state_type = NonFiniteState

    @staticmethod
    @abstractmethod
    def is_bad(value: float) -> bool:
        """Return whether the detector looks for this value."""

    def step(self, state: NonFiniteState, point: Point) -> tuple[NonFiniteState, Finding | None]:
        quantity = point.quantity
        if quantity == "skipped_steps":
            if point.value > state.skips:
                state.skips, state.skipped_step = point.value, point.step
        elif self.is_bad(point.value):
            if quantity in state.broken or (quantity != "loss" and point.step == state.skipped_step):
                return state, None
            is_first = not state.broken
            state.broken.add(quantity)
            if is_first:
                facts = NonFiniteFacts(quantity, point.value, point.before)
                return state, self.finding(point, Severity.CRITICAL, facts)
        elif point.finite:
            state.broken.discard(quantity)
        return state, None


@dataclass(frozen=True, slots=True)
class NanDetected(NonFiniteDetector):
    """The loss or the gradient norm became NaN.

    What it sees: the first NaN of the loss or of the gradient norm after finite values. The finding ends when all are
    finite again. Gradients that a loss scaler discarded do not count.

    Why it matters: the next optimizer step writes NaN into every weight it updates, and no later step repairs that.

    What to try: find the first module whose output is NaN; inspect the inputs; lower the learning rate; clip gradients;
    train in bf16 instead of fp16.

    When it is wrong: a script that passes NaN to ``backward`` on purpose, to mark a batch without targets.

    Reference: IEEE 754; https://docs.pytorch.org/docs/stable/notes/amp_examples.html
    """

    kind = "nan_detected"
    instability = Instability.HARMFUL
    noun = "NaN"
    order = 10
    remedies = (
        Remedy(Action.FIND_FIRST_NAN_MODULE),
        Remedy(Action.INSPECT_INPUTS),
        LOWER_RATE_2_TO_5_OR_CLIP,
        Remedy(Action.TRAIN_IN_BF16),
    )

    @staticmethod
    def is_bad(value: float) -> bool:
        return math.isnan(value)


@dataclass(frozen=True, slots=True)
class InfDetected(NonFiniteDetector):
    """The loss or the gradient norm became infinite.

    What it sees: the first infinity of the loss or of the gradient norm after finite values. The finding ends when all
    are finite again. Gradients that a loss scaler discarded do not count.

    Why it matters: an overflow precedes most NaNs. Infinity minus infinity, or times zero, is NaN one operation later,
    and then in every weight.

    What to try: lower the learning rate; clip gradients; find an unbounded exponential or division; train in bf16
    instead of fp16, or with a lower loss scale.

    When it is wrong: a log-likelihood that is minus infinity on purpose for an impossible sample.

    Reference: IEEE 754; https://docs.pytorch.org/docs/stable/notes/amp_examples.html
    """

    kind = "inf_detected"
    instability = Instability.HARMFUL
    noun = "infinity"
    order = 20
    remedies = (
        LOWER_RATE_2_TO_5_OR_CLIP,
        Remedy(Action.FIND_UNBOUNDED_OPERATION),
        Remedy(Action.TRAIN_IN_BF16_OR_SCALE),
    )

    @staticmethod
    def is_bad(value: float) -> bool:
        return math.isinf(value)


@dataclass(frozen=True, slots=True)
class NonFiniteRule(Rule):
    """A loss or a gradient norm was NaN or infinite.

    What it sees: every series of non-finite values, in any loss and any gradient norm. Losses that become non-finite
    within {nearby:percent} of the run of each other are one finding; an infinity that turns into NaN is reported as
    NaN.

    When it is wrong: validation losses that begin with NaN or infinity and are finite later are INFO: scripts log that
    before the first validation. Where the gradient norm is infinite and the loss stays finite, a loss scaler skipped
    the step. Such series are INFO if they are less than {often:percent} of the norms. A norm that is NaN after the
    first {search} steps is a warning even once: a scaler's search for its scale overflows earlier.
    """

    kind = "nan_detected"
    order = 10
    only_without_detectors = True
    of_validations = True
    severities = (Severity.INFO, Severity.WARNING, Severity.CRITICAL)
    remedies = NanDetected.remedies

    nearby: float = 0.01
    """Series of several losses that start within this share of the run of each other are one finding."""
    often: float = 0.05
    """Share of gradient norms from which it is more than a loss scaler's search and becomes a warning."""
    search: int = 20  # number of first gradient norms in which NaN may come from a loss scaler's search

    def find(self, curves: RunCurves) -> list[Finding]:
        reach = self.nearby * max((int(curve.steps[-1] - curve.steps[0]) for curve in curves.losses), default=0)
        merged = _merge_neighbours(self._series((*curves.losses, *curves.validations), curves.validations), reach)
        for norm in self._series(curves.norms):
            index = next((index for index, loss in enumerate(merged) if _belongs_to(norm, loss, reach)), None)
            if index is None:
                merged.append(self._skipped_by_scaler(norm, curves.norms))
            elif norm.start < merged[index].start:
                merged[index] = _followed_by_loss(norm, merged[index])
        return sorted(_merge_neighbours(merged, reach), key=lambda series: (series.attempt, series.start))

    def _series(self, curves: Iterable[Curve], validations: Iterable[Curve] = ()) -> list[Finding]:
        findings = [
            self._finding(curve, first, last, validations)
            for curve in curves
            for first, last in _non_finite_stretches(~curve.finite)
        ]
        return sorted(findings, key=lambda series: (series.attempt, series.start, series.place != ""))

    def _finding(self, curve: Curve, first: int, last: int, validations: Iterable[Curve]) -> Finding:
        values, count = curve.values[first : last + 1], int((~curve.finite[first : last + 1]).sum())
        nan = np.isnan(values)
        recovered = last + 1 < len(curve.values)
        before = curve.values[:first][curve.finite[:first]]
        facts = NonFiniteFacts(
            curve.name,
            float(values[0]),
            float(before[-1]) if len(before) else None,
            nan_from=int(curve.steps[first + int(np.argmax(nan))]) if nan.any() and not nan[0] else None,
            count=count,
            last_step=int(curve.steps[last]) if count > 1 else None,
            finite_afterwards=recovered if recovered or count > 1 else None,
        )
        detector = NanDetected if nan.any() else InfDetected
        start, end = curve.steps[first], curve.steps[last]
        # Logged before it was measured: a validation, or a training loss whose weights have a finite validation.
        is_validated = any(
            start in other.steps[other.finite] for other in validations if other.attempt == curve.attempt
        )
        placeholder = first == 0 and recovered and (curve.quantity == "val_loss" or (count == 1 and is_validated))
        severity = Severity.INFO if placeholder else Severity.CRITICAL
        return self.finding(curve, severity, facts, start, end, recovered=recovered, of=detector)

    def _skipped_by_scaler(self, norm: Finding, norms: tuple[Curve, ...]) -> Finding:
        """Lower the severity of a gradient norm that recovered while the loss stayed finite: its step was skipped."""
        if not norm.recovered:
            return norm
        curve = next(curve for curve in norms if curve.name == norm.metric and curve.attempt == norm.attempt)
        is_rare = (~curve.finite).mean() < self.often
        is_late_nan = norm.kind == NanDetected.kind and norm.start > int(curve.steps[: self.search][-1])
        return replace(norm, severity=Severity.INFO if is_rare and not is_late_nan else Severity.WARNING)


def _non_finite_stretches(broken: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return the first and last index of each stretch; of many stretches, those of all together."""
    if not broken.any():
        return []
    edges = np.flatnonzero(np.diff(np.concatenate([[False], broken, [False]]).astype(np.int8)))
    stretches = list(zip(edges[::2].tolist(), (edges[1::2] - 1).tolist(), strict=True))
    first, last = stretches[0][0], stretches[-1][1]
    return [(first, last)] if broken[first : last + 1].mean() > 0.5 or len(stretches) > 5 else stretches


def _belongs_to(norm: Finding, loss: Finding, reach: float) -> bool:
    return norm.attempt == loss.attempt and norm.start <= loss.end and loss.start <= norm.end + reach


def _followed_by_loss(norm: Finding, loss: Finding) -> Finding:
    """Return one finding of a gradient norm and of the loss that became non-finite after it."""
    facts = norm.facts
    if isinstance(facts, NonFiniteFacts):
        facts = replace(facts, loss_step=loss.start)
    return replace(
        loss,
        span=replace(loss.span, start=norm.start, peak=norm.peak),
        where=replace(norm.where, attempt=loss.attempt),
        facts=facts,
        also=(loss.facts,),
        statements=(*norm.stated, *loss.stated),
    )


def _merge_neighbours(findings: list[Finding], reach: float) -> list[Finding]:
    """Join findings of the same severity that begin near each other into the first of them."""
    merged: list[Finding] = []
    for series in findings:
        last = merged[-1] if merged else series
        is_near = series.attempt == last.attempt and series.start <= max(last.end, last.start + reach)
        if not merged or not is_near or series.severity != last.severity:
            merged.append(series)
            continue
        recovered = last.recovered and series.recovered
        span = replace(last.span, end=max(last.end, series.end), recovered=recovered)
        merged[-1] = replace(last, span=span, count=last.count + 1)
    return merged
