from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from probes.measured import backward, net
from session.interrupting import Moments
from torch import Tensor
from torch.optim import AdamW

from mlflow_stability.probes.hooks.guarded_hooks import PartGuard
from mlflow_stability.probes.parameters.adam_rms import AdamRms
from mlflow_stability.probes.parameters.extreme_values import GradientExtremes, WeightExtremes
from mlflow_stability.probes.parameters.layer_statistics import LayerStatistics
from mlflow_stability.probes.parameters.layers import Layers
from mlflow_stability.probes.parameters.norms import LayerNorms, MomentumNorm, WeightUpdates
from mlflow_stability.probes.probe import StepView

KINDS: list[Callable[[], Any]] = [
    lambda: LayerNorms(1, 1),
    lambda: WeightUpdates(1, 1),
    lambda: MomentumNorm(1, 1),
    lambda: AdamRms(1, 1),
    lambda: GradientExtremes(1),
    lambda: WeightExtremes(1),
    lambda: LayerStatistics(1),
]
MOST = 30


class Shown:
    """A training of two optimizers whose captures some probes are shown."""

    def __init__(self) -> None:
        self.model = net()
        self.layers = Layers()
        parameters = list(self.model.parameters())
        self.optimizers = AdamW(parameters[:2], lr=0.01), AdamW(parameters[2:], lr=0.01)
        self.step = 0
        self.guard = PartGuard(strict=True, on_failure=lambda part, error: None)

    def capture(self, probes: Sequence[Any]) -> list[dict[str, list[float]]]:
        """A whole capture, and what each probe reports of it."""
        self.step += 1
        backward(self.model, self.step)
        for optimizer in self.optimizers:
            view = StepView(optimizer, self.step, self.layers, None)
            for probe in probes:
                self.guard(probe.part, probe.before_step)(view)
            optimizer.step()
            for probe in probes:
                self.guard(probe.part, probe.after_step)(view)
        return [self.told(probe) for probe in probes]

    def told(self, probe: Any) -> dict[str, list[float]]:
        by_key = {str(reading.signals): reading.values for reading in self.guard(probe.part, probe.blocks)(self.step)}
        if isinstance(probe, LayerStatistics):
            by_key |= {f"{table.what} {table.layers}": table.values for table in probe.tables(self.step)}
        return {
            name: values.tolist() if isinstance(values, Tensor) else list(values) for name, values in by_key.items()
        }


def comparable(values: dict[str, list[float]]) -> str:
    return repr(values)  # NaN is NaN


@pytest.mark.parametrize("make", KINDS)
def test_probes_measure_correctly_after_ctrl_c_interrupted_a_step(make: Callable[[], Any]) -> None:
    torch.manual_seed(0)
    shown = Shown()
    probe = make()
    shown.capture([probe])
    whole = Moments()
    with whole.counted():
        shown.capture([probe])
    interrupted = 0
    for at in range(1, whole.seen, max(whole.seen // MOST, 1)):
        moments = Moments(at)
        try:
            with moments.counted():
                shown.capture([probe])
        except KeyboardInterrupt:
            interrupted += 1
            shown.told(probe)  # the next backward ends the capture
        fresh = make()
        values, truth = shown.capture([probe, fresh])
        assert truth
        assert comparable(values) == comparable(truth), f"moment {at}"
    assert interrupted > 10
