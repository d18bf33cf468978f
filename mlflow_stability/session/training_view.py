"""What belongs to a training, as it was seen at a gate: what facts are made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch.nn import Module
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler


@dataclass(frozen=True, slots=True)
class TrainingView:
    """The objects of a training, for the time of one call; nobody keeps them."""

    optimizers: Sequence[Optimizer]
    """In the order in which they first stepped."""
    models: Sequence[Module] = ()
    """The outermost modules that own what the optimizers change."""
    schedulers: Sequence[LRScheduler] = ()
    """All that were found; those of other optimizers are passed over."""
    scaler: Any = None
    batch: str = ""
    """The last batch, in the words of `batch_words`; empty where none was seen."""
    autocast: str = ""
    """In which type the forward pass was computed, in the words of `autocast_now`; empty: in that of the weights."""
    micro_batches: int = 0
    """How many backward passes the last cycle had; 0 where none was counted."""
    limits: Mapping[str, str] = field(default_factory=dict)
    """With which limits gradients are clipped: ``max_norm``, ``clip_value``, ``optimizer_1.max_norm``."""
    uncounted: str = ""
    """Why the operations of the model are not counted; empty while they are, or while nobody knows."""
    unknown_kernels: Sequence[str] = ()
    """Kernels whose operations are in no number, for no formula is known for them."""
