"""Says when an expert of a mixture gets no tokens."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import ClassVar

from mlflow_stability.detectors.detector import Detector, Point
from mlflow_stability.detectors.finding_type import Symptom
from mlflow_stability.detectors.layer_values import LayerRound, and_others
from mlflow_stability.vocabulary.facts import Facts, times_beyond
from mlflow_stability.vocabulary.result import Action, Remedy
from mlflow_stability.vocabulary.result.finding import Finding
from mlflow_stability.vocabulary.result.severity import Severity

_EXPERT = ".expert_"


@dataclass(frozen=True, slots=True)
class DeadExpertFacts(Facts):
    """Experts of a router that get no tokens."""

    kind: ClassVar[str] = "dead_expert"

    place: str
    """The router."""
    dead: tuple[str, ...]
    """Numbers of these experts."""
    experts: float
    """Number of experts that there are."""
    threshold: float
    """The share of an even load below which an expert is dead."""
    first_step: int
    """The step of the first of the measurements that are taken together."""
    routers: int
    """Number of routers with such experts."""

    @property
    def exceeds(self) -> float | None:
        """How sure it is; the more experts, the surer."""
        return times_beyond(len(self.dead), self.threshold)

    def sentence(self, step: int, unit: str = "step", /) -> str:
        """``2 of 8 experts of moe got less than 2% of an even share from step 100 to step 400: 3, 5.``"""
        named = ", ".join(self.dead[:8]) + (f" and {len(self.dead) - 8} more" if len(self.dead) > 8 else "")
        return (
            f"{len(self.dead)} of {self.experts:.0f} experts of {self.place} got less than {self.threshold:.0%} of an "
            f"even share from {unit} {self.first_step} to {unit} {step}: {named}.{and_others(self.routers - 1)}"
        )

    def numbers(self) -> dict[str, float]:
        """How many experts are dead, of how many."""
        return {"dead_experts": float(len(self.dead)), "experts": self.experts, "limit": self.threshold}


@dataclass(slots=True)
class DeadExpertState:
    """What has been seen so far."""

    round: LayerRound = field(default_factory=LayerRound)
    routers: dict[str, dict[str, float]] = field(default_factory=dict)
    """The last sizes of each router."""
    got: dict[str, deque[tuple[int, float, float]]] = field(default_factory=dict)
    """Of each expert the step of the last measurements, how often it was chosen, and how often each was on average."""
    dead: set[str] = field(default_factory=set)
    told: int = 0
    """How many dead experts were told of last."""


@dataclass(frozen=True, slots=True)
class DeadExpert(Detector):
    """An expert gets no tokens.

    What it sees: an expert that got less than {share:percent} of an even share in {rounds} or more measurements
    together, over at least {steps} steps, in which an even share is at least {fewest} tokens. It is a WARNING where
    {many:percent} of the experts of a router is dead, else INFO. The router with most of them is named. Told again are
    twice as many dead experts.

    Why it matters: the expert gets no gradient. Its weights take memory and learn nothing, and it rarely comes back.

    What to try: add a load-balancing loss, or raise its weight; add noise to the router logits; raise the capacity
    factor where tokens are dropped; start dead experts anew from a copy of one in use.

    When it is wrong: experts for rare tokens, of which these batches have none; more experts than the task needs. No
    WARNING in 36 healthy trainings of 6 kinds (1,050 measurements).

    Reference: Shazeer et al., Outrageously large neural networks (arXiv:1701.06538)
    """

    share: float = 0.02
    """Share of an even load below which an expert is dead."""
    rounds: int = 5
    """Minimum number of measurements that are taken together."""
    steps: int = 200
    """Minimum number of steps between the first and the last of them."""
    fewest: float = 50.0
    """Minimum even share of an expert in them, in tokens."""
    many: float = 0.1
    """Share of the experts of a router from which on it is a WARNING."""

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
    remedies = (
        Remedy(Action.ADD_BALANCING_LOSS),
        Remedy(Action.ADD_ROUTER_NOISE),
        Remedy(Action.RESTART_DEAD_EXPERTS),
    )
    state_type = DeadExpertState

    def step(self, state: DeadExpertState, point: Point) -> tuple[DeadExpertState, Finding | None]:
        """Look at the next number; experts are judged when the step is complete."""
        shares = state.round.take(point, "router_share")
        event = self._judge(state, shares) if shares else None
        if point.quantity.startswith("router_") and point.quantity != "router_share":
            state.routers.setdefault(point.place, {})[point.quantity] = point.value
        return state, event

    def _judge(self, state: DeadExpertState, shares: list[Point]) -> Finding | None:
        for each in shares:
            self._count(state, each)
        by_router: dict[str, list[str]] = {}
        for expert in sorted(state.dead, key=lambda name: (len(name), name)):
            by_router.setdefault(expert.rpartition(_EXPERT)[0], []).append(expert)
        if len(state.dead) < max(1, 2 * state.told):
            state.told = min(state.told, len(state.dead))
            return None
        state.told = len(state.dead)
        router = max(by_router, key=lambda name: len(by_router[name]))
        dead, experts = by_router[router], state.routers.get(router, {}).get("router_experts", 0.0)
        first = min(state.got[each][0][0] for each in dead)
        numbers = tuple(expert.rpartition("_")[2] for expert in dead)
        severity = self.severities[-1] if len(dead) >= self.many * experts else self.severities[0]
        facts = DeadExpertFacts(router, numbers, experts, self.share, first, len(by_router))
        return self.finding(shares[0]._replace(place=router), severity, facts)

    def _count(self, state: DeadExpertState, share: Point) -> None:
        sizes = state.routers.get(share.place.rpartition(_EXPERT)[0], {})
        tokens, experts, active = (sizes.get(each, 0.0) for each in self.quantities[1:4])
        if not share.finite or not tokens or not experts:
            return
        choices = tokens * (active if active < experts else 1.0)
        got = state.got.setdefault(share.place, deque())
        got.append((share.step, share.value * choices, choices / experts))
        while len(got) > self.rounds and share.step - got[1][0] >= self.steps:
            got.popleft()
        even = sum(each for _, _, each in got)
        few = sum(each for _, each, _ in got) < self.share * even
        if not few:
            state.dead.discard(share.place)
        elif len(got) >= self.rounds and even >= self.fewest and share.step - got[0][0] >= self.steps:
            state.dead.add(share.place)
