"""Detect attention heads that collapse, and logits that grow."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import ClassVar

from mlflow_stability.detectors.detector import Detector, Point
from mlflow_stability.detectors.finding_type import Instability, Symptom
from mlflow_stability.detectors.layer_values import LayerRound, and_others
from mlflow_stability.detectors.progress import JudgedByProgress, Progress
from mlflow_stability.vocabulary.facts import Facts, FollowedFacts
from mlflow_stability.vocabulary.measured.signal import is_whole_model
from mlflow_stability.vocabulary.result import Action, Finding, Remedy

RECENT_LOSSES = 10  # number of last losses whose median is the present loss
_HEAD = ".head_"


@dataclass(slots=True)
class Heads:
    """The heads of a model, called `blocks.3.attn.head_0`, by layer."""

    round: LayerRound = field(default_factory=LayerRound)
    starts: dict[str, float] = field(default_factory=dict)  # the first value of each head
    bad: dict[str, int] = field(default_factory=dict)  # number of bad measurements in a row, by layer
    good: dict[str, int] = field(default_factory=dict)  # number of good measurements in a row, by layer reported

    def take(self, point: Point, quantity: str) -> dict[str, list[Point]]:
        """Take a point; return the heads of the step before by layer, once this point shows that it is complete."""
        layers: dict[str, list[Point]] = {}
        if not self.round.points and point.quantity != quantity:
            return layers
        for head in self.round.take(point, quantity):
            layer, _, number = head.place.rpartition(_HEAD)
            if layer and number.isdigit() and head.finite:
                self.starts.setdefault(head.place, head.value)
                layers.setdefault(layer, []).append(head)
        return layers

    def newly_bad(self, layers: Iterable[str], bad: Iterable[str], rounds: int) -> list[str]:
        """Return the layers that were bad in this many measurements in a row, each once until it is good as long."""
        bad, new = set(bad), []
        for layer in layers:
            if layer not in bad:
                self.bad.pop(layer, None)
                if layer in self.good:
                    self.good[layer] += 1
                    if self.good[layer] >= rounds:
                        del self.good[layer]
                continue
            self.bad[layer] = self.bad.get(layer, 0) + 1
            if layer in self.good:
                self.good[layer] = 0
            elif self.bad[layer] >= rounds:
                self.good[layer] = 0
                new.append(layer)
        return new


def _number_of(head: Point) -> int:
    return int(head.place.rpartition(_HEAD)[2])


@dataclass(frozen=True, slots=True)
class AttentionCollapseFacts(Facts):
    kind: ClassVar[str] = "attention_collapse"

    place: str  # The layer
    entropy: float  # Mean entropy of these heads, as a share of its maximum
    threshold: float  # Share of the maximum below which a head has collapsed
    first: float  # Mean of the first values of these heads
    heads: tuple[int, ...]  # Numbers of the heads
    of_heads: int  # Number of heads that the layer has
    layers: int  # Number of layers with such heads that were found together

    def sentence(self, step: int, unit: str = "step", /) -> str:
        return (
            f"attention entropy of {self.place} {self.entropy:.2g} of its maximum at {unit} {step} (threshold "
            f"{self.threshold:g}; first value {self.first:.2g}), in {len(self.heads)} of {self.of_heads} heads "
            f"({_in_words(self.heads)}).{and_others(self.layers - 1)}"
        )

    def numbers(self) -> dict[str, float]:
        counts = {"heads": float(len(self.heads)), "layers": float(self.layers)}
        return {"attention_entropy": self.entropy, "start": self.first, **counts}


def _in_words(heads: tuple[int, ...]) -> str:
    """``head 3``, ``heads 0, 1 and 3``."""
    if len(heads) == 1:
        return f"head {heads[0]}"
    if len(heads) > 8:
        return f"{len(heads)} heads"
    return f"heads {', '.join(map(str, heads[:-1]))} and {heads[-1]}"


@dataclass(slots=True)
class AttentionCollapseState:
    heads: Heads = field(default_factory=Heads)
    first_losses: list[float] = field(default_factory=list)
    recent_losses: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_LOSSES))
    lowest: float = math.inf  # the lowest level of the loss at a measurement


@dataclass(frozen=True, slots=True)
class AttentionCollapse(Detector):
    """The attention heads of a layer attend to a single position.

    What it sees: in {rounds} measurements in a row, at least {heads:percent} of the heads of a layer with an entropy
    below {lowest:percent} of its maximum, or below {share_of_start:percent} of its first value. Heads that start below
    {min_start:percent} are ignored, since some attend to one position by design. They count where all heads of a layer
    are below {nothing:percent} and the loss has not fallen by {stuck:fall}. Nothing is reported where the loss has
    fallen to {gained:percent} of its start, the median of its first {start} values, and is within {risen:rise} of its
    lowest. The layer with the lowest entropy is named, each layer once until its entropy rises.

    Why it matters: a saturated softmax has almost no gradient. Queries and keys stop learning, and the loss often rises
    soon after.

    What to try: normalise queries and keys (QK-norm); lower the learning rate, or lengthen the warm-up; clip the query
    and key weights (QK-clip); add weight decay to them.

    When it is wrong: tasks that need a single position, such as copying; models in which most heads attend to the first
    token. No finding in 21 healthy trainings of 7 kinds (4,900 values of heads).

    Reference: Zhai et al., Stabilizing Transformer Training by Preventing Attention Entropy Collapse (arXiv:2303.06296)
    """

    lowest: float = 0.05  # share of the maximum entropy below which a head has collapsed
    share_of_start: float = 0.1  # share of its first entropy below which a head has collapsed, too
    min_start: float = 0.1  # first entropy below which a head is ignored
    heads: float = 0.5  # minimum share of a layer's heads
    rounds: int = 2  # number of measurements in a row
    nothing: float = 0.001  # entropy below which all heads of a layer are collapsed in any case, if the loss is stuck
    stuck: float = 0.98
    """Minimum share of the start at which the loss counts as stuck: of its first value and of the first {start}."""
    gained: float = 0.5  # share of its start at or below which the loss has fallen, so that the heads are useful
    risen: float = 1.05  # ratio to the lowest loss above which `gained` no longer applies
    start: int = 20  # number of first losses that define the start; their median counts

    kind = "attention_collapse"
    noun = "an attention collapse"
    plural = "attention collapses"
    question = "Has the attention of a layer collapsed?"
    check_by_hand = "Draw the attention maps of one batch, all heads: look for single columns or a bare diagonal."
    symptom = Symptom.INSIDE
    order = 290
    quantities = ("loss", "attention_entropy")
    across_places = True
    remedies = (
        Remedy(Action.NORMALISE_QUERIES_AND_KEYS),
        Remedy(Action.LOWER_RATE_OR_LENGTHEN_WARM_UP),
        Remedy(Action.CLIP_OR_DECAY_QUERIES_AND_KEYS),
    )
    state_type = AttentionCollapseState

    def step(self, state: AttentionCollapseState, point: Point) -> tuple[AttentionCollapseState, Finding | None]:
        layers = state.heads.take(point, "attention_entropy")
        event = self._judge(state, layers) if layers else None
        if point.quantity == "loss" and point.finite and is_whole_model(point.place):
            if len(state.first_losses) < self.start:
                state.first_losses.append(point.value)
            state.recent_losses.append(point.value)
        return state, event

    def _judge(self, state: AttentionCollapseState, layers: dict[str, list[Point]]) -> Finding | None:
        starts = state.heads.starts
        is_low, is_stuck = self._is_low(state), self._is_stuck(state)
        collapsed = {
            layer: [] if is_low else self._collapsed(starts, heads, is_stuck) for layer, heads in layers.items()
        }
        new = state.heads.newly_bad(layers, [layer for layer, heads in collapsed.items() if heads], self.rounds)
        if not new:
            return None
        layer = min(new, key=lambda layer: fmean(head.value for head in collapsed[layer]))
        heads = collapsed[layer]
        facts = AttentionCollapseFacts(
            layer,
            fmean(head.value for head in heads),
            self.lowest,
            fmean(starts[head.place] for head in heads),
            tuple(sorted(map(_number_of, heads))),
            len(layers[layer]),
            len(new),
        )
        return self.finding(heads[0]._replace(place=layer), self.severities[-1], facts)

    def _is_stuck(self, state: AttentionCollapseState) -> bool:
        """Whether the loss is known not to have fallen."""
        first = state.first_losses
        if len(first) < self.start:
            return False
        start = min(first[0], median(first))
        return start > 0 and median(state.recent_losses) >= self.stuck * start

    def _is_low(self, state: AttentionCollapseState) -> bool:
        """Whether the loss has fallen far, and is near its lowest level."""
        if len(state.first_losses) < self.start:
            return False
        now = median(state.recent_losses)
        state.lowest = min(state.lowest, now)
        return 0 <= now <= min(self.gained * median(state.first_losses), self.risen * state.lowest)

    def _collapsed(self, starts: dict[str, float], heads: list[Point], is_stuck: bool) -> list[Point]:
        """Return the heads that attend to a single position, if they are a large enough share of the layer's."""
        if is_stuck and all(head.value < self.nothing for head in heads):
            return heads
        collapsed = [
            head
            for head in heads
            if starts[head.place] >= self.min_start
            and (head.value < self.lowest or head.value < self.share_of_start * starts[head.place])
        ]
        return collapsed if len(collapsed) >= self.heads * len(heads) else []


