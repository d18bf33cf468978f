"""Says when the heads of a layer come to look at one place alone."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import ClassVar

from mlflow_stability.detectors.detector import Detector, Point
from mlflow_stability.detectors.finding_type import Symptom
from mlflow_stability.detectors.layer_values import Heads, and_others, head_of
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.measured.signal import of_the_whole
from mlflow_stability.vocabulary.result import Action, Remedy
from mlflow_stability.vocabulary.result.finding import Finding

_RECENT = 10


@dataclass(frozen=True, slots=True)
class AttentionCollapseFacts(Facts):
    """A layer whose attention heads attend to a single position."""

    kind: ClassVar[str] = "attention_collapse"

    place: str
    """The layer."""
    entropy: float
    """Mean entropy of these heads, as a share of its maximum."""
    threshold: float
    """Share of the maximum below which a head has collapsed."""
    first: float
    """Mean of the first values of these heads."""
    heads: tuple[int, ...]
    """Numbers of the heads."""
    of_heads: int
    """Number of heads that the layer has."""
    layers: int
    """Number of layers with such heads that were found together."""

    def sentence(self, step: int, unit: str = "step", /) -> str:
        """``attention entropy of blocks.0 0.01 of its maximum at step 400 (threshold 0.05; first value 0.8), in …``."""
        return (
            f"attention entropy of {self.place} {self.entropy:.2g} of its maximum at {unit} {step} (threshold "
            f"{self.threshold:g}; first value {self.first:.2g}), in {len(self.heads)} of {self.of_heads} heads "
            f"({_in_words(self.heads)}).{and_others(self.layers - 1)}"
        )

    def numbers(self) -> dict[str, float]:
        """Entropies, and how many heads and layers have collapsed."""
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
    """What has been seen so far."""

    heads: Heads = field(default_factory=Heads)
    first_losses: list[float] = field(default_factory=list)
    recent_losses: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))
    lowest: float = math.inf
    """The lowest level of the loss at a measurement."""


@dataclass(frozen=True, slots=True)
class AttentionCollapse(Detector):
    """The attention heads of a layer attend to a single position.

    What it sees: in {rounds} measurements in a row, at least {heads:percent} of the heads of a layer with an entropy
    below {lowest:percent} of its maximum, or below {share_of_start:percent} of its first value. Heads that start below
    {born:percent} are ignored, since some attend to one position by design. They count where all heads of a layer are
    below {nothing:percent} and the loss has not fallen by {stuck:fall}. Nothing is reported where the loss has fallen
    to {gained:percent} of its start, the median of its first {start} values, and is within {risen:rise} of its lowest.
    The layer with the lowest entropy is named, each layer once until its entropy rises.

    Why it matters: a saturated softmax has almost no gradient. Queries and keys stop learning, and the loss often rises
    soon after.

    What to try: normalise queries and keys (QK-norm); lower the learning rate, or lengthen the warm-up; clip the query
    and key weights (QK-clip); add weight decay to them.

    When it is wrong: tasks that need a single position, such as copying; models in which most heads attend to the first
    token. No finding in 21 healthy trainings of 7 kinds (4,900 values of heads).

    Reference: Zhai et al., Stabilizing Transformer Training by Preventing Attention Entropy Collapse (arXiv:2303.06296)
    """

    lowest: float = 0.05
    """Share of the maximum entropy below which a head has collapsed."""
    share_of_start: float = 0.1
    """Share of its first entropy below which a head has collapsed, too."""
    born: float = 0.1
    """First entropy below which a head is ignored."""
    heads: float = 0.5
    """Minimum share of a layer's heads."""
    rounds: int = 2
    """Number of measurements in a row."""
    nothing: float = 0.001
    """Entropy below which all heads of a layer count as collapsed, whatever their first entropy, if the loss is stuck.
    """
    stuck: float = 0.98
    """Minimum share of the start at which the loss counts as stuck: of its first value and of the first {start}."""
    gained: float = 0.5
    """Share of its start at or below which the loss has fallen, so that the heads are useful."""
    risen: float = 1.05
    """Ratio to the lowest loss above which `gained` no longer applies."""
    start: int = 20
    """Number of first losses that define the start; their median counts."""

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

    def step(self, looks: AttentionCollapseState, point: Point) -> tuple[AttentionCollapseState, Finding | None]:
        """Look at the next entropy of a head; layers are judged when the step is complete."""
        layers = looks.heads.take(point, "attention_entropy")
        event = self._judged(looks, layers) if layers else None
        if point.quantity == "loss" and point.finite and of_the_whole(point.place):
            if len(looks.first_losses) < self.start:
                looks.first_losses.append(point.value)
            looks.recent_losses.append(point.value)
        return looks, event

    def _judged(self, looks: AttentionCollapseState, layers: dict[str, list[Point]]) -> Finding | None:
        state, learns = looks.heads, self._learns(looks)
        prospers = self._prospers(looks)
        narrow = {layer: [] if prospers else self._narrow(state, heads, learns) for layer, heads in layers.items()}
        told = state.lasting(layers, [layer for layer, heads in narrow.items() if heads], self.rounds)
        if not told:
            return None
        layer = min(told, key=lambda each: fmean(head.value for head in narrow[each]))
        heads = narrow[layer]
        facts = AttentionCollapseFacts(
            layer,
            fmean(head.value for head in heads),
            self.lowest,
            fmean(state.starts[head.place] for head in heads),
            tuple(sorted(head_of(head.place) for head in heads)),
            len(layers[layer]),
            len(told),
        )
        return self.finding(heads[0]._replace(place=layer), self.severities[-1], facts)

    def _learns(self, looks: AttentionCollapseState) -> bool:
        """Whether the loss has fallen, or nobody can tell yet."""
        first = looks.first_losses
        if len(first) < self.start:
            return True
        start = min(first[0], median(first))
        return start <= 0 or median(looks.recent_losses) < self.stuck * start

    def _prospers(self, looks: AttentionCollapseState) -> bool:
        """Whether the loss has come far, and is as low as it has been."""
        if len(looks.first_losses) < self.start:
            return False
        now = median(looks.recent_losses)
        looks.lowest = min(looks.lowest, now)
        return 0 <= now <= min(self.gained * median(looks.first_losses), self.risen * looks.lowest)

    def _narrow(self, state: Heads, heads: list[Point], learns: bool) -> list[Point]:
        """The heads that look at one place, if they are enough of the layer's."""
        if not learns and all(each.value < self.nothing for each in heads):
            return heads
        able = [each for each in heads if state.starts[each.place] >= self.born]
        found = [
            each
            for each in able
            if each.value < self.lowest or each.value < self.share_of_start * state.starts[each.place]
        ]
        return found if found and len(found) >= self.heads * len(heads) else []
