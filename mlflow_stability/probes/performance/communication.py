"""Measures how long the processes of a training exchange gradients, as DistributedDataParallel's own timers say.

In: the models that train. Out: seconds of a step from the first to the last exchange of gradients, and how many of
them no computation hides. Guarantees: nothing is timed for it, and nothing is waited for: the timers of DDP run in its
first ten steps and in each hundredth one, and are read afterwards. Without DDP nothing is told: of FSDP and of a
script's own collectives the time is part of forward and backward passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel

from mlflow_stability.probes.block import Block
from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.probes.parameters.layer_layout import whole_signals
from mlflow_stability.probes.probe import PeriodicProbe

EVERY = 50
"""Every how many steps the timers are read: they are renewed every hundred, at a step that is not known."""
QUANTITIES = ("communication_time", "communication_exposed_time")
_SECONDS = 1e-9
"""Of a nanosecond."""


class Communication(PeriodicProbe):
    """The communication of one training."""

    part = "communication time"

    def __init__(self, models: Callable[[], Sequence[Module]]) -> None:
        super().__init__(EVERY)
        self._models = models
        self._told: dict[str, int] = {}
        """By model, the step of the timers that was told last."""

    def blocks(self, _step: int) -> Sequence[Block]:
        """What the timers say that they did not say before; of several models the sum."""
        wrapped = [each for each in self._models() if isinstance(each, DistributedDataParallel)]
        found = [numbers for number, each in enumerate(wrapped) if (numbers := self._read(str(number), each))]
        if not found:
            return ()
        whole, exposed = (sum(each) for each in zip(*found, strict=True))
        return (Block(whole_signals(QUANTITIES, ""), (whole, exposed)),)

    def _read(self, name: str, model: DistributedDataParallel) -> tuple[float, float] | None:
        said = torch_api.ddp_logging_data(model)
        whole, at = said.get("backward_comm_time", 0), said.get("iteration", -1)
        if not whole or self._told.get(name) == at:
            return None
        self._told[name] = at
        hidden = min(said.get("backward_compute_comm_overlap_time", 0), whole)
        return whole * _SECONDS, (whole - hidden) * _SECONDS
