"""Collects what tells a training from others and what is needed to repeat it.

In: a training as it is seen at its gates. Out: facts, each once; they become the parameters ``stability.<key>`` of the
run. Promised: parameters of a run cannot be changed, so what a key said first holds, and what changes later is told as
an event; a look at a training of which nothing new is known costs microseconds.
"""

from __future__ import annotations

from mlflow_stability.probes.model_facts import model_facts
from mlflow_stability.probes.optimizer_facts import optimizer_facts
from mlflow_stability.probes.scheduler_facts import scheduler_facts
from mlflow_stability.probes.torch_facts import scaler_facts, torch_facts
from mlflow_stability.session.environment_facts import environment_facts
from mlflow_stability.session.training_view import TrainingView
from mlflow_stability.vocabulary.milestone import Fact

MOST_FACTS = 1_000
"""More than a person reads or a store likes: a script that makes new optimizers without end."""


class TrainingFacts:
    """The facts of one recording."""

    def __init__(self, world_size: int = 1) -> None:
        self._world_size = world_size
        self._known: set[str] = set()
        self._seen: tuple[object, ...] = ()

    def collect(self, view: TrainingView) -> tuple[Fact, ...]:
        """What is new since the last time; everything, the first time."""
        seen = _what_there_is(view)
        if seen == self._seen:
            return ()
        facts = _of_training(view)
        if not self._seen:
            facts |= torch_facts() | environment_facts(self._world_size)
        self._seen = seen
        room = MOST_FACTS - len(self._known)
        new = [(key, value) for key, value in facts.items() if value and key not in self._known][:room]
        self._known.update(key for key, _ in new)
        return tuple(Fact(key, value) for key, value in new)


def _what_there_is(view: TrainingView) -> tuple[object, ...]:
    """Where this is as it was, there is nothing new to be said: a second optimizer may take its first step later."""
    return (
        *((id(each), len(each.param_groups)) for each in view.optimizers),
        *map(id, view.models),
        len(view.schedulers),
        view.scaler is not None,
        bool(view.batch),
        bool(view.autocast),
        bool(view.micro_batches),
        *view.limits,
        view.uncounted,
        *view.unknown_kernels,
    )


def _of_training(view: TrainingView) -> dict[str, str]:
    return {
        **optimizer_facts(view.optimizers),
        **scheduler_facts(view.schedulers, view.optimizers),
        **model_facts(view.models, view.optimizers),
        **scaler_facts(view.scaler),
        "batch": view.batch,
        "autocast": view.autocast,
        "accumulation": str(view.micro_batches) if view.micro_batches else "",
        **{_clipping(name): limit for name, limit in view.limits.items()},
        "flops.reason": view.uncounted,
        "flops.unknown": ", ".join(view.unknown_kernels),
    }


def _clipping(name: str) -> str:
    """``clipping.max_norm``; where an optimizer has another one, ``optimizer_1.clipping.max_norm``."""
    before, _, limit = name.rpartition(".")
    return f"{before}.clipping.{limit}" if before else f"clipping.{limit}"
