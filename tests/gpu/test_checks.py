"""The checks of `python tests/gpu`: all of them on a GPU; elsewhere those that have a meaning, to try the checks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gpu.check import Bench, Check, NotHereError
from gpu.every_check import CHECKS

pytestmark = pytest.mark.slow

HAS_CUDA = torch.cuda.is_available()
LONG = "overhead, "
"""Elsewhere one row of this name will do: they differ by what a GPU does."""
SHOWN = [
    check for check in CHECKS if HAS_CUDA or not check.name.startswith(LONG) or check.name == "overhead, eager, 10 ms"
]


@pytest.mark.parametrize("check", SHOWN, ids=lambda letter: letter.name)
def test_what_a_gpu_shows(check: Check, tmp_path: Path) -> None:
    if check.needs_cuda and not HAS_CUDA:
        pytest.skip("needs CUDA")
    bench = Bench(torch.device("cuda" if HAS_CUDA else "cpu"), tmp_path, quick=not HAS_CUDA)
    try:
        outcome = check.run(bench)
    except NotHereError as reason:
        pytest.skip(str(reason))
    assert outcome.passed, outcome.figure
