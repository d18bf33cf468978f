"""Says how torch computes: versions, devices, seed, what is deterministic, in which precision.

In: nothing but torch's own switches, and the loss scaler that was seen. Out: names and values, as they become
parameters of the run. Guarantees: no random number is drawn, nothing is switched, no device is started or waited for.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import torch

_PROCESSORS = Path("/proc/cpuinfo")
_ENOUGH = 4096  # characters: the first processor of the list


def torch_facts() -> dict[str, str]:
    """What torch says of itself."""
    facts = {
        "torch": str(torch.__version__),
        "device_name": device_names(),
        "threads": str(torch.get_num_threads()),
        "seed": str(torch.initial_seed()),
        "deterministic_algorithms": _deterministic(),
        "float32_matmul": _matmul_precision(),
    }
    if torch.version.cuda:
        facts["cuda"] = str(torch.version.cuda)
    if getattr(torch.version, "hip", None):
        facts["hip"] = str(torch.version.hip)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        facts["cudnn"] = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
        facts["cudnn_benchmark"] = str(torch.backends.cudnn.benchmark)
        facts["cudnn_deterministic"] = str(torch.backends.cudnn.deterministic)
    return facts


def scaler_facts(scaler: Any) -> dict[str, str]:
    """How losses are scaled; its present scale lies on the device and is a series of its own."""
    if scaler is None:
        return {}
    return {
        "loss_scaling": type(scaler).__name__,
        "loss_scaling.initial_scale": str(getattr(scaler, "_init_scale", "")),
        "loss_scaling.growth_factor": str(scaler.get_growth_factor()),
        "loss_scaling.backoff_factor": str(scaler.get_backoff_factor()),
        "loss_scaling.growth_interval": str(scaler.get_growth_interval()),
    }


def autocast_now() -> str:
    """The type that autocast computes in at this moment: ``cuda bfloat16``; empty where it is off."""
    found = [
        f"{device} {str(torch.get_autocast_dtype(device)).removeprefix('torch.')}"
        for device in ("cuda", "cpu")
        if torch.is_autocast_enabled(device)
    ]
    return ", ".join(found)


def device_names() -> str:
    """`NVIDIA H100 80GB HBM3`, or `4 x NVIDIA L4`; without an accelerator at work, the processor."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        names = Counter(torch.cuda.get_device_name(each) for each in range(torch.cuda.device_count()))
        return ", ".join(name if count == 1 else f"{count} x {name}" for name, count in names.items())
    return _processor()


def _processor() -> str:
    """Read from the head of the kernel's list, which on large machines is long; empty where there is none."""
    try:
        with _PROCESSORS.open(encoding="utf-8", errors="replace") as file:
            lines = file.read(_ENOUGH).splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _deterministic() -> str:
    if not torch.are_deterministic_algorithms_enabled():
        return "False"
    return "warn only" if torch.is_deterministic_algorithms_warn_only_enabled() else "True"


def _matmul_precision() -> str:
    """In which precision products of float32 matrices are computed on a GPU.

    Torch has two ways to say it since 2.9, and where a script uses the newer one, asking the older one raises:
    https://docs.pytorch.org/docs/stable/notes/cuda.html#tensorfloat-32-tf32-on-ampere-and-later-devices
    """
    newer = getattr(torch.backends.cuda.matmul, "fp32_precision", "none")
    if newer != "none":
        return str(newer)
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return ""
