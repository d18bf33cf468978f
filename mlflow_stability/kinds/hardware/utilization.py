"""Detect slow steps, an idle device, and one whose memory is nearly full."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mlflow_stability.detectors.detector import Point
from mlflow_stability.detectors.streak import LastingStreakDetector, Streak, StreakDetector
from mlflow_stability.vocabulary.facts import SINCE, Facts, LastingFacts, LimitFacts, RiseFacts
from mlflow_stability.vocabulary.result import Action, Remedy, Severity


@dataclass(frozen=True, slots=True)
class LowMfuFacts(LimitFacts):
    """A low model FLOPs utilisation, as a share of the device's peak."""

    kind: ClassVar[str] = "low_mfu"
    metrics: ClassVar = {"mfu": "value", "limit": "threshold"}

    def sentence(self, step: int, unit: str = "step", /) -> str:
        return (
            f"model FLOPs utilisation {self.value:.2f} at {unit} {step}, below the threshold of {self.threshold:g} for "
            f"{self.in_a_row} measurements."
        )


@dataclass(frozen=True, slots=True)
class LowMfu(StreakDetector):
    """The device runs at less than {lowest:percent} of its peak FLOPS.

    What it sees: a model FLOPs utilisation below {lowest}, {steps} times in a row, on a device whose peak is known. The
    finding ends when it is higher.

    Why it matters: most of the device's cost is spent on waiting.

    What to try: use larger batches, `torch.compile`, fused optimizers, or more data-loader workers; profile a step.

    When it is wrong: small models, which cannot fill a large device. Its false-alarm rate is not measured.

    Reference: Chowdhery et al., PaLM (arXiv:2204.02311, appendix B)
    """

    lowest: float = 0.3  # utilisation below which it is low
    steps: int = 50  # number of low values in a row

    kind = "low_mfu"
    noun = "a low MFU"
    question = "Is the device used well?"
    check_by_hand = (
        "Compare model FLOPs per second with the device's peak; "
        "below {lowest:percent} look for small kernels and waiting."
    )
    order = 280
    quantities = ("mfu",)
    in_a_row = "steps"
    severities = (Severity.INFO,)
    experimental = True
    remedies = (Remedy(Action.USE_LARGER_BATCHES), Remedy(Action.COMPILE_AND_FUSE), Remedy(Action.ADD_WORKERS))

    def facts(self, _state: Streak, point: Point) -> Facts | None:
        return LowMfuFacts(point.value, self.lowest, in_a_row=self.steps) if point.value < self.lowest else None


@dataclass(frozen=True, slots=True)
class LowGpuUtilizationFacts(LimitFacts):
    """A GPU that is often idle, as the share of the time in which it ran a kernel."""

    kind: ClassVar[str] = "low_gpu_utilization"
    metrics: ClassVar = {"gpu_utilization": "value", "limit": "threshold"}

    def sentence(self, step: int, unit: str = "step", /) -> str:
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

    lowest: float = 0.5  # share of the time below which it is low
    steps: int = 5  # number of low values in a row

    kind = "low_gpu_utilization"
    noun = "a low GPU utilization"
    question = "Is the GPU busy?"
    check_by_hand = "Watch nvidia-smi; below {lowest:percent} the GPU waits for data or for the CPU."
    order = 285
    quantities = ("gpu_utilization",)
    in_a_row = "steps"
    severities = (Severity.INFO,)
    experimental = True
    remedies = (Remedy(Action.PROFILE_DATA_LOADER), Remedy(Action.ADD_WORKERS), Remedy(Action.USE_LARGER_BATCHES))

    def facts(self, _state: Streak, point: Point) -> Facts | None:
        low = point.value < self.lowest
        return LowGpuUtilizationFacts(point.value, self.lowest, in_a_row=self.steps) if low else None


@dataclass(frozen=True, slots=True)
class MemoryPressureFacts(LastingFacts, LimitFacts):
    """A device memory that is nearly full, as the share in use."""

    kind: ClassVar[str] = "memory_pressure"
    metrics: ClassVar = {"memory_share": "value", "limit": "threshold"}

    def statement(self, step: int, unit: str, /) -> str:
        return f"{self.value:.0%} of the device memory in use at {unit} {step} (threshold {self.threshold:.0%})"


@dataclass(frozen=True, slots=True)
class MemoryPressure(LastingStreakDetector):
    """The device memory is nearly full.

    What it sees: more than {highest:percent} of the device memory in use, {steps} times in a row. It is INFO at first,
    and a warning where it lasts another {lasting_steps} steps and {lasting_seconds} seconds. The finding ends when
    it is less.

    Why it matters: the next longer batch ends the training; before that, the allocator slows it down.

    What to try: use a smaller batch with gradient accumulation; use activation checkpointing; set
    `expandable_segments:True`.

    When it is wrong: frameworks that reserve all memory in advance. Its false-alarm rate is not measured: it depends on
    the device and on the allocator.

    Reference: https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management
    """

    highest: float = 0.95  # share of the memory above which it is nearly full
    steps: int = 3  # number of high values in a row

    kind = "memory_pressure"
    noun = "memory pressure"
    question = "Is memory nearly full?"
    check_by_hand = (
        "Compare torch.cuda.max_memory_reserved() with the device's memory; "
        "above {highest:percent} the allocator retries."
    )
    order = 270
    quantities = ("memory_share",)
    in_a_row = "steps"
    severities = (Severity.INFO, Severity.WARNING)
    of_hardware = True
    remedies = (
        Remedy(Action.ACCUMULATE_GRADIENTS),
        Remedy(Action.USE_ACTIVATION_CHECKPOINTING),
        Remedy(Action.SET_EXPANDABLE_SEGMENTS),
    )

    def facts(self, _state: Streak, point: Point) -> Facts | None:
        high = point.value > self.highest
        return MemoryPressureFacts(point.value, self.highest, in_a_row=self.steps) if high else None


