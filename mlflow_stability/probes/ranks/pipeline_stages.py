"""Finds the pipeline stages of this process (`torch.distributed.pipelining`), and the processes of its pipeline.

In: optimizers. Out: which processes have the other stages; how many micro-batches their losses are a mean of.
Guarantees: nothing is communicated, and torch's pipelining is never loaded for it.
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


def micro_batches_of_loss() -> int:
    """By how many micro-batches a schedule divides gradients, and so the sum of their losses; 1: by none."""
    schedules = sys.modules.get(_SCHEDULES)
    if schedules is None:
        return 1
    (found,) = living(schedules._PipelineSchedule)
    scaled = [each._n_microbatches for each in found if getattr(each, "scale_grads", False)]
    return int(scaled[-1]) if scaled else 1
