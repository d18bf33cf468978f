"""Says when the router of a mixture of experts sends nearly all tokens to the same experts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from mlflow_stability.detectors.detector import Point
from mlflow_stability.detectors.finding_type import Symptom
from mlflow_stability.detectors.streak import Streak, StreakDetector
from mlflow_stability.vocabulary.facts import Facts, LimitFacts
from mlflow_stability.vocabulary.result import Action, Remedy


@dataclass(frozen=True, slots=True)
class RouterCollapseFacts(LimitFacts):
    """A router that uses few experts, as their effective number."""

    kind: ClassVar[str] = "router_collapse"
    metrics: ClassVar = {
        "effective_experts": "value",
        "limit": "threshold",
        "experts": "experts",
        "router_max_share": "largest_share",
    }

    experts: float
    """Number of experts that there are."""
    largest_share: float
    """Share of the tokens that goes to one expert."""

    def sentence(self, step: int, unit: str = "step", /) -> str:
        """``router moe uses 1.1 of 8 experts at step 400 (threshold 3.3, in 3 measurements in a row); …``."""
        return (
            f"router {self.place} uses {self.value:.1f} of {self.experts:.0f} experts at {unit} {step} (threshold "
            f"{self.threshold:.1f}, in {self.in_a_row} measurements in a row); the largest share is "
            f"{self.largest_share:.0%}."
        )


@dataclass(slots=True)
class RouterCollapseState(Streak):
    """What has been seen so far of one router."""

    values: dict[str, float] = field(default_factory=dict)
    """The numbers of the measurement that is being seen."""


@dataclass(frozen=True, slots=True)
class RouterCollapse(StreakDetector):
    """A router sends nearly all tokens to the same experts.

    What it sees: the effective number of experts in use, which is exp of the entropy of their shares. With E experts of
    which each token goes to k, a collapsed router has k, an even one E. Reported is less than k + {share} (E - k) in
    {rounds} measurements in a row of at least {fewest} tokens each. The finding ends when there are more.

    Why it matters: the other experts get no gradient and learn nothing. The model is as small as the experts in use,
    and their devices do all the work.

    What to try: add a load-balancing loss, or raise its weight; add noise to the router logits early on; add a router
    z-loss; lower the learning rate of the router, or warm it up longer.

    When it is wrong: routers that are frozen or were trained before; batches of one kind of token; mixtures of two
    experts that a task does not need. No finding in 36 healthy trainings of 6 kinds (1,050 measurements).

    Reference: Fedus et al., Switch Transformers (arXiv:2101.03961)
    """

    share: float = 0.33
    """Share of the way from k to E experts below which it is a collapse."""
    rounds: int = 3
    """Number of measurements in a row."""
    fewest: int = 64
    """Minimum number of tokens of a measurement."""

    kind = "router_collapse"
    noun = "a router collapse"
    plural = "router collapses"
    question = "Has a router collapsed?"
    check_by_hand = (
        "Count the tokens of each expert over a batch: an even share is 1 / experts; look for shares above 50 %."
    )
    symptom = Symptom.INSIDE
    order = 362
    quantities = ("router_tokens", "router_experts", "router_active", "router_load_entropy", "router_max_share")
    in_a_row = "rounds"
    remedies = (
        Remedy(Action.ADD_BALANCING_LOSS),
        Remedy(Action.ADD_ROUTER_NOISE),
        Remedy(Action.LOWER_RATE_OR_LENGTHEN_WARM_UP),
    )
    state_type = RouterCollapseState

    def takes(self, state: RouterCollapseState, point: Point) -> bool:
        """Take a number of a router in; whether it is the last one of a measurement that can be judged."""
        if point.quantity != self.quantities[-1]:
            state.values[point.quantity] = point.value
            return False
        tokens, experts, _, load = self._numbers(state)
        return point.finite and tokens >= self.fewest and experts >= 2 and 0 <= load <= 1.001

    def facts(self, state: RouterCollapseState, point: Point) -> Facts | None:
        """Whether few experts are in use."""
        _, experts, active, load = self._numbers(state)
        # A soft mixture uses all experts for every token, and can collapse to one. Where tokens are dropped, those that
        # are left may go to less than one on average.
        least = max(active, 1.0) if active < experts else 1.0
        effective, limit = experts**load, least + self.share * (experts - least)
        if not effective < limit:
            return None
        return RouterCollapseFacts(effective, limit, experts, point.value, in_a_row=self.rounds, place=point.place)

    def _numbers(self, state: RouterCollapseState) -> list[float]:
        return [state.values.get(quantity, 0.0) for quantity in self.quantities[:-1]]
