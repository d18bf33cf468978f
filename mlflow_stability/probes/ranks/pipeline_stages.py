"""Finds the pipeline stages of this process (`torch.distributed.pipelining`), and the processes of its pipeline.

In: optimizers. Out: which processes have the other stages; how many micro-batches their losses are a mean of.
Guarantees: nothing is communicated, torch's pipelining is never loaded for it, and Python's objects are looked through
a few times in all, not at every step.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import Module
from torch.optim import Optimizer

from mlflow_stability.probes.objects.model_discovery import living
from mlflow_stability.probes.tensors.gradient_norm import parameters_of

MOST_LOOKS = 8
"""A look through a million objects takes some tenths of a second; so many numbers of losses a step have one each."""
MOST_KNOWN = 1000
"""So many numbers of losses a step are remembered with what was found last; those beyond are not."""
_STAGE, _SCHEDULES = "torch.distributed.pipelining.stage", "torch.distributed.pipelining.schedules"


def ranks_of_pipeline(optimizers: Sequence[Optimizer]) -> tuple[int, ...]:
    """The processes that have the stages whose parameters these optimizers train; empty where there are no stages."""
    stages = sys.modules.get(_STAGE)
    if stages is None or not torch.distributed.is_initialized():
        return ()
    trained = {id(each) for optimizer in optimizers for each in parameters_of(optimizer)}
    (found,) = living(stages.PipelineStage.__base__)  # also stages that are made from a traced model
    known: set[int] = set()
    for stage in found:
        if trained.isdisjoint(map(id, Module.parameters(stage.submod))):
            continue
        group: Any = getattr(stage, "group", None)
        known.update(torch.distributed.get_process_group_ranks(group or torch.distributed.group.WORLD))
    return tuple(sorted(known))


class MicroBatches:
    """By how many of them a schedule divides gradients, and so the sum of their losses; 1: by none."""

    def __init__(self) -> None:
        self._by_losses: dict[int, int] = {}
        """A schedule of other micro-batches makes another number of losses a step."""
        self._newest = 1

    def of(self, losses: int) -> int:
        """The schedule's, where a step had so many losses."""
        schedules = sys.modules.get(_SCHEDULES)
        if schedules is None:
            return 1
        if losses not in self._by_losses:
            if len(self._by_losses) < MOST_LOOKS:
                (found,) = living(schedules._PipelineSchedule)
                scaled = [each._n_microbatches for each in found if getattr(each, "scale_grads", False)]
                self._newest = int(scaled[-1]) if scaled else 1
            elif len(self._by_losses) > MOST_KNOWN:
                return self._newest
            self._by_losses[losses] = self._newest
        return self._by_losses[losses]
