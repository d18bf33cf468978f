"""Says when the GPU is idle half of the time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mlflow_stability.detectors.detector import Point
from mlflow_stability.detectors.streak import Streak, StreakDetector
from mlflow_stability.vocabulary.facts import Facts, LimitFacts
from mlflow_stability.vocabulary.result import Action, Remedy, Severity


@dataclass(frozen=True, slots=True)
class LowGpuUtilizationFacts(LimitFacts):
    """A GPU that is often idle, as the share of the time in which it ran a kernel."""

    kind: ClassVar[str] = "low_gpu_utilization"
    metrics: ClassVar = {"gpu_utilization": "value", "limit": "threshold"}

    def sentence(self, step: int, unit: str = "step", /) -> str:
        """``GPU busy 31% of the time at step 400 (threshold 50%, in 5 measurements in a row).``"""
        return (
            f"GPU busy {self.value:.0%} of the time at {unit} {step} (threshold {self.threshold:.0%}, in "
            f"{self.in_a_row} measurements in a row)."
        )


@dataclass(frozen=True, slots=True)
class LowGpuUtilization(StreakDetector):
    """The GPU runs a kernel less than {lowest:percent} of the time.

    What it sees: a GPU utilization below {lowest:percent}, {steps} measurements in a row; one is made every 100 steps,
    with `mlflow-stability[gpu]`. The finding ends when it is higher.

    Why it matters: the GPU waits for data, for the CPU or for another rank.

    What to try: add data-loader workers; use larger batches or `torch.compile`; profile a step.

    When it is wrong: small models and environments that run on the CPU, where nothing keeps a GPU busy. Its false-alarm
    rate is not measured; therefore it is INFO only.

    Reference: https://docs.nvidia.com/deploy/nvml-api/structnvmlUtilization__t.html
    """

    lowest: float = 0.5
    """Share of the time below which it is low."""
    steps: int = 5
    """Number of low values in a row."""

    kind = "low_gpu_utilization"
    noun = "a low GPU utilization"
    question = "Is the GPU busy?"
    check_by_hand = "Watch nvidia-smi; below {lowest:percent} the GPU waits for data or for the CPU."
    order = 285
    quantities = ("gpu_utilization",)
    in_a_row = "steps"
    severities = (Severity.INFO,)
    experimental = True
    remedies = (
        Remedy(Action.PROFILE_DATA_LOADER),
        Remedy(Action.ADD_WORKERS),
        Remedy(Action.USE_LARGER_BATCHES),
    )

    def facts(self, _state: Streak, point: Point) -> Facts | None:
        """Whether the utilization is low."""
        low = point.value < self.lowest
        return LowGpuUtilizationFacts(point.value, self.lowest, in_a_row=self.steps) if low else None
