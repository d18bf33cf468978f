"""Says when the heads of a layer come to look at one place alone."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from statistics import fmean, median

from mlflow_stability.detectors.engine.detector import Detector, Point
from mlflow_stability.detectors.engine.finding import finding
from mlflow_stability.detectors.engine.layer_values import Heads, and_others, heads_in_words
from mlflow_stability.vocabulary.measured.signal import of_the_whole
from mlflow_stability.vocabulary.result.event import Event

_RECENT = 10


@dataclass(slots=True)
class Looks:
    """What has been seen so far."""

    heads: Heads = field(default_factory=Heads)
    first_losses: list[float] = field(default_factory=list)
    recent_losses: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))
    lowest: float = math.inf
    """The lowest level of the loss at a measurement."""


@dataclass(frozen=True, slots=True)
class AttentionCollapse(Detector):
    """The heads of a layer have come to look at one place alone.

    What it sees: in 2 measurements in a row at least half of the heads of a layer with an entropy below 0.05 of what it
    could be, or below a tenth of what it was at first. Heads that began below 0.1 are left out: some are made to look
    at one place; but not where all heads of a layer are below 0.001 while the loss is no lower than 0.98 of its start.
    A loss that has fallen to half of its start and is no higher than it was is what the heads were to learn.
    The layer with the lowest entropy is named, each layer once until it looks around again.

    Why it matters: a softmax that is saturated has next to no gradient: queries and keys stop learning, and the loss
    often rises soon after.

    What to try: normalise queries and keys (QK-norm); lower the learning rate, or lengthen the warm-up; clip the
    weights of queries and keys (QK-clip); decay those weights.

    When it is wrong: tasks in which one look is all it takes, such as copying; models in which most heads rest on the
    first token. It spoke in none of 21 healthy trainings of 7 kinds (4,900 values of heads).

    Reference: Zhai et al., Stabilizing Transformer Training by Preventing Attention Entropy Collapse (arXiv:2303.06296)
    """

    lowest: float = 0.05
    """The share of the largest possible entropy below which a head looks at one place."""
    share_of_start: float = 0.1
    """The share of its own first entropy below which it does so, too."""
    born: float = 0.1
    """The first entropy below which a head is left out."""
    heads: float = 0.5
    """Of which share of a layer's heads at least."""
    rounds: int = 2
    """In how many measurements in a row."""
    nothing: float = 0.001
    """The entropy below which all heads of a layer, however they began, look at one place ..."""
    stuck: float = 0.98
    """... where the loss is at this share of its start or above: of its first value and of the first 20."""
    gained: float = 0.5
    """The share of its start at or below which a loss has fallen: what the heads learnt meanwhile is of use, ..."""
    risen: float = 1.05
    """... unless it is above so many times its lowest level."""
    start: int = 20
    """How many first losses are the start; their median counts."""

    kind = "attention_collapse"
    noun = "an attention collapse"
    plural = "attention collapses"
    order = 290
    quantities = ("loss", "attention_entropy")
    across_places = True
    remedies = (
        "Normalise queries and keys (QK-norm).",
        "Lower the learning rate, or lengthen the warm-up.",
        "Clip or decay the weights of queries and keys.",
    )
    state_type = Looks

    def step(self, looks: Looks, point: Point) -> tuple[Looks, Event | None]:
        """Look at the next entropy of a head; layers are judged when the step is complete."""
        layers = looks.heads.take(point, "attention_entropy")
        event = self._judged(looks, layers) if layers else None
        if point.quantity == "loss" and point.finite and of_the_whole(point.place):
            if len(looks.first_losses) < self.start:
                looks.first_losses.append(point.value)
            looks.recent_losses.append(point.value)
        return looks, event

    def _judged(self, looks: Looks, layers: dict[str, list[Point]]) -> Event | None:
        state, learns = looks.heads, self._learns(looks)
        prospers = self._prospers(looks)
        narrow = {layer: [] if prospers else self._narrow(state, heads, learns) for layer, heads in layers.items()}
        told = state.lasting(layers, [layer for layer, heads in narrow.items() if heads], self.rounds)
        if not told:
            return None
        layer = min(told, key=lambda each: fmean(head.value for head in narrow[each]))
        heads = narrow[layer]
        entropy, start = fmean(each.value for each in heads), fmean(state.starts[each.place] for each in heads)
        return finding(
            self,
            heads[0]._replace(place=layer),
            self.severities[-1],
            f"{len(heads)} of {len(layers[layer])} heads of {layer} ({heads_in_words(each.place for each in heads)}) "
            f"look at one place alone: their entropy is {entropy:.2g} of what it could be at step {heads[0].step}; it "
            f"was {start:.2g}.{and_others(len(told) - 1)}",
            {"attention_entropy": entropy, "start": start, "heads": float(len(heads)), "layers": float(len(told))},
        )

    def _learns(self, looks: Looks) -> bool:
        """Whether the loss has fallen, or nobody can tell yet."""
        first = looks.first_losses
        if len(first) < self.start:
            return True
        start = min(first[0], median(first))
        return start <= 0 or median(looks.recent_losses) < self.stuck * start

    def _prospers(self, looks: Looks) -> bool:
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
