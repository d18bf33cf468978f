"""Knows what devices can do at most, in floating point operations a second.

In: a device's name and the type it computes in. Out: the peak that the maker states for dense matrix products, without
the factor of two for sparse ones; None where it is not known. CPUs have none: theirs depends on clock and cores.

Figures are per device as torch sees it: of an MI250X that is one of two dies. Variants with other clocks (laptop,
"Ti", "D", Max-Q) and slices of a device (MIG) are not in the table, and nothing is guessed for them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class DevicePeak:
    """One row of the table; numbers in 10^12 operations a second."""

    name: str
    """A pattern for the whole name, without the maker's."""
    half: float
    """In float16, accumulated in float32."""
    bfloat16: float | None
    """None: the device has no units for it."""
    tf32: float | None
    """In float32 with shortened mantissas, which scripts have to ask for."""
    single: float
    """In float32 as it is."""
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
"""Where the maker gives figures for sparse products only, half of them."""

_MAKERS = re.compile(r"^(NVIDIA|AMD|Tesla|GeForce|Instinct)\s+", re.IGNORECASE)


def peak_of(name: str, dtype: torch.dtype, *, tf32: bool = False) -> float | None:
    """Operations a second of the device of this name, as `torch.cuda.get_device_name` gives it."""
    bare = name.strip()
    while (shorter := _MAKERS.sub("", bare)) != bare:
        bare = shorter
    if re.search(r"\bMIG\b", bare):
        return None
    row = next((each for each in PEAKS if re.fullmatch(each.name, bare, re.IGNORECASE)), None)
    if row is None:
        return None
    single = row.tf32 if tf32 and row.tf32 is not None else row.single
    found = {torch.float16: row.half, torch.bfloat16: row.bfloat16, torch.float32: single}.get(dtype)
    return None if found is None else found * 1e12


def device_peak(device: torch.device, dtype: torch.dtype) -> float | None:
    """Operations a second of this device, in this type."""
    if device.type != "cuda":
        return None
    return peak_of(torch.cuda.get_device_name(device), dtype, tf32=_tf32_is_on())


def _tf32_is_on() -> bool:
    """Whether the script lets float32 products be shortened; the older way of asking fails where the newer was used."""
    matmul = torch.backends.cuda.matmul
    if hasattr(matmul, "fp32_precision"):
        return str(matmul.fp32_precision) == "tf32"
    return bool(matmul.allow_tf32)
