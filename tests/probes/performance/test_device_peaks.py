from __future__ import annotations

import re
import subprocess

import pytest
import torch
from forked.processes import python

from mlflow_stability.probes.performance.throughput import PEAKS, device_peak, peak_of

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


@pytest.mark.parametrize(
    ("name", "dtype", "tera"),
    [
        ("NVIDIA A100-SXM4-80GB", BF16, 312),
        ("NVIDIA A100 80GB PCIe", F16, 312),
        ("NVIDIA A100-SXM4-40GB", F32, 19.5),
        ("NVIDIA H100 80GB HBM3", BF16, 989.5),
        ("NVIDIA H100 PCIe", BF16, 756.5),
        ("NVIDIA H200", BF16, 989.5),
        ("NVIDIA GH200 480GB", BF16, 989.5),
        ("NVIDIA B200", BF16, 2250),
        ("NVIDIA L4", BF16, 121),
        ("NVIDIA L40S", BF16, 362),
        ("Tesla T4", F16, 65),
        ("Tesla V100-SXM2-16GB", F16, 125),
        ("NVIDIA GeForce RTX 3090", BF16, 71),
        ("NVIDIA GeForce RTX 4090", BF16, 165.2),
        ("AMD Instinct MI300X", BF16, 1307.4),
        ("AMD Instinct MI300X OAM", BF16, 1307.4),
    ],
)
def test_a_device_is_known_by_the_name_that_torch_gives_it(name: str, dtype: torch.dtype, tera: float) -> None:
    assert peak_of(name, dtype) == pytest.approx(tera * 1e12)


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 3090 Ti",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA A1000",
        "NVIDIA L400",
        "Some Accelerator",
        "",
    ],
)
def test_nothing_is_guessed_for_a_device_that_is_not_in_the_table(name: str) -> None:
    assert peak_of(name, BF16) is None


def test_a_type_without_units_of_its_own_has_no_peak() -> None:
    assert peak_of("Tesla T4", BF16) is None
    assert peak_of("NVIDIA H100 80GB HBM3", torch.float64) is None


def test_shortened_products_have_another_peak_where_the_device_has_them() -> None:
    assert peak_of("NVIDIA A100-SXM4-80GB", F32, tf32=True) == pytest.approx(156e12)
    assert peak_of("Tesla T4", F32, tf32=True) == pytest.approx(8.1e12)


def test_a_cpu_has_no_peak() -> None:
    assert device_peak(torch.device("cpu"), F32) is None


def test_every_row_has_a_source_and_wider_types_are_slower() -> None:
    for row in PEAKS:
        assert re.match(r"https://\S+$", row.source)
        assert row.half >= (row.tf32 or row.single) >= row.single


@pytest.mark.slow
@pytest.mark.parametrize(
    ("expected", "answer"),
    [
        ("pass", False),
        ("torch.set_float32_matmul_precision('high')", True),
        ("torch.backends.cuda.matmul.allow_tf32 = True", True),
        ("torch.backends.cuda.matmul.fp32_precision = 'tf32'", True),
    ],
)
def test_however_a_script_asks_for_shortened_products_it_is_known(expected: str, answer: bool) -> None:
    asked = "from mlflow_stability.probes.performance.throughput import _tf32_is_on"
    code = f"import torch; {expected}; {asked}; print(_tf32_is_on())"
    finished = subprocess.run([python(), "-c", code], capture_output=True, text=True, check=True)
    assert finished.stdout.strip() == str(answer)
