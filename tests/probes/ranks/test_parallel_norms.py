"""Norms of a model that is split over processes are those of the model in one process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from probes.ranks.launching import launch, recorded

pytestmark = [pytest.mark.scenario, pytest.mark.slow]
FLAT = {f"{quantity}@norm" for quantity in ("param_norm", "grad_norm", "update_norm")}
"""FSDP's flat parameters have no layers but their units: the normalisation is in that of the whole model."""
PARTIAL = {"lr_ratio", "grad_norm@norm"}
"""Gradients that torch itself sums up only in the optimizer are known to no process by layer."""
UNKNOWN = {"fsdp1": FLAT, "sequence": PARTIAL}


def must_agree(ways: tuple[str, ...], processes: int, folder: Path, **options: float | bool) -> None:
    ended = launch(processes, "parallel_training.py", ",".join(ways), str(folder), json.dumps(options), seconds=300)
    assert [item.code for item in ended] == [0] * processes, ended[0].errors + ended[-1].errors
    for way in ways:
        truth = json.loads((folder / way / "truth.json").read_text())
        rows = recorded(folder / way / "journals")
        assert list(rows) == list(range(1, len(truth) + 1)), way
        for step, row in enumerate(truth, 1):
            left_out = UNKNOWN.get(way, set()) | ({"grad_norm"} if way == "sequence" and step == 1 else set())
            wanted = {key: value for key, value in row.items() if key not in left_out}
            seen = {key: rows[step].get(key) for key in wanted}
            assert seen == pytest.approx(wanted, rel=1e-5, abs=1e-9), (way, step)


def test_norms_agree_on_two_processes(tmp_path: Path) -> None:
    ways = "ddp", "fsdp2", "fsdp2_mixed", "fsdp2_offload", "tensor", "sequence", "fsdp1", "fsdp1_orig", "zero"
    must_agree(ways, 2, tmp_path)


def test_norms_agree_on_four_processes(tmp_path: Path) -> None:
    must_agree(("fsdp2", "hsdp", "tensor_fsdp2", "tensor", "fsdp1_orig"), 4, tmp_path)


def test_the_norm_before_clipping_is_the_one_that_the_script_got(tmp_path: Path) -> None:
    must_agree(("fsdp2", "fsdp1", "fsdp1_orig"), 2, tmp_path, clip=0.2)


def test_norms_agree_under_the_autopilot(tmp_path: Path) -> None:
    must_agree(("fsdp2",), 2, tmp_path, rollback=True)
