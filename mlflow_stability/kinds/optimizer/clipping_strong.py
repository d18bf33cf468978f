"""Clipping that leaves hardly anything of the gradients, under an optimizer whose steps follow their size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.curves.curves import Curve, RunCurves
from mlflow_stability.detectors.finding_type import FindingType
from mlflow_stability.kinds.rule import Rule
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.result import Action, Finding, Remedy, Severity


@dataclass(frozen=True, slots=True)
class StrongClippingFacts(Facts):
    """What clipping does to the gradients of a run."""

    kind: ClassVar[str] = "clipping_strong"

    before: float
    """Median gradient norm before clipping."""
    after: float
    """Median gradient norm after clipping."""
    share: float
    """Share of steps that were clipped."""
    update_ratio: float
    """Median update norm as a share of the weight norm."""

    def sentence(self, _step: int, unit: str = "step", /) -> str:
        """``Clipping divides gradients by 1,200 in 100% of steps (norm 1.2, clipped to 0.001): …``"""
        return (
            f"Clipping divides gradients by {self.before / self.after:,.3g} in {self.share:.0%} of {unit}s "
            f"(norm {self.before:.3g}, clipped to {self.after:.3g}): a {unit} changes the weights by "
            f"{self.update_ratio:.2g} of their norm."
        )


@dataclass(frozen=True, slots=True)
class StrongClipping(FindingType):
    """Clipping leaves hardly anything of the gradients, and steps are tiny.

    What it sees: the whole curves of the gradient norm before and after clipping. Gradients are clipped in nearly all
    steps by a factor of 100 or more, and updates are tiny and follow the clipped norm, as under SGD. Adam and its kind
    divide the factor out again, and are not reported. Found at the end of a run, and by `diagnose`.

    Why it matters: each step has the length of the threshold times the learning rate, however large the gradient is.
    The training is as slow as at a learning rate lower by that factor.

    What to try: raise the threshold to the usual norm before clipping; `grad_norm` shows it.

    When it is wrong: a learning rate that was raised by the same factor on purpose; then updates are larger.

    Reference: https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html
    """

    kind = "clipping_strong"
    of_setup = True
    noun = "too strong a clipping"
    order = 167
    question = "Is the clipping threshold near the usual gradient norm?"
    check_by_hand = "Print the norm that clip_grad_norm_ returns: its median should not be 100 times max_norm."
    remedies = (Remedy(Action.RAISE_CLIPPING_THRESHOLD),)


@dataclass(frozen=True, slots=True)
class StrongClippingRule(Rule):
    """Clipping leaves hardly anything of the gradients, and steps are tiny.

    What it sees: in a run of {fewest} steps or more, gradients that are clipped in {share:percent} of the steps, by a
    factor of {factor} or more (median), while updates are below {update_ratio} of the weight norm (median) and no
    larger than {momentum} times the learning rate times the clipped norm, as under SGD.

    Why it matters: the training is as slow as at a learning rate lower by that factor.

    What to try: raise the threshold to the usual norm before clipping.

    When it is wrong: a learning rate that was raised by the same factor on purpose; then updates are larger.

    Reference: https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html
    """

    kind = "clipping_strong"
    order = 167
    remedies = StrongClipping.remedies

    fewest: int = 100
    """Minimum number of steps with both norms."""
    share: float = 0.9
    """Minimum share of steps that were clipped."""
    factor: float = 100.0
    """Minimum ratio of the norm before clipping to that after."""
    update_ratio: float = 1e-4
    """Maximum update norm as a share of the weight norm."""
    momentum: float = 100.0
    """Maximum update norm in units of the learning rate times the clipped norm; 1 / (1 - momentum) under SGD."""

    def find(self, curves: RunCurves) -> list[Finding]:
        """The last attempt of the whole model."""
        attempt = max((curve.attempt for curve in curves.clipped), default=0)
        norm, clipped, ratio, move, rate = (
            next((curve for curve in found if curve.attempt == attempt and not curve.part), None)
            for found in (curves.norms, curves.clipped, curves.updates, curves.moves, curves.rates)
        )
        if norm is None or clipped is None or ratio is None or move is None or rate is None:
            return []
        steps, before, after = _common(norm, clipped)
        if len(steps) < self.fewest:
            return []
        share = float(np.mean(after < 0.99 * before))
        facts = StrongClippingFacts(
            float(np.median(before)), float(np.median(after)), share, float(np.median(ratio.values[ratio.finite]))
        )
        _, moved, left = _common(move, clipped)
        _, rates, _ = _common(rate, move)
        if not len(moved) or len(rates) != len(moved) or not facts.after > 0:
            return []
        follows = float(np.median(moved)) <= self.momentum * float(np.median(rates)) * float(np.median(left))
        is_strong = share >= self.share and facts.before >= self.factor * facts.after
        if not follows or not is_strong or not facts.update_ratio < self.update_ratio:
            return []
        return [self.finding(norm, Severity.WARNING, facts, int(steps[0]), int(steps[-1]))]


def _common(first: Curve, second: Curve) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """The steps at which both are finite, and their values there."""
    steps, mine, theirs = np.intersect1d(first.steps, second.steps, return_indices=True)
    one, other = first.values[mine], second.values[theirs]
    good = np.isfinite(one) & np.isfinite(other)
    return steps[good], one[good], other[good]
