"""The vote of the autopilot brings the gradient norm along: ranks talk once a step."""

from __future__ import annotations

from pathlib import Path

import pytest
from probes.ranks.counted_collectives import STEPS
from probes.ranks.launching import launch, recorded

pytestmark = [pytest.mark.scenario, pytest.mark.slow]


def test_a_step_has_one_reduction_and_every_tenth_one_more_in_the_background(tmp_path: Path) -> None:
    ended = launch(2, "counted_collectives.py", str(tmp_path), seconds=240)
    assert [item.code for item in ended] == [0, 0], ended[0].errors[-2000:]
    rows = recorded(tmp_path)
    counted = {}
    for line in ended[0].printed.splitlines():
        step, count, norm = line.split()
        counted[int(step)] = int(count)
        assert rows[int(step)]["grad_norm"] == pytest.approx(float(norm), rel=1e-5), step
    assert {step for step, count in counted.items() if count > 1} <= {1, 2, 4, 10, 20}
    assert [count for step, count in counted.items() if step > 4 and step % 10] == [1] * (STEPS - 4 - 2)
