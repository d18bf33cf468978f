"""Writes to the weights by other code than the optimizer, between two of its steps.

In three steps of ten: ``foreign_writes``, how often the weights were written to in place since the last look, beyond
what the optimizer's own steps do (by torch's version counters); ``foreign_update``, the change of some weights from the
end of one step to the next, as a share of their norm. Writes through ``.data`` are not counted; what they change is
seen from a tenth step to the next two. Guarantees: no device is waited for; nothing of the training is kept alive.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import cast

import torch
from torch import Tensor
from torch.optim import LBFGS, Optimizer

from mlflow_stability.probes.parameters.per_optimizer import on_host_if_there
from mlflow_stability.probes.probe import NORMS_EVERY, PeriodicProbe, ProbeFactory, StepView
from mlflow_stability.probes.step.readback import Block, signals_at
from mlflow_stability.vocabulary.measured.signal_type import SignalType, signals

SIGNALS = signals(
    SignalType(
        "foreign_writes",
        "in-place writes to weights between steps, by other code than the optimizer; looked at in three steps of ten",
    ),
    SignalType(
        "foreign_update",
        "change of some weights between two steps, by other code, over their norm; around every tenth step",
    ),
    topic="optimizer",
    left_out="zero",
)
QUANTITIES = ("foreign_writes", "foreign_update")
STEPS_IN_A_ROW = 3  # scripts count steps from 0 or from 1
SURE_AFTER_STEPS = 3  # in a row with the same number of writes by the optimizer itself
# Number of small parameters whose values are compared; of a larger one, the first 64 values.
MAX_TENSORS, MAX_VALUES = 4, 4096
FIRST_VALUES = 64


@dataclass(slots=True)
class _Watched:
    parameters: tuple[int, ...]  # by identity
    sampled: tuple[int, ...]  # indices of those whose values are compared
    step: int  # the last step that was looked at
    versions: int  # sum of the version counters after that step
    by_itself: int = 0  # by how much a step of the optimizer raises that sum
    sure: int = 0  # number of steps in a row with that rise
    sample: Tensor | None = None  # some values after that step


class ForeignWrites(PeriodicProbe):
    """Version counters, and a few values, around every tenth step."""

    part = "writes to the weights by other code"

    def __init__(self, every: int = NORMS_EVERY) -> None:
        super().__init__(every)
        self.every = every
        self._watched: weakref.WeakKeyDictionary[Optimizer, _Watched] = weakref.WeakKeyDictionary()
        # Identity of the optimizer that steps now, and the sum of its version counters.
        self._before: tuple[int, int] | None = None
        self._blocks: list[Block] = []

    def due(self, step: int) -> bool:
        return step >= self.every and step % self.every < STEPS_IN_A_ROW

    def next_due(self, step: int) -> int:
        return step + 1 if self.due(step + 1) else super().next_due(step)

    def before_step(self, view: StepView) -> None:
        self._before = None
        held = view.layers.held(view.optimizer, view.step)
        parameters = held.parameters(view.optimizer)
        if not parameters or held.is_split:
            return
        identities, now = tuple(map(id, parameters)), _versions(parameters)
        self._before = id(view.optimizer), now
        watched = self._watched.get(view.optimizer)
        if watched is None or watched.parameters != identities:
            # Some small vectors, such as biases, on one device.
            small = [
                at
                for at, parameter in enumerate(parameters)
                if parameter.dim() == 1 and parameter.numel() <= MAX_VALUES
            ]
            chosen = small[:: max(1, len(small) // MAX_TENSORS)][:MAX_TENSORS]
            self._watched[view.optimizer] = _Watched(
                identities,
                tuple([at for at in chosen if parameters[at].device == parameters[chosen[0]].device]),
                view.step,
                now,
            )
            return
        between = view.step - watched.step - 1
        # LBFGS ends a step when it has converged, after any number of writes.
        is_sure = watched.sure >= SURE_AFTER_STEPS and not (between and isinstance(view.optimizer, LBFGS))
        writes = now - watched.versions - between * watched.by_itself if is_sure else 0
        changes: tuple[float | Tensor, float | Tensor] = 0.0, 1.0
        if watched.sample is not None and between == 0:
            changes = _change(watched.sample, _sample(parameters, watched.sampled))
        self._blocks.append(_block(view.place, float(max(0, writes)), *changes))

    def after_step(self, view: StepView) -> None:
        before, self._before = self._before, None
        watched = self._watched.get(view.optimizer)
        if before is None or watched is None or before[0] != id(view.optimizer):
            return
        parameters = view.layers.held(view.optimizer, view.step).parameters(view.optimizer)
        watched.step, watched.versions = view.step, _versions(parameters)
        made = watched.versions - before[1]
        if not view.skipped:
            watched.sure = watched.sure + 1 if made == watched.by_itself else 1
            watched.by_itself = made
        watched.sample = _sample(parameters, watched.sampled) if self.due(view.step + 1) else None

    def forget(self) -> None:
        self._before, self._blocks = None, []
        self._watched.clear()

    def blocks(self, _step: int) -> Sequence[Block]:
        blocks, self._blocks = self._blocks, []
        return blocks[:1]


_version = attrgetter("_version")


def _versions(parameters: Sequence[Tensor]) -> int:
    try:
        return sum(map(_version, parameters))
    except RuntimeError:  # tensors made in inference mode have no counter
        return sum([parameter._version for parameter in parameters if not parameter.is_inference()])


def _sample(parameters: Sequence[Tensor], chosen: Sequence[int]) -> Tensor:
    with torch.no_grad():
        if not chosen:
            return parameters[-1].detach().reshape(-1)[:FIRST_VALUES].clone()
        return torch.cat([parameters[at].detach() for at in chosen])


def _change(then: Tensor, now: Tensor) -> tuple[float | Tensor, float | Tensor]:
    if now.shape != then.shape or now.device != then.device:
        return 0.0, 1.0
    with torch.no_grad():
        return on_host_if_there(torch.dist(now, then)), on_host_if_there(torch.linalg.vector_norm(then))


def _block(place: str, writes: float, change: float | Tensor, norm: float | Tensor) -> Block:
    def on_host(numbers: Sequence[float]) -> Sequence[float]:
        return numbers[0], numbers[1] / numbers[2] if numbers[2] > 0 else 0.0

    signals = signals_at(QUANTITIES, place)
    if not isinstance(change, Tensor) or not isinstance(norm, Tensor):
        return Block(signals, tuple(on_host((writes, cast(float, change), cast(float, norm)))))
    return Block(signals, torch.stack((change.new_full((), writes), change, norm)), on_host)


PROBES: tuple[ProbeFactory, ...] = (lambda _context: ForeignWrites(),)
