"""Says when the scores of attention grow out of bounds."""

from __future__ import annotations

from dataclasses import dataclass

from mlflow_stability.detectors.engine.detector import Detector, Point
from mlflow_stability.detectors.engine.finding import finding
from mlflow_stability.detectors.engine.layer_values import Heads, and_others, head_of
from mlflow_stability.vocabulary.result.event import Event


@dataclass(frozen=True, slots=True)
class AttentionLogitGrowth(Detector):
    """The scores of attention have grown out of bounds.

    What it sees: in 2 measurements in a row a head whose largest score before the softmax is above 100 and twice what
    it was at first, or ten times what it was at first and above 50. The head with the largest score is named, each
    layer once until its scores are lower again.

    Why it matters: scores that grow go on growing: the softmax saturates, gradients vanish or leap, and in half
    precision the scores themselves overflow.

    What to try: normalise queries and keys (QK-norm); clip their weights when scores are too large (QK-clip); lower the
    learning rate, or lengthen the warm-up; decay the weights.

    When it is wrong: models that do not divide scores by the root of their width, or that were trained to large scores
    before. It spoke in none of 21 healthy trainings of 7 kinds (4,900 values of heads).

    Reference: Wortsman et al., Small-scale proxies for large-scale Transformer instabilities (arXiv:2309.14322)
    """

    limit: float = 100.0
    """A score above which it is out of bounds, ..."""
    more: float = 2.0
    """... where it is so many times the first one."""
    growth: float = 10.0
    """Or so many times the first one, ..."""
    floor: float = 50.0
    """... where it is above this."""
    rounds: int = 2
    """In how many measurements in a row."""

    kind = "attention_logit_growth"
    noun = "growing attention scores"
    order = 300
    quantities = ("loss", "attention_max_logit")
    across_places = True
    remedies = (
        "Normalise queries and keys (QK-norm).",
        "Clip the weights of queries and keys when scores are too large (QK-clip).",
        "Lower the learning rate, or lengthen the warm-up.",
    )
    state_type = Heads

    def step(self, state: Heads, point: Point) -> tuple[Heads, Event | None]:
        """Look at the next largest score of a head; layers are judged when the step is complete."""
        layers = state.take(point, "attention_max_logit")
        if not layers:
            return state, None
        largest = {layer: max(heads, key=lambda each: each.value) for layer, heads in layers.items()}
        wrong = [layer for layer, heads in layers.items() if any(self._grown(state, each) for each in heads)]
        told = state.lasting(layers, wrong, self.rounds)
        if not told:
            return state, None
        layer = max(told, key=lambda each: largest[each].value)
        head = max((each for each in layers[layer] if self._grown(state, each)), key=lambda each: each.value)
        start = state.starts[head.place]
        return state, finding(
            self,
            head._replace(place=layer),
            self.severities[-1],
            f"The largest score of head {head_of(head.place)} of {layer} is {head.value:.3g} at step {head.step}; it "
            f"was {start:.3g}.{and_others(len(told) - 1)}",
            {"attention_max_logit": head.value, "start": start, "layers": float(len(told))},
        )

    def _grown(self, state: Heads, head: Point) -> bool:
        start = max(state.starts[head.place], 0.0)
        if head.value > self.limit and head.value > self.more * start:
            return True
        return head.value > self.floor and head.value > self.growth * start
