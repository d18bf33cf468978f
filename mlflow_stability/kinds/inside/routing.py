"""Detect collapsed routers and dead experts of mixtures of experts."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import ClassVar

from mlflow_stability.detectors.detector import Detector, Point
from mlflow_stability.detectors.finding_type import Symptom
from mlflow_stability.detectors.layer_values import LayerRound, and_others
from mlflow_stability.detectors.streak import Streak, StreakDetector
from mlflow_stability.vocabulary.facts import Facts, LimitFacts, times_beyond
from mlflow_stability.vocabulary.result import Action, Finding, Remedy, Severity
from mlflow_stability.vocabulary.text.phrases import some_of


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

    experts: float  # Number of experts that there are
    largest_share: float  # Share of the tokens that goes to one expert

    def sentence(self, step: int, unit: str = "step", /) -> str:
        return (
            f"router {self.place} uses {self.value:.1f} of {self.experts:.0f} experts at {unit} {step} (threshold "
            f"{self.threshold:.1f}, in {self.in_a_row} measurements in a row); the largest share is "
            f"{self.largest_share:.0%}."
        )


@dataclass(slots=True)
class RouterCollapseState(Streak):
    values: dict[str, float] = field(default_factory=dict)  # the values of the current measurement


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

    share: float = 0.33  # share of the way from k to E experts below which it is a collapse
    rounds: int = 3  # number of measurements in a row
    fewest: int = 64  # minimum number of tokens of a measurement

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
        if point.quantity != self.quantities[-1]:
            state.values[point.quantity] = point.value
            return False
        tokens, experts, _, load = self._numbers(state)
        return point.finite and tokens >= self.fewest and experts >= 2 and 0 <= load <= 1.001

    def facts(self, state: RouterCollapseState, point: Point) -> Facts | None:
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


_EXPERT = ".expert_"


@dataclass(frozen=True, slots=True)
class DeadExpertFacts(Facts):
    kind: ClassVar[str] = "dead_expert"

    place: str  # The router
    dead: tuple[str, ...]  # Numbers of these experts
    experts: float  # Number of experts that there are
    threshold: float  # The share of an even load below which an expert is dead
    first_step: int  # The step of the first of the measurements that are taken together
    routers: int  # Number of routers with such experts

    @property
    def exceeds(self) -> float | None:
        return times_beyond(len(self.dead), self.threshold)

    def sentence(self, step: int, unit: str = "step", /) -> str:
        named = some_of(self.dead, 8)
        return (
            f"{len(self.dead)} of {self.experts:.0f} experts of {self.place} got less than {self.threshold:.0%} of an "
            f"even share from {unit} {self.first_step} to {unit} {step}: {named}.{and_others(self.routers - 1)}"
        )

    def numbers(self) -> dict[str, float]:
        return {"dead_experts": float(len(self.dead)), "experts": self.experts, "limit": self.threshold}


@dataclass(slots=True)
class DeadExpertState:
    round: LayerRound = field(default_factory=LayerRound)
    routers: dict[str, dict[str, float]] = field(default_factory=dict)  # the last quantities of each router, by name
    loads: dict[str, deque[tuple[int, float, float]]] = field(default_factory=dict)
    """Of each expert the last measurements: step, tokens, and tokens of an even share."""
    dead: set[str] = field(default_factory=set)
    reported: int = 0  # number of dead experts in the last finding


@dataclass(frozen=True, slots=True)
class DeadExpert(Detector):
    """An expert gets no tokens.

    What it sees: an expert that got less than {share:percent} of an even share in {rounds} or more measurements
    together, over at least {steps} steps, in which an even share is at least {fewest} tokens. It is a WARNING where
    {many:percent} of the experts of a router is dead, else INFO. The router with most of them is named. The
    finding is repeated when twice as many experts are dead.

    Why it matters: the expert gets no gradient. Its weights take memory and learn nothing, and it rarely comes back.

    What to try: add a load-balancing loss, or raise its weight; add noise to the router logits; raise the capacity
    factor where tokens are dropped; restart dead experts from a copy of one in use.

    When it is wrong: experts for rare tokens, of which these batches have none; more experts than the task needs. No
    WARNING in 36 healthy trainings of 6 kinds (1,050 measurements).

    Reference: Shazeer et al., Outrageously large neural networks (arXiv:1701.06538)
    """

    share: float = 0.02  # share of an even load below which an expert is dead
    rounds: int = 5  # minimum number of measurements that are taken together
    steps: int = 200  # minimum number of steps between the first and the last of them
    fewest: float = 50.0  # minimum even share of an expert in them, in tokens
    many: float = 0.1  # minimum share of a router's experts for a WARNING

    kind = "dead_expert"
    noun = "a dead expert"
    plural = "dead experts"
    question = "Do some experts get no tokens?"
    check_by_hand = "Sum the counts of 100 batches by expert: below {share:percent} of an even share an expert is dead."
    symptom = Symptom.INSIDE
    order = 364
    quantities = ("loss", "router_tokens", "router_experts", "router_active", "router_share")
    across_places = True
    severities = (Severity.INFO, Severity.WARNING)
    remedies = (Remedy(Action.ADD_BALANCING_LOSS), Remedy(Action.ADD_ROUTER_NOISE), Remedy(Action.RESTART_DEAD_EXPERTS))
    state_type = DeadExpertState

    def step(self, state: DeadExpertState, point: Point) -> tuple[DeadExpertState, Finding | None]:
        shares = state.round.take(point, "router_share")
        event = self._judge(state, shares) if shares else None
        if point.quantity.startswith("router_") and point.quantity != "router_share":
            state.routers.setdefault(point.place, {})[point.quantity] = point.value
        return state, event

    def _judge(self, state: DeadExpertState, shares: list[Point]) -> Finding | None:
        for share in shares:
            self._count(state, share)
        if len(state.dead) < max(1, 2 * state.reported):
            state.reported = min(state.reported, len(state.dead))
            return None
        state.reported = len(state.dead)
        by_router: dict[str, list[str]] = {}
        for expert in sorted(state.dead, key=lambda name: (len(name), name)):
            by_router.setdefault(expert.rpartition(_EXPERT)[0], []).append(expert)
        router = max(by_router, key=lambda name: len(by_router[name]))
        dead, experts = by_router[router], state.routers.get(router, {}).get("router_experts", 0.0)
        first_step = min(state.loads[expert][0][0] for expert in dead)
        numbers = tuple(expert.rpartition("_")[2] for expert in dead)
        severity = self.severities[-1] if len(dead) >= self.many * experts else self.severities[0]
        facts = DeadExpertFacts(router, numbers, experts, self.share, first_step, len(by_router))
        return self.finding(shares[0]._replace(place=router), severity, facts)

    def _count(self, state: DeadExpertState, share: Point) -> None:
        router = state.routers.get(share.place.rpartition(_EXPERT)[0], {})
        tokens, experts, active = (router.get(quantity, 0.0) for quantity in self.quantities[1:4])
        if not share.finite or not tokens or not experts:
            return
        choices = tokens * (active if active < experts else 1.0)
        loads = state.loads.setdefault(share.place, deque())
        loads.append((share.step, share.value * choices, choices / experts))
        while len(loads) > self.rounds and share.step - loads[1][0] >= self.steps:
            loads.popleft()
        even = sum(even_share for _, _, even_share in loads)
        is_dead = sum(tokens for _, tokens, _ in loads) < self.share * even
        if not is_dead:
            state.dead.discard(share.place)
        elif len(loads) >= self.rounds and even >= self.fewest and share.step - loads[0][0] >= self.steps:
            state.dead.add(share.place)
