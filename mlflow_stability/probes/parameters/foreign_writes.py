"""Writes to the weights by other code than the optimizer, between two of its steps.

In: optimizers before and after three steps of ten. Out: ``foreign_writes``, how often the weights were written to in
place since the last look, beyond what the optimizer's own steps do (by torch's version counters); ``foreign_update``,
the change of some weights from the end of one step to the next, as a share of their norm. Guarantees: nothing is read
from a device that is not on its way to the host anyway; nothing of the training is kept alive. Writes through
``.data`` are not counted; what they change is seen from a tenth step to the next two.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from mlflow_stability.probes.block import Block
from mlflow_stability.probes.parameters.layer_layout import whole_signals
from mlflow_stability.probes.parameters.per_optimizer import on_host_if_there
from mlflow_stability.probes.probe import NORMS_EVERY, PeriodicProbe, ProbeFactory, StepView
from mlflow_stability.vocabulary.measured import SignalType

SIGNALS = (
    SignalType(
        "foreign_writes",
        "in-place writes to weights between steps, by other code than the optimizer; looked at in three steps of ten",
        "optimizer",
        left_out="zero",
    ),
    SignalType(
        "foreign_update",
        "change of some weights between two steps, by other code, over their norm; around every tenth step",
        "optimizer",
        left_out="zero",
    ),
)
QUANTITIES = tuple(each.quantity for each in SIGNALS)
LOOKS = 3
"""Number of steps in a row that are looked at: scripts count steps from 0 or from 1."""
SURE_AFTER = 3
"""The optimizer's own writes are known once so many of its steps in a row made the same number of them."""
MAX_TENSORS, MAX_VALUES = 4, 4096
"""Of so many small parameters of so many values at most the values are compared; of larger ones the first 64."""
FIRST_VALUES = 64


@dataclass(slots=True)
class _Watched:
    """What is known of one optimizer since its last step that was looked at."""

    parameters: tuple[int, ...]
    """By identity."""
    sampled: tuple[int, ...]
    """Which of them are compared by their values, by their places."""
    step: int
    versions: int
    """The sum of the version counters of its parameters after that step."""
    by_itself: int = 0
    """By how much one of its steps raises that sum."""
    sure: int = 0
    """In how many steps in a row it was the same."""
    sample: Tensor | None = None
    """Some of its values after that step."""


class ForeignWrites(PeriodicProbe):
    """Version counters, and a few values, around every tenth step."""

    part = "writes to the weights by other code"

    def __init__(self, every: int = NORMS_EVERY) -> None:
        super().__init__(every)
        self.every = every
        self._watched: weakref.WeakKeyDictionary[Optimizer, _Watched] = weakref.WeakKeyDictionary()
        self._before: tuple[int, int] | None = None
        """The optimizer whose step is under way, by identity, and the sum of its version counters."""
        self._found: list[Block] = []

    def due(self, step: int) -> bool:
        """Whether this step is to be looked at."""
        return step >= self.every and step % self.every < LOOKS

    def next_due(self, step: int) -> int:
        """The next step that is due."""
        return step + 1 if self.due(step + 1) else super().next_due(step)

    def before_step(self, view: StepView) -> None:
        """See what has happened to the weights since the step that was looked at last."""
        self._before = None
        held = view.layers.held(view.optimizer, view.step)
        parameters = held.parameters(view.optimizer)
        if not parameters or held.is_split:
            return
        identities, now = tuple(map(id, parameters)), _versions(parameters)
        self._before = id(view.optimizer), now
        known = self._watched.get(view.optimizer)
        if known is None or known.parameters != identities:
            self._watched[view.optimizer] = _Watched(identities, _sampled(parameters), view.step, now)
            return
        between = view.step - known.step - 1
        writes = now - known.versions - between * known.by_itself if known.sure >= SURE_AFTER else 0
        changes: tuple[float | Tensor, float | Tensor] = 0.0, 1.0
        if known.sample is not None and between == 0:
            changes = _change(known.sample, _sample(parameters, known.sampled))
        self._found.append(_block(view.place, float(max(0, writes)), *changes))

    def after_step(self, view: StepView) -> None:
        """Keep how the optimizer has left the weights."""
        before, self._before = self._before, None
        known = self._watched.get(view.optimizer)
        if before is None or known is None or before[0] != id(view.optimizer):
            return
        parameters = view.layers.held(view.optimizer, view.step).parameters(view.optimizer)
        known.step, known.versions = view.step, _versions(parameters)
        made = known.versions - before[1]
        if not view.skipped:
            known.sure = known.sure + 1 if made == known.by_itself else 1
            known.by_itself = made
        known.sample = _sample(parameters, known.sampled) if self.due(view.step + 1) else None

    def forget(self) -> None:
        """The capture was interrupted half-way: let go of what was measured in it."""
        self._before, self._found = None, []
        self._watched.clear()

    def blocks(self, _step: int) -> Sequence[Block]:
        """What was found in the capture."""
        found, self._found = self._found, []
        return found[:1]


_version = attrgetter("_version")


def _versions(parameters: Sequence[Tensor]) -> int:
    """The sum of their version counters; tensors made in inference mode have none."""
    try:
        return sum(map(_version, parameters))
    except RuntimeError:
        return sum([each._version for each in parameters if not each.is_inference()])


def _sampled(parameters: Sequence[Tensor]) -> tuple[int, ...]:
    """Which parameters are compared: some small vectors, such as biases; none where there are none on one device."""
    small = [at for at, each in enumerate(parameters) if each.dim() == 1 and each.numel() <= MAX_VALUES]
    chosen = small[:: max(1, len(small) // MAX_TENSORS)][:MAX_TENSORS]
    return tuple([at for at in chosen if parameters[at].device == parameters[chosen[0]].device])


def _sample(parameters: Sequence[Tensor], chosen: Sequence[int]) -> Tensor:
    """A copy of some values: of the chosen vectors, or of the last parameter."""
    with torch.no_grad():
        if not chosen:
            return parameters[-1].detach().reshape(-1)[:FIRST_VALUES].clone()
        return torch.cat([parameters[at].detach() for at in chosen])


def _change(then: Tensor, now: Tensor) -> tuple[float | Tensor, float | Tensor]:
    """By how much the values have changed, and their norm."""
    if now.shape != then.shape or now.device != then.device:
        return 0.0, 1.0
    with torch.no_grad():
        return on_host_if_there(torch.dist(now, then)), on_host_if_there(torch.linalg.vector_norm(then))


def _block(place: str, writes: float, change: float | Tensor, norm: float | Tensor) -> Block:
    def on_host(numbers: Sequence[float]) -> Sequence[float]:
        return numbers[0], numbers[1] / numbers[2] if numbers[2] > 0 else 0.0

    signals = whole_signals(QUANTITIES, place)
    if not isinstance(change, Tensor) or not isinstance(norm, Tensor):
        return Block(signals, tuple(on_host((writes, cast(float, change), cast(float, norm)))))
    return Block(signals, torch.stack((change.new_full((), writes), change, norm)), on_host)


PROBES: tuple[ProbeFactory, ...] = (lambda _context: ForeignWrites(),)