@dataclass(frozen=True, slots=True)
class StepTimeFacts(LastingFacts, RiseFacts):
    """A step that takes longer than usual, in seconds."""

    kind: ClassVar[str] = "step_time_increase"
    metrics: ClassVar = {"step_time": "value", "level": "baseline"}

    def statement(self, step: int, unit: str, /) -> str:
        return (
            f"step time {self.value:.3g} s at {unit} {step}, {self.value / self.baseline:.3g} times the usual "
            f"{self.baseline:.3g} s (threshold {self.ratio:g} times)"
        )


@dataclass(frozen=True, slots=True)
class StepTimeIncrease(LastingStreakDetector):
    """Steps take {smallest_rise} times as long as usual.

    What it sees: {steps} steps in a row that each take more than {smallest_rise} times as long as usual. Single long
    steps (a checkpoint, a probe, an evaluation) and the first {baseline.MINIMUM} steps do not count. It is INFO at
    first, and a warning where it lasts another {lasting_steps} steps and {lasting_seconds} seconds. The finding
    ends when the time is back.

    Why it matters: the machine, the data or the network has become slower; the same result costs twice as much.

    What to try: profile the data loader; check the device clock and temperature; look for other processes on the
    machine; look for growing sequence lengths.

    When it is wrong: batches that grow on purpose; a phase with more work per step. On a shared machine it was found in
    10 of 117 healthy trainings as INFO.

    Reference: Jiang et al., MegaScale (arXiv:2402.15627)
    """

    smallest_rise: float = 2.0  # minimum ratio to the usual time
    steps: int = 10  # number of slow steps in a row

    kind = "step_time_increase"
    noun = "longer steps"
    question = "Did steps become slower?"
    check_by_hand = "Time 100 steps with torch.cuda.synchronize() before each reading of the clock."
    order = 260
    quantities = ("step_time",)
    compared = ("step_time",)
    in_a_row = "steps"
    severities = (Severity.INFO, Severity.WARNING)
    of_hardware = True
    remedies = (Remedy(Action.PROFILE_DATA_LOADER), Remedy(Action.CHECK_CLOCK), Remedy(Action.LOOK_FOR_OTHER_PROCESSES))

    def facts(self, _state: Streak, point: Point) -> Facts | None:
        slow = 0 < point.center * self.smallest_rise < point.value
        return StepTimeFacts(point.value, point.center, self.smallest_rise) if slow else None


@dataclass(frozen=True, slots=True)
class ThroughputFacts(LastingFacts, RiseFacts):
    """A throughput below its usual value, in tokens or samples a second."""

    kind: ClassVar[str] = "throughput_drop"

    signal: str  # What is counted: ``tokens_per_second`` or ``samples_per_second``

    def statement(self, step: int, unit: str, /) -> str:
        return (
            f"{self.signal} {self.value:.4g} at {unit} {step}, {self.value / self.baseline:.0%} of the usual "
            f"{self.baseline:.4g} (threshold {self.ratio:.0%})"
        )

    def numbers(self) -> dict[str, float]:
        since = {} if self.found_first is None else {SINCE: float(self.found_first)}
        return {self.signal: self.value, "level": self.baseline} | since


@dataclass(frozen=True, slots=True)
class ThroughputDrop(LastingStreakDetector):
    """The throughput fell below {share:percent} of its usual value.

    What it sees: {steps} measurements in a row below {share:percent} of the usual throughput. It is INFO at first, and
    a warning where it lasts another {lasting_steps} steps and {lasting_seconds} seconds. The finding ends when the
    throughput is back.

    Why it matters: the same result costs twice as much. A slow data source or a throttled device is the usual reason.

    What to try: profile the data loader; check the device clock and temperature; check the network.

    When it is wrong: batches that become smaller or shorter on purpose. On a shared machine it was found in 6 of 117
    healthy trainings as INFO.

    Reference: Jiang et al., MegaScale (arXiv:2402.15627)
    """

    share: float = 0.5  # share of the usual throughput below which it has dropped
    steps: int = 5  # number of low values in a row

    kind = "throughput_drop"
    noun = "a drop in throughput"
    plural = "drops in throughput"
    question = "Did the throughput fall?"
    check_by_hand = "Divide samples by seconds over 100 steps at the start and now; compare with a run that was fast."
    order = 250
    quantities = ("tokens_per_second", "samples_per_second")
    compared = ("tokens_per_second", "samples_per_second")
    in_a_row = "steps"
    severities = (Severity.INFO, Severity.WARNING)
    of_hardware = True
    remedies = (Remedy(Action.PROFILE_DATA_LOADER), Remedy(Action.CHECK_CLOCK), Remedy(Action.CHECK_NETWORK))

    def facts(self, _state: Streak, point: Point) -> Facts | None:
        low = point.center > 0 and point.value < point.center * self.share
        return ThroughputFacts(point.value, point.center, self.share, point.quantity) if low else None