@dataclass(frozen=True, slots=True)
class AttentionLogitGrowthFacts(FollowedFacts):
    kind: ClassVar[str] = "attention_logit_growth"
    metrics: ClassVar = {"attention_max_logit": "value", "start": "first", "layers": "layers"}

    place: str  # The layer
    head: int  # Number of its head with the largest logit
    value: float  # The largest logit of that head
    threshold: float  # The logit above which it is too large
    first: float  # The largest logit of that head in the first measurement
    layers: int  # Number of layers with such heads that were found together

    def statement(self, step: int, unit: str, /) -> str:
        return (
            f"largest attention logit of {self.place}, head {self.head}: {self.value:.3g} at {unit} {step} "
            f"(threshold {self.threshold:g}; first value {self.first:.3g}).{and_others(self.layers - 1)}"
        )


@dataclass(slots=True)
class AttentionLogitGrowthState:
    heads: Heads = field(default_factory=Heads)
    progress: Progress = field(default_factory=Progress)


@dataclass(frozen=True, slots=True)
class AttentionLogitGrowth(JudgedByProgress):
    """The attention logits have grown too large.

    What it sees: in {rounds} measurements in a row, a head whose largest logit before the softmax is above {limit} and
    {more} times its first value. Or one above {floor} and {growth} times its first value. The head with the largest
    logit is named, each layer once until its logits are lower. It is INFO while the loss falls, and a warning where the
    loss is above {progress.FALLEN:percent} of its start or at {progress.RISEN} times its lowest level.

    Why it matters: logits that grow keep growing. The softmax saturates, gradients vanish or jump, and in half
    precision the logits overflow.

    What to try: normalise queries and keys (QK-norm); clip their weights when logits are too large (QK-clip); lower the
    learning rate, or lengthen the warm-up; add weight decay.

    When it is wrong: models that do not divide logits by the square root of the head size, or that were trained to
    large logits before. No finding in 21 healthy trainings of 7 kinds (4,900 values of heads).

    Reference: Wortsman et al., Small-scale proxies for large-scale Transformer instabilities (arXiv:2309.14322)
    """

    limit: float = 100.0  # logit above which it is too large, with `more`
    more: float = 2.0  # minimum ratio to the first value for `limit`
    growth: float = 10.0  # ratio to the first value above which it is too large, with `floor`
    floor: float = 50.0  # minimum logit for `growth`
    rounds: int = 2  # number of measurements in a row

    kind = "attention_logit_growth"
    instability = Instability.SIGN
    noun = "growing attention scores"
    question = "Did attention logits grow?"
    check_by_hand = "Print (q @ k.T / sqrt(d)).abs().max() by layer: above {floor} the softmax passes no gradient."
    symptom = Symptom.INSIDE
    order = 300
    quantities = ("loss", "attention_max_logit")
    across_places = True
    remedies = (
        Remedy(Action.NORMALISE_QUERIES_AND_KEYS),
        Remedy(Action.CLIP_QUERIES_AND_KEYS),
        Remedy(Action.LOWER_RATE_OR_LENGTHEN_WARM_UP),
    )
    state_type = AttentionLogitGrowthState

    def goes_on(self, state: AttentionLogitGrowthState) -> bool:
        return bool(state.heads.good)

    def look(self, state: AttentionLogitGrowthState, point: Point) -> Finding | None:
        layers = state.heads.take(point, "attention_max_logit")
        return self._judge(state.heads, layers) if layers else None

    def _judge(self, heads: Heads, layers: dict[str, list[Point]]) -> Finding | None:
        grown = {
            layer: [head for head in of_layer if self._has_grown(head, heads.starts[head.place])]
            for layer, of_layer in layers.items()
        }
        new = heads.newly_bad(layers, [layer for layer, of_layer in grown.items() if of_layer], self.rounds)
        if not new:
            return None
        layer = max(new, key=lambda layer: max(head.value for head in layers[layer]))
        head = max(grown[layer], key=lambda head: head.value)
        facts = AttentionLogitGrowthFacts(
            layer, _number_of(head), head.value, self.limit, heads.starts[head.place], len(new)
        )
        return self.finding(head._replace(place=layer), self.severities[-1], facts)

    def _has_grown(self, head: Point, first: float) -> bool:
        start = max(first, 0.0)
        return (head.value > self.limit and head.value > self.more * start) or (
            head.value > self.floor and head.value > self.growth * start
        )
