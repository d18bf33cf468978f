"""Says when representations shrink to a few directions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from mlflow_stability.detectors.detector import Point
from mlflow_stability.detectors.finding_type import Symptom
from mlflow_stability.detectors.streak import StreakByPlace, StreakDetector
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.result import LOWER_RATE, Action, Remedy


@dataclass(frozen=True, slots=True)
class RepresentationCollapseFacts(Facts):
    """Representations that span few directions, or are nearly identical."""

    kind: ClassVar[str] = "representation_collapse"
    metrics: ClassVar = ("effective_rank", "first", "mean_cosine")

    effective_rank: float
    """Number of directions that the outputs span."""
    first: float
    """The largest such number of the first measurements."""
    share: float
    """The threshold, as a share of `first`."""
    mean_cosine: float
    """Mean cosine similarity of the outputs, -1 to 1."""
    cosine: float
    """The threshold of that similarity."""
    place: str
    """The module."""

    def sentence(self, step: int, unit: str = "step", /) -> str:
        """``effective rank of head 1.2 at step 400 (threshold 10% of its start of 24.0); mean cosine …``."""
        where = f" of {self.place}" if self.place else ""
        return (
            f"effective rank{where} {self.effective_rank:.1f} at {unit} {step} (threshold {self.share:.0%} of its "
            f"start of {self.first:.1f}); mean cosine similarity {self.mean_cosine:.2f} (threshold {self.cosine:g})."
        )


@dataclass(slots=True)
class RepresentationCollapseState(StreakByPlace):
    """What has been seen so far of one module."""

    starts: list[float] = field(default_factory=list)
    step: int = -1
    rank: float = 0.0
    begins: bool = True
    """Whether that is still one of the first measurements."""


@dataclass(frozen=True, slots=True)
class RepresentationCollapse(StreakDetector):
    """The representations span few directions, or are nearly identical.

    What it sees: a module given in `representations=` whose effective rank is below {share:percent} of the largest of
    its first {starts} measurements, or whose outputs have a mean cosine similarity above {cosine}; in {rounds} later
    measurements in a row. The finding ends after {streak.OVER_AFTER} normal measurements.

    Why it matters: few directions distinguish few inputs. Self-supervised training that collapses still shows a good
    loss.

    What to try: check the loss terms that keep representations apart (variance, contrast), stop-gradients and
    normalisation; lower the learning rate.

    When it is wrong: layers with one direction that all outputs share, as in many language models; layers right before
    few classes. With every module of 42 healthy trainings of 14 kinds (4,140 measurements every 100 steps) it was found
    in 1, a GAN whose generator produced nearly one point for a while; measured every 10 steps in 3, all of that GAN.

    Reference: Garrido et al., RankMe (arXiv:2210.02885); Jing et al., Understanding dimensional collapse
    (arXiv:2110.09348)
    """

    share: float = 0.1
    """Share of the first effective rank below which it has collapsed."""
    starts: int = 3
    """Number of first measurements that define the start; they are not judged."""
    cosine: float = 0.95
    """Mean cosine similarity above which all outputs are nearly identical."""
    rounds: int = 2
    """Number of measurements in a row."""

    kind = "representation_collapse"
    noun = "a collapse of representations"
    plural = "collapses of representations"
    question = "Have representations collapsed?"
    check_by_hand = "Compute the mean cosine between outputs of different samples: near 1 all of them look alike."
    symptom = Symptom.INSIDE
    order = 380
    quantities = ("effective_rank", "mean_cosine")
    in_a_row = "rounds"
    remedies = (
        Remedy(Action.CHECK_TERMS_AGAINST_COLLAPSE),
        LOWER_RATE,
    )
    state_type = RepresentationCollapseState

    def takes(self, state: RepresentationCollapseState, point: Point) -> bool:
        """Take a rank in; whether it is the similarity of a measurement whose rank is known."""
        if point.quantity == "effective_rank" and point.finite:
            state.step, state.rank = point.step, point.value
            state.begins = len(state.starts) < self.starts
            if state.begins:
                state.starts.append(point.value)
        return point.quantity == "mean_cosine" and point.finite and point.step == state.step and not state.begins

    def facts(self, state: RepresentationCollapseState, point: Point) -> Facts | None:
        """Whether the rank is low, or the similarity high."""
        first = max(state.starts, default=0.0)
        if state.rank >= self.share * first and point.value <= self.cosine:
            return None
        return RepresentationCollapseFacts(state.rank, first, self.share, point.value, self.cosine, point.place)
