"""Says when the scores of attention grow out of bounds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from mlflow_stability.detectors.detector import Point
from mlflow_stability.detectors.finding_type import Instability, Symptom
from mlflow_stability.detectors.layer_values import Heads, and_others, head_of
from mlflow_stability.detectors.progress import JudgedByProgress, Progress
from mlflow_stability.vocabulary.facts import FollowedFacts
from mlflow_stability.vocabulary.result import Action, Remedy
from mlflow_stability.vocabulary.result.finding import Finding


@dataclass(frozen=True, slots=True)
class AttentionLogitGrowthFacts(FollowedFacts):
    """A layer whose attention logits have grown too large."""

    kind: ClassVar[str] = "attention_logit_growth"
    metrics: ClassVar = {"attention_max_logit": "value", "start": "first", "layers": "layers"}

    place: str
    """The layer."""
    head: int
    """Number of its head with the largest logit."""
    value: float
    """The largest logit of that head."""
    threshold: float
    """The logit above which it is too large."""
    first: float
    """The largest logit of that head in the first measurement."""
    layers: int
    """Number of layers with such heads that were found together."""

    def statement(self, step: int, unit: str, /) -> str:
        """``largest attention logit of blocks.0, head 1: 130 at step 400 (threshold 100; first value 5.1).``"""
        return (
            f"largest attention logit of {self.place}, head {self.head}: {self.value:.3g} at {unit} {step} "
            f"(threshold {self.threshold:g}; first value {self.first:.3g}).{and_others(self.layers - 1)}"
        )


@dataclass(slots=True)
class AttentionLogitGrowthState:
    """What has been seen so far."""

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

    limit: float = 100.0
    """Logit above which it is too large, with `more`."""
    more: float = 2.0
    """Minimum ratio to the first value for `limit`."""
    growth: float = 10.0
    """Ratio to the first value above which it is too large, with `floor`."""
    floor: float = 50.0
    """Minimum logit for `growth`."""
    rounds: int = 2
    """Number of measurements in a row."""

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
        """Whether a place is still bad."""
        return bool(state.heads.well)

    def look(self, state: AttentionLogitGrowthState, point: Point) -> Finding | None:
        """Look at the next largest score of a head; layers are judged when the step is complete."""
        layers = state.heads.take(point, "attention_max_logit")
        return self._judged(state.heads, layers) if layers else None

    def _judged(self, state: Heads, layers: dict[str, list[Point]]) -> Finding | None:
        largest = {layer: max(heads, key=lambda each: each.value) for layer, heads in layers.items()}
        wrong = [layer for layer, heads in layers.items() if any(self._grown(state, each) for each in heads)]
        told = state.lasting(layers, wrong, self.rounds)
        if not told:
            return None
        layer = max(told, key=lambda each: largest[each].value)
        head = max((each for each in layers[layer] if self._grown(state, each)), key=lambda each: each.value)
        first = state.starts[head.place]
        facts = AttentionLogitGrowthFacts(layer, head_of(head.place), head.value, self.limit, first, len(told))
        return self.finding(head._replace(place=layer), self.severities[-1], facts)

    def _grown(self, state: Heads, head: Point) -> bool:
        start = max(state.starts[head.place], 0.0)
        if head.value > self.limit and head.value > self.more * start:
            return True
        return head.value > self.floor and head.value > self.growth * start
