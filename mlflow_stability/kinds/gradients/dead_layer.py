"""Detect layers without any gradient."""

from __future__ import annotations

from dataclasses import dataclass, field

from mlflow_stability.detectors.detector import LAYERS, Detector, Point
from mlflow_stability.detectors.finding_type import Symptom
from mlflow_stability.detectors.progress import Progress
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.result import Action, Finding, Remedy


@dataclass(frozen=True, slots=True)
class DeadLayerFacts(Facts):
    """A layer that gets no gradient."""

    kind = "dead_layer"
    metrics = ("grad_norm", "measurements")

    place: str
    """The layer."""
    grad_norm: float
    """Its gradient norm, which is 0."""
    measurements: int
    """Number of measurements in a row without a gradient."""
    first_step: int
    """The step of the first of them."""
    rounds: int
    """The threshold of their number."""
    steps: int
    """The threshold of the steps between the first and the last of them."""

    def sentence(self, step: int, unit: str = "step", /) -> str:
        return (
            f"gradient norm of {self.place} 0 in {self.measurements} measurements, {unit} {self.first_step} to {unit} "
            f"{step} (threshold {self.rounds} measurements over {self.steps} {unit}s)."
        )


@dataclass(slots=True)
class LayerWithoutGradient:
    rounds: int = 0
    first_step: int = 0
    """The first step without a gradient."""
    weight_norm: float | None = None
    growth: float | None = None
    """Growth of the weight norm between the last two measurements, as a share."""


@dataclass(slots=True)
class DeadLayerState:
    layers: dict[str, LayerWithoutGradient] = field(default_factory=dict)
    dead: set[str] = field(default_factory=set)
    """Layers that have been without a gradient for long enough."""
    progress: Progress = field(default_factory=Progress)


@dataclass(frozen=True, slots=True)
class DeadLayer(Detector):
    """A layer gets no gradient.

    What it sees: a layer whose gradient norm is exactly zero in {rounds} measurements in a row over at least {steps}
    steps, while its weights change by an even decay at most (even to {even:percent}). Nothing is reported once the loss
    is below {loss_fall.LEARNT:percent} of its start: then small gradients are normal. Steps without a loss do not
    count. Of layers that are dead together the first found is named. The finding ends when all get a gradient again.

    Why it matters: the layer does not learn. It is disconnected from the loss, frozen by mistake, or all of its units
    are dead.

    What to try: check that its output reaches the loss; look for `detach` and `no_grad`; check whether all of its units
    are inactive; lower the learning rate.

    When it is wrong: layers that few batches use: experts, heads of other tasks, embeddings of rare words. No finding
    in 117 healthy trainings of 39 kinds (96,000 measured values).

    Reference: Lu et al., Dying ReLU and initialization (arXiv:1903.06733)
    """

    rounds: int = 5
    """Number of measurements in a row."""
    steps: int = 400
    """Minimum number of steps between the first and the last of them."""
    even: float = 0.1
    """Maximum change of the weight norm's growth, as a share of it. A larger change is no decay, but a gradient between
    two measurements."""

    kind = "dead_layer"
    noun = "a dead layer"
    plural = "dead layers"
    question = "Is any layer without a gradient?"
    check_by_hand = "After backward, list parameters whose grad is None or all zero; look for detach and no_grad."
    symptom = Symptom.DEAD_LAYER
    order = 170
    quantities = ("loss", "param_norm", "grad_norm")
    across_places = True
    takes_losses = False
    places = LAYERS
    remedies = (
        Remedy(Action.CHECK_PATH_TO_LOSS),
        Remedy(Action.LOOK_FOR_DETACH),
        Remedy(Action.LOOK_FOR_INACTIVE_UNITS),
    )
    state_type = DeadLayerState

    def step(self, state: DeadLayerState, point: Point) -> tuple[DeadLayerState, Finding | None]:
        if not point.finite:
            return state, None
        layer = state.layers.setdefault(point.place, LayerWithoutGradient())
        losses = state.progress.losses
        if point.quantity == "param_norm":
            is_alive = self._has_learnt(layer, point.value)
        else:
            # Without a loss nothing was passed backward, and no layer could get a gradient.
            is_alive = point.value != 0.0 or losses.falls.learnt() or losses.step != point.step
        if is_alive:
            layer.rounds = 0
            state.dead.discard(point.place)
        if is_alive or point.quantity == "param_norm":
            return state, None
        layer.rounds += 1
        if layer.rounds == 1:
            layer.first_step = point.step
        if layer.rounds < self.rounds or point.step - layer.first_step < self.steps or point.place in state.dead:
            return state, None
        state.dead.add(point.place)
        if len(state.dead) > 1:
            return state, None
        facts = DeadLayerFacts(point.place, point.value, layer.rounds, layer.first_step, self.rounds, self.steps)
        return state, self.finding(point, self.severities[-1], facts)

    def _has_learnt(self, layer: LayerWithoutGradient, weight_norm: float) -> bool:
        """Return whether the weights changed otherwise than by an even decay."""
        before, layer.weight_norm = layer.weight_norm, weight_norm
        if before is None or before <= 0:
            return weight_norm != (before or weight_norm)
        growth, layer.growth = layer.growth, weight_norm / before - 1
        if growth is None or layer.growth == growth:
            return False
        return layer.growth > 0 or abs(layer.growth - growth) > self.even * abs(growth)
