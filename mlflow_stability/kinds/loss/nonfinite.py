"""Detects the first NaN and the first infinity of a loss or a gradient norm.

A run of bad values is one finding, not one for each step and each quantity: it begins with the first and is over when
every quantity is finite again. Gradients that a loss scaler found to be infinite and discarded are its normal search
for a scale and do not count.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from mlflow_stability.curves.curves import Curve, RunCurves
from mlflow_stability.detectors.detector import WHOLE, Detector, Point
from mlflow_stability.detectors.finding_type import Instability, Symptom
from mlflow_stability.kinds.rule import Rule
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.result import LOWER_RATE_2_TO_5_OR_CLIP, Action, Finding, Remedy, Severity
from mlflow_stability.vocabulary.text.phrases import infinite

SKIPPED = "skipped_steps"
LOSS = "loss"


@dataclass(frozen=True, slots=True)
class NonFiniteFacts(Facts):
    """A loss or a gradient norm that is NaN or infinite."""

    kind: ClassVar[str] = "non_finite"

    signal: str
    """What is not finite, by the name that the log gives it."""
    value: float
    """Its first value that is not finite."""
    last_finite: float | None
    """Its last finite value before; None where there is none."""
    nan_from: int | None = None
    """The step at which an infinity became NaN; None where it did not."""
    count: int | None = None
    """Number of values that are not finite; None while the training runs."""
    last_step: int | None = None
    """The step of the last of several."""
    finite_afterwards: bool | None = None
    """Whether finite values follow; None where the log ends with the only value, and while the training runs."""
    loss_step: int | None = None
    """Of a gradient norm: the first step at which the loss is not finite, too; None where it stays finite."""

    def numbers(self) -> dict[str, float]:
        """The value under its own name; of a whole curve also how many there are, and the last finite one."""
        if self.count is None:
            return {self.signal: self.value}
        before = {} if self.last_finite is None else {"before": self.last_finite}
        return {self.signal: self.value, "count": float(self.count), **before}

    @property
    def last_finite_clause(self) -> str:
        """``; last finite value 0.31``."""
        return "; no finite value before" if self.last_finite is None else f"; last finite value {self.last_finite:.4g}"

    def sentence(self, step: int, unit: str = "step", /) -> str:
        """``loss is NaN at step 400; last finite value 0.31.``"""
        said = f"{self.signal} is {'NaN' if math.isnan(self.value) else infinite(self.value)} at {unit} {step}"
        if self.nan_from is not None:
            said += f" and NaN from {unit} {self.nan_from} on"
        said += self.last_finite_clause
        if self.count is not None and self.count > 1:
            said += f"; {self.count} non-finite values up to {unit} {self.last_step}"
        if self.finite_afterwards is not None:
            said += f"; {'finite again' if self.finite_afterwards else 'none finite'} afterwards"
        return f"{said}."


@dataclass(frozen=True, slots=True)
class NonFiniteState:
    """What has been seen so far."""

    ill: frozenset[str] = frozenset()
    """The quantities that are bad at the moment."""
    skips: float = 0.0
    excused_step: int = -1
    """The step that the loss scaler threw away."""


def watch(state: NonFiniteState, point: Point, *, is_bad: bool) -> tuple[NonFiniteState, bool]:
    """The new state, and whether a finding begins here."""
    quantity = point.quantity
    if quantity == SKIPPED:
        if point.value > state.skips:
            return replace(state, skips=point.value, excused_step=point.step), False
        return state, False
    if is_bad:
        if quantity in state.ill or (quantity != LOSS and point.step == state.excused_step):
            return state, False
        return replace(state, ill=state.ill | {quantity}), not state.ill
    if point.finite and quantity in state.ill:
        return replace(state, ill=state.ill - {quantity}), False
    return state, False


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
        """Whether the value is what the detector looks for."""

    def step(self, state: NonFiniteState, point: Point) -> tuple[NonFiniteState, Finding | None]:
        """Look at the next value."""
        if point.finite and not state.ill and point.quantity != SKIPPED:
            return state, None  # nearly always
        new, found = watch(state, point, is_bad=self.is_bad(point.value))
        if not found:
            return new, None
        facts = NonFiniteFacts(point.quantity, point.value, point.before)
        return new, self.finding(point, Severity.CRITICAL, facts)


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
        """Whether it is NaN."""
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
        """Whether it is infinite."""
        return math.isinf(value)


@dataclass(frozen=True, slots=True)
class NonFiniteRule(Rule):
    """A loss or a gradient norm was NaN or infinite.

    What it sees: every series of non-finite values, in any loss and any gradient norm. Losses that become non-finite
    within {nearby:percent} of the run of each other are one finding; an infinity that turns into NaN is reported as
    NaN.

    Why it matters: a non-finite loss writes NaN into every weight at the next optimizer step, and no later step repairs
    that.

    What to try: find the first module whose output is non-finite; inspect the inputs of that step; lower the learning
    rate; clip gradients; train in bf16 instead of fp16.

    When it is wrong: where the gradient norm is infinite and the loss stays finite, a loss scaler skipped the step.
    Such series are INFO if they are less than {often:percent} of the norms. A norm that is NaN after the first {search}
    steps is a warning even once: a scaler's search for its scale overflows earlier.

    Reference: IEEE 754; https://docs.pytorch.org/docs/stable/notes/amp_examples.html
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
    search: int = 20
    """Number of first gradient norms in which NaN may come from a loss scaler's search."""

    def find(self, curves: RunCurves) -> list[Finding]:
        """The stretches, earliest first."""
        losses = sorted(
            (each for curve in (*curves.losses, *curves.validations) for each in self._stretches(curve)),
            key=lambda each: (each.attempt, each.start, each.place != ""),
        )
        norms = sorted(
            (each for curve in curves.norms for each in self._stretches(curve)),
            key=lambda each: (each.attempt, each.start, each.place != ""),
        )
        reach = self.nearby * max((int(curve.steps[-1] - curve.steps[0]) for curve in curves.losses), default=0)
        merged = list(_merged(losses, reach))
        for norm in norms:
            at = next((at for at, loss in enumerate(merged) if _together(norm, loss, reach)), None)
            if at is None:
                merged.append(self._thrown_away(norm, curves.norms))
            elif norm.start < merged[at].start:
                merged[at] = _led(norm, merged[at])
        return sorted(_merged(merged, reach), key=lambda each: (each.attempt, each.start))

    def _stretches(self, curve: Curve) -> Iterator[Finding]:
        bad = ~curve.finite
        if not bad.any():
            return
        edges = np.flatnonzero(np.diff(np.concatenate([[False], bad, [False]]).astype(np.int8)))
        stretches = list(zip(edges[::2].tolist(), (edges[1::2] - 1).tolist(), strict=True))
        first, last = stretches[0][0], stretches[-1][1]
        share = float(bad[first : last + 1].mean())
        if share > 0.5 or len(stretches) > 5:
            stretches = [(first, last)]
        for low, high in stretches:
            yield self._episode(curve, low, high, int(bad[low : high + 1].sum()))

    def _episode(self, curve: Curve, low: int, high: int, count: int) -> Finding:
        values = curve.values[low : high + 1]
        nan = np.isnan(values)
        detector = NanDetected if nan.any() else InfDetected
        recovered = high + 1 < len(curve.values)
        before = curve.values[:low][curve.finite[:low]]
        facts = NonFiniteFacts(
            curve.name,
            float(values[0]),
            float(before[-1]) if len(before) else None,
            nan_from=int(curve.steps[low + int(np.argmax(nan))]) if nan.any() and not nan[0] else None,
            count=count,
            last_step=int(curve.steps[high]) if count > 1 else None,
            finite_afterwards=recovered if recovered or count > 1 else None,
        )
        return self.finding(
            curve, Severity.CRITICAL, facts, curve.steps[low], curve.steps[high], recovered=recovered, of=detector
        )

    def _thrown_away(self, norm: Finding, norms: tuple[Curve, ...]) -> Finding:
        """A gradient norm that broke while no loss did: a step that a loss scaler did not take."""
        if not norm.recovered:
            return norm
        curve = next(each for each in norms if each.name == norm.metric and each.attempt == norm.attempt)
        rare = (~curve.finite).mean() < self.often
        nan = norm.kind == NanDetected.kind and norm.start > int(curve.steps[: self.search][-1])
        return replace(norm, severity=Severity.INFO if rare and not nan else Severity.WARNING)


def _together(norm: Finding, loss: Finding, reach: float) -> bool:
    return norm.attempt == loss.attempt and norm.start <= loss.end and loss.start <= norm.end + reach


def _led(norm: Finding, loss: Finding) -> Finding:
    """One finding of a gradient norm that broke first and the loss that followed it."""
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


def _merged(episodes: list[Finding], reach: float) -> Iterator[Finding]:
    """Neighbours as one, under the name of the first; NaN if any of them is."""
    waiting: Finding | None = None
    for each in episodes:
        if waiting is None:
            waiting = each
            continue
        same = each.attempt == waiting.attempt and each.start <= max(waiting.end, waiting.start + reach)
        if not same or (each.severity != waiting.severity):
            yield waiting
            waiting = each
            continue
        stayed = waiting.recovered and each.recovered
        span = replace(waiting.span, end=max(waiting.end, each.end), recovered=stayed)
        waiting = replace(waiting, span=span, count=waiting.count + 1)
    if waiting is not None:
        yield waiting
