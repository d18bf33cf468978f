"""Throughput: steps, tokens, samples and FLOPs per second, and the share of the device's peak.

A batch is counted at the first forward pass before each backward pass. Where processes train on batches of their own
(DDP, FSDP), tokens and samples are multiplied by their number; FLOPs are of this process, to compare with its device.
Peaks are those that the maker states for dense matrix products, per device as torch sees it; variants with other clocks
(laptop, "Ti", "D", Max-Q) and slices of a device (MIG) are not in the table.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel

from mlflow_stability.probes.forward.forward_passes import ForwardObserver
from mlflow_stability.probes.model_discovery import WRAPPERS
from mlflow_stability.probes.performance.flop_count import BatchShape, FlopTotals, batch_shape
from mlflow_stability.probes.probe import Probe, StepView, next_multiple
from mlflow_stability.probes.step.readback import Block, signals_at
from mlflow_stability.vocabulary.measured.signal_type import SignalType, signals


@dataclass(frozen=True, slots=True)
class DevicePeak:
    """A row of the table; numbers in 10^12 operations a second."""

    name: str  # pattern of the name without the maker's
    half: float  # in float16, accumulated in float32
    bfloat16: float | None
    tf32: float | None  # in float32 with shortened mantissas, if the script asks for it
    single: float
    source: str


_A100 = "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/nvidia-a100-datasheet.pdf"
_HOPPER = "https://resources.nvidia.com/en-us-tensor-core/nvidia-tensor-core-gpu-datasheet"
_H200 = "https://www.nvidia.com/en-us/data-center/h200/"
_HGX = "https://www.nvidia.com/en-us/data-center/hgx/"
_GB200 = "https://www.nvidia.com/en-us/data-center/gb200-nvl72/"
_GA102 = "https://www.nvidia.com/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.pdf"
_ADA = "https://images.nvidia.com/aem-dam/Solutions/Data-Center/l4/nvidia-ada-gpu-architecture-whitepaper-v2.1.pdf"
_L4 = "https://www.nvidia.com/en-us/data-center/l4/"
_L40S = "https://www.nvidia.com/en-us/data-center/l40s/"
_V100 = "https://images.nvidia.com/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf"
_T4 = "https://www.nvidia.com/en-us/data-center/tesla-t4/"
_A10 = "https://www.nvidia.com/en-us/data-center/products/a10-gpu/"
_A40 = "https://www.nvidia.com/en-us/data-center/a40/"
_MI300X = "https://www.amd.com/en/products/accelerators/instinct/mi300/mi300x.html"
_MI325X = "https://www.amd.com/en/products/accelerators/instinct/mi300/mi325x.html"
_MI250X = "https://www.amd.com/en/products/accelerators/instinct/mi200/mi250x.html"

# Half of the figures for sparse products, where the maker gives no others.
PEAKS: tuple[DevicePeak, ...] = (
    DevicePeak(r"GB200( .*)?", 2500, 2500, 1250, 80, _GB200),
    DevicePeak(r"B200( .*)?", 2250, 2250, 1125, 75, _HGX),
    DevicePeak(r"H200 NVL", 835.5, 835.5, 417.5, 60, _H200),
    DevicePeak(r"(H200|GH200( .*)?)", 989.5, 989.5, 494.5, 67, _H200),
    DevicePeak(r"H100 PCIe", 756.5, 756.5, 378, 51, _HOPPER),
    DevicePeak(r"H100 NVL", 835.5, 835.5, 417.5, 60, _HOPPER),
    DevicePeak(r"H100 (80GB HBM3|SXM5.*)", 989.5, 989.5, 494.5, 67, _HOPPER),
    DevicePeak(r"A100[- ].*", 312, 312, 156, 19.5, _A100),
    DevicePeak(r"A40", 149.7, 149.7, 74.8, 37.4, _A40),
    DevicePeak(r"A10", 125, 125, 62.5, 31.2, _A10),
    DevicePeak(r"L40S", 362, 362, 183, 91.6, _L40S),
    DevicePeak(r"L4", 121, 121, 60, 30.3, _L4),
    DevicePeak(r"T4", 65, None, None, 8.1, _T4),
    DevicePeak(r"V100-PCIE-.*", 112, None, None, 14, _V100),
    DevicePeak(r"V100-SXM2-.*", 125, None, None, 15.7, _V100),
    DevicePeak(r"RTX 4090", 165.2, 165.2, 82.6, 82.6, _ADA),
    DevicePeak(r"RTX 3090", 71, 71, 35.6, 35.6, _GA102),
    DevicePeak(r"MI300X( .*)?", 1307.4, 1307.4, 653.7, 163.4, _MI300X),
    DevicePeak(r"MI325X( .*)?", 1307.4, 1307.4, 653.7, 163.4, _MI325X),
    DevicePeak(r"MI250X( .*)?", 191.5, 191.5, None, 47.9, _MI250X),
)

_MAKERS = re.compile(r"^(NVIDIA|AMD|Tesla|GeForce|Instinct)\s+", re.IGNORECASE)


def peak_of(name: str, dtype: torch.dtype, *, tf32: bool = False) -> float | None:
    """Return the operations a second of a device by its `torch.cuda.get_device_name`, or None if unknown."""
    bare = name.strip()
    while (shorter := _MAKERS.sub("", bare)) != bare:
        bare = shorter
    if re.search(r"\bMIG\b", bare):
        return None
    row = next((peak for peak in PEAKS if re.fullmatch(peak.name, bare, re.IGNORECASE)), None)
    if row is None:
        return None
    single = row.tf32 if tf32 and row.tf32 is not None else row.single
    peak = {torch.float16: row.half, torch.bfloat16: row.bfloat16, torch.float32: single}.get(dtype)
    return None if peak is None else peak * 1e12


def device_peak(device: torch.device, dtype: torch.dtype) -> float | None:
    """Return the operations a second of this device in this type, or None if unknown."""
    if device.type != "cuda":
        return None
    return peak_of(torch.cuda.get_device_name(device), dtype, tf32=_tf32_is_on())


def _tf32_is_on() -> bool:
    matmul = torch.backends.cuda.matmul
    if hasattr(matmul, "fp32_precision"):  # asking the older way then raises
        return str(matmul.fp32_precision) == "tf32"
    return bool(matmul.allow_tf32)


SIGNALS = signals(
    SignalType(
        "steps_per_second", "steps per second over the last 10, evaluation and checkpoints included", unit="{step}/s"
    ),
    SignalType("steps_per_second_mean", "steps per second over the last 100 steps", unit="{step}/s"),
    SignalType(
        "tokens_per_second",
        "tokens per second; from the model's first input: integers in two dimensions are tokens",
        unit="{token}/s",
        exported="llm_tokens_per_second",
    ),
    SignalType("tokens_per_second_mean", "tokens per second over the last 100 steps", unit="{token}/s"),
    SignalType(
        "samples_per_second",
        "samples per second: rows of the model's first input",
        unit="{sample}/s",
        exported="llm_samples_per_second",
    ),
    SignalType("samples_per_second_mean", "samples per second over the last 100 steps", unit="{sample}/s"),
    SignalType(
        "tokens_processed", "tokens trained on", unit="{token}", exported="llm_tokens_processed_total", counter=True
    ),
    SignalType(
        "tflops",
        "model TFLOPs per second, counted in one forward pass of the training",
        unit="TFLOP/s",
        exported="llm_model_tflops",
    ),
    SignalType(
        "mfu",
        "share of the device's peak FLOPs, 0 to 1, where the peak is known",
        exported="llm_model_flops_utilization",
    ),
    topic="throughput",
)


def data_parallel_size(root: Module) -> int:
    """Return the number of processes with which DDP or FSDP shares the gradients of a model.

    A script that averages gradients by itself counts as one process.
    """
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return 1
    module: Any = root
    while module is not None:
        if isinstance(module, DistributedDataParallel) or type(module).__name__ == "FullyShardedDataParallel":
            return int(module.process_group.size())
        parameter = next(Module.parameters(module), None)
        mesh = getattr(parameter, "device_mesh", None)
        if mesh is not None and any(kind.__name__ == "FSDPModule" for kind in type(module).__mro__):
            return int(mesh.size())
        module = next((module._modules[name] for name in WRAPPERS if set(module._modules.keys()) == {name}), None)
    return 1


def plain_batch(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """Return shapes and types if all arguments are plain tensors, else None.

    Cheaper than `shape_key` and `batch_shape`, whose results are the same for equal keys.
    """
    key: list[Any] = []
    for argument in (*args, *kwargs.values()) if kwargs else args:
        if type(argument) is not Tensor or argument.is_nested:
            return None
        key += (argument.shape, argument.dtype)
    return tuple(key)


EVERY_STEPS = 10
MEAN_OF_REPORTS = 10
MAX_KNOWN_MODELS = 32
FIRST_COUNTED_STEP = 4  # the first steps are often unlike the rest


class Throughput(ForwardObserver, Probe):
    part = "throughput"

    def __init__(
        self,
        tokens_per_step: float | None = None,
        now: Callable[[], float] = time.perf_counter,
        peak: Callable[[torch.device, torch.dtype], float | None] = device_peak,
    ) -> None:
        self.flops = FlopTotals()
        self._tokens_per_step = tokens_per_step
        self._now = now
        self._peak = peak
        self.is_between = True  # the next forward pass is the first since the last backward pass
        self._tokens = self._samples = 0
        self.all_tokens = 0.0
        self._copies = 0
        self._steps = self._step = 0  # number of steps, and the last one that was looked at
        self._measured: dict[str, float] = {}
        # Seconds, steps, tokens and samples of the last reports.
        self._reports: deque[tuple[float, int, float, float]] = deque(maxlen=MEAN_OF_REPORTS)
        # Time and step of the last report; None: rates begin at the next step.
        self._since: tuple[float, int] | None = None
        self._seen = False
        # By model: its last batch, and the operations of such a pass.
        self._usual: dict[int, tuple[tuple[Any, ...], BatchShape, float]] = {}

    def forward_began(self, root: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        usual, plain = self._usual.get(id(root)), plain_batch(args, kwargs)
        if usual is not None and usual[0] == plain and not self.flops.is_counting:
            if self.is_between:
                self.is_between = False
                self._samples += usual[1].samples
                self._tokens += usual[1].tokens or 0
            self.flops.flops += usual[2]
            return False
        shape = batch_shape(args, kwargs)
        if shape is None:
            return False
        if not self._seen:  # steps before this one must not be in a rate
            self._seen, self._since = True, None
        if self.is_between:
            self.is_between = False
            self._samples += shape.samples
            self._tokens += shape.tokens or 0
            if not self._copies:
                self._copies = data_parallel_size(root)
        flops = self.flops.forward_began(root, args, kwargs, shape, self._steps >= FIRST_COUNTED_STEP)
        if flops is None or len(self._usual) >= MAX_KNOWN_MODELS:
            self._usual.clear()  # this pass may end the count of all
        if flops is None or plain is None:
            self._usual.pop(id(root), None)
        else:
            self._usual[id(root)] = plain, shape, flops
        return self.flops.is_counting

    def forward_ended(self) -> None:
        if self.flops.is_counting:
            self.flops.forward_ended()

    def forward_failed(self) -> None:
        self.flops.give_up()

    def evaluated(self) -> None:
        self.flops.give_up()

    def pass_over(self) -> None:
        self.flops.give_up()

    def backward_began(self) -> None:
        self.is_between = True
        if self.flops.is_counting:
            self.flops.give_up()

    def due(self, step: int) -> bool:
        self._steps += 1
        self.flops.give_up()  # the pass was interrupted: before a step none goes on
        return step % EVERY_STEPS == 0 or self._since is None

    def next_due(self, step: int) -> int:
        settled = self._seen and self._since is not None and self._steps >= FIRST_COUNTED_STEP
        return next_multiple(step, EVERY_STEPS) if settled else step + 1

    def before_step(self, view: StepView) -> None:
        if view.step != self._step:
            self._step = view.step
            if view.step % EVERY_STEPS == 0 or self._since is None:
                self._measured = self._rates(view.step)

    def blocks(self, _step: int) -> Sequence[Block]:
        rates, self._measured = self._measured, {}
        return [Block(signals_at(tuple(rates), ""), tuple(rates.values()))] if rates else ()

    def _rates(self, step: int) -> dict[str, float]:
        flops, now, before = self.flops.take(), self._now(), self._since
        steps = self._steps if before is None else step - before[1]
        copies = self._copies or 1
        samples = self._samples * copies
        tokens: float = self._tokens * copies
        self._since, self._tokens, self._samples = (now, step), 0, 0  # at once: Ctrl-C must not come in between
        if self._tokens_per_step is not None:
            tokens = self._tokens_per_step * steps
        elif before is None:
            tokens *= steps  # the batches of the first steps were not seen
        if before is None:
            self.all_tokens = tokens
            return {}
        self.all_tokens += tokens
        seconds = now - before[0]
        self._reports.append((seconds, steps, tokens, samples))
        all_seconds, all_steps, all_tokens, all_samples = map(sum, zip(*self._reports, strict=True))
        rates: dict[str, float] = {
            "steps_per_second": steps / seconds,
            "steps_per_second_mean": all_steps / all_seconds,
        }
        if all_tokens:
            rates["tokens_per_second_mean"] = all_tokens / all_seconds
        if all_samples:
            rates["samples_per_second_mean"] = all_samples / all_seconds
        if tokens:
            rates["tokens_per_second"] = tokens / seconds
        if samples:
            rates["samples_per_second"] = samples / seconds
        if flops:
            rates["tflops"] = flops / seconds / 1e12
            device, dtype = self.flops.device, self.flops.dtype
            peak = None if device is None or dtype is None else self._peak(device, dtype)
            if peak is not None:
                rates["mfu"] = flops / seconds / peak
        if self.all_tokens:
            rates["tokens_processed"] = self.all_tokens
        return rates
