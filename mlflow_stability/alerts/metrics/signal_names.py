"""The one table of signals in other tools: which signal has which name where.

TensorBoard and Weights & Biases use the keys of MLflow, which `tracking/keys.py` makes; Prometheus and OpenTelemetry
have names of their own. A signal that is not in the table is not exported to them.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlflow_stability.vocabulary.measured import signal_types
from mlflow_stability.vocabulary.text import SECTIONS


@dataclass(frozen=True, slots=True)
class SignalNames:
    """One signal of a whole model, in every outlet."""

    quantity: str
    """Its name in the record."""
    prometheus: str
    meaning: str
    unit: str = "1"
    """As OpenTelemetry writes units; ``1`` for plain numbers."""
    counter: bool = False
    """Whether it only grows: the value of a counter is the last one that was measured."""
    type: str = ""
    """Its label `type`, where several signals share the name."""
    by_device: bool = False
    """Whether it has the label `gpu_id`."""

    @property
    def otel(self) -> str:
        """The name in OpenTelemetry: ``llm.training.loss``."""
        name = self.prometheus.removesuffix("_total")
        for group in ("llm_training", "llm_validation", "llm_gradient", "llm_gpu", "llm"):
            if name.startswith(f"{group}_"):
                return f"{group.replace('_', '.')}.{name.removeprefix(f'{group}_')}"
        return name


SIGNALS = tuple(
    SignalNames(
        *(each.quantity, each.exported, each.short_meaning, each.unit, each.counter),
        *(each.exported_type, each.by_device),
    )
    for each in sorted(signal_types().values(), key=lambda each: SECTIONS.index(each.section))
    if each.exported
)
"""Every signal of a whole model that is exported: its own file says under which name."""
STEPS = SignalNames("", "llm_training_steps_total", "Recorded steps", "{step}", counter=True)
LOSS_SPIKES = SignalNames("", "llm_loss_spikes_total", "Loss spikes", "{event}", counter=True)
GRADIENT_SPIKES = SignalNames("", "llm_gradient_spikes_total", "Exploding gradients", "{event}", counter=True)
KINDS_OF_SPIKES = {
    LOSS_SPIKES.prometheus: frozenset({"loss_spike"}),
    GRADIENT_SPIKES.prometheus: frozenset({"gradient_explosion", "layer_explosion"}),
}
"""The event types that each of these counts."""
EVENTS = SignalNames("", "llm_training_events_total", "Events, by type and severity", "{event}", counter=True)
STEP_DURATION = SignalNames("step_time", "llm_step_duration_seconds", "Time from one step to the next", "s")
"""What is counted or gathered, and has no value in a reading; `STEP_DURATION` is a histogram."""
EVERYTHING = (*SIGNALS, STEPS, LOSS_SPIKES, GRADIENT_SPIKES, EVENTS, STEP_DURATION)
FAMILIES = tuple(
    tuple(names for names in EVERYTHING if names.prometheus == name)
    for name in dict.fromkeys(names.prometheus for names in EVERYTHING)
)
"""The same, those that share a name together."""
BY_QUANTITY = {each.quantity: each for each in SIGNALS}
KNOWN_QUANTITIES = frozenset(signal_types())
"""What conditions can compare."""
