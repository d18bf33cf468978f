"""Experts that each rank has its own of: norms are those of the model with all experts, each counted once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from probes.ranks.launching import launch, recorded

STEPS, NAN_AT = 21, 12
"""As the script has them, which loads what warns."""
pytestmark = [pytest.mark.scenario, pytest.mark.slow]


@pytest.mark.parametrize(("way", "mode"), [("fsdp2", "watched"), ("ddp", "autopilot")])
def test_norms_are_those_of_the_model_with_all_experts(tmp_path: Path, way: str, mode: str) -> None:
    ended = launch(2, "expert_training.py", way, str(tmp_path), mode)
    assert [item.code for item in ended] == [0, 0], ended[0].errors[-3000:] + ended[1].errors[-3000:]
    rows = recorded(tmp_path / "journals")
    assert list(rows) == list(range(1, STEPS + 1))
    for truth in json.loads((tmp_path / "truth.json").read_text()):
        step = int(truth.pop("step"))
        wanted = truth if step % 10 == 0 else {"grad_norm": truth["grad_norm"]}
        seen = {key: rows[step].get(key) for key in wanted}
        assert seen == pytest.approx(wanted, rel=1e-5), step
    for item in ended:
        printed = [line.split() for line in item.printed.splitlines()]
        same = [int(step) for step, changed in printed if changed == "0"]
        assert same == ([NAN_AT] if mode == "autopilot" else []), "experts and shared weights alike"
