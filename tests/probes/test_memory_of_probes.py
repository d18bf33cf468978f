"""What probes allocate on a model of 500 million parameters, counted on a device that has no memory."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import AdamW
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mlflow_stability.probes.parameters.adam_rms import AdamRms
from mlflow_stability.probes.parameters.extreme_values import GradientExtremes, NonfiniteCount, WeightExtremes
from mlflow_stability.probes.parameters.layer_statistics import LayerStatistics
from mlflow_stability.probes.parameters.layers import Layers
from mlflow_stability.probes.parameters.norms import LayerNorms, MomentumNorm, WeightUpdates
from mlflow_stability.probes.probe import StepView
from mlflow_stability.probes.probe_scheduler import Probe

BUDGET = 64 * 2**20
SCALARS = 2**20
"""What a few numbers for each of two thousand tensors take."""


class Allocations(TorchDispatchMode):
    """Counts the bytes of what operations return, as long as it is alive."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._alive: Counter[int] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {_storage(leave) for leave in tree_leaves((args, kwargs)) if isinstance(leave, Tensor)}
        result = func(*args, **(kwargs or {}))
        for leave in tree_leaves(result):
            if isinstance(leave, Tensor) and (_storage(leave) not in given or self._alive[_storage(leave)]):
                self._add(leave)
        return result

    def _add(self, tensor: Tensor) -> None:
        storage, size = _storage(tensor), tensor.untyped_storage().nbytes()
        self._alive[storage] += 1
        if self._alive[storage] == 1:
            self.now += size
            self.peak = max(self.peak, self.now)
        weakref.finalize(tensor, self._drop, storage, size)

    def _drop(self, storage: int, size: int) -> None:
        self._alive[storage] -= 1
        if self._alive[storage] == 0:
            self.now -= size


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


@pytest.fixture(scope="module")
def training() -> AdamW:
    """Two thousand layers of a quarter of a million weights each, with gradients and moments."""
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(500, 500, bias=False) for _ in range(2000)))
    optimizer = AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.empty_like(parameter)
        moments = {name: torch.empty_like(parameter.detach()) for name in ("exp_avg", "exp_avg_sq")}
        optimizer.state[parameter] = {"step": torch.tensor(3.0), **moments}
    optimizer.model = model
    return optimizer


def peak_of(body: Callable[[], object]) -> int:
    with Allocations() as allocations:
        body()
    return allocations.peak


def run(probe: Probe, optimizer: AdamW, layers: Layers) -> None:
    view = StepView(optimizer, 0, layers)
    probe.before_step(view)
    probe.after_step(view)
    probe.blocks(0)
    if isinstance(probe, LayerStatistics):
        assert len(probe.tables(0)) == 2


CASES: list[tuple[Probe, int]] = [
    (LayerNorms(1, 1), 0),
    (MomentumNorm(1, 1), 0),
    (GradientExtremes(1), 0),
    (WeightUpdates(1, 1, BUDGET), BUDGET),
    (AdamRms(1, 1, BUDGET), BUDGET),
    (WeightExtremes(1, BUDGET), BUDGET),
    (LayerStatistics(1, 1), BUDGET),
]


@pytest.mark.slow
@pytest.mark.parametrize(("probe", "budget"), CASES, ids=[type(probe).__name__ for probe, _ in CASES])
def test_a_probe_takes_no_more_memory_than_its_budget(probe: Probe, budget: int, training: AdamW) -> None:
    layers = Layers()
    layers.held(training, 0)
    peak = peak_of(lambda: run(probe, training, layers))
    assert peak <= budget + SCALARS
    assert peak > 2000 * 4, "something must have been measured"
    if isinstance(probe, WeightUpdates | AdamRms | WeightExtremes):
        assert peak > budget / 2, "copies must have been counted"


def test_counting_what_is_not_finite_takes_no_more_memory_than_its_budget(training: AdamW) -> None:
    layers = Layers()
    layers.held(training, 0)
    assert BUDGET / 2 < peak_of(lambda: NonfiniteCount(BUDGET).count(training, layers, 0)) <= BUDGET + SCALARS
