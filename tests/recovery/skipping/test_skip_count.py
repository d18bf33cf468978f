from __future__ import annotations

from typing import Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.amp import GradScaler

from mlflow_stability.recovery.skipping.loss_scale import calm_loss_scaler, cut_loss_scale
from mlflow_stability.recovery.skipping.skip_count import SkipCount, SkippedBy, SkipRow
from mlflow_stability.vocabulary.result import Severity
from mlflow_stability.vocabulary.rollback_policy import RollbackPolicy

POLICY = RollbackPolicy()


def skip(count: SkipCount, steps: int, by: SkippedBy, scale: float | None = None) -> list[SkipRow]:
    return [count.step(step, by, scale) for step in range(1, steps + 1)]


def test_a_taken_step_is_nothing_to_speak_of() -> None:
    assert SkipCount(POLICY).step(1, None) == SkipRow()


def test_the_first_of_consecutive_skips_is_reported() -> None:
    count = SkipCount(POLICY)
    events = [count.step(step, "guard" if step in (3, 4, 7) else None).events for step in range(1, 10)]
    assert [bool(item) for item in events] == [step in (3, 7) for step in range(1, 10)]
    assert events[2][0].severity is Severity.WARNING
    assert "are unchanged" in events[2][0].message


def test_twenty_five_skips_in_a_row_are_critical() -> None:
    rows = skip(SkipCount(POLICY), 30, "guard")
    assert rows[24].events[0].severity is Severity.CRITICAL
    assert rows[24].in_a_row == 25


@given(st.integers(100, 1000), st.sampled_from(["guard", "scaler"]), st.sampled_from([None, 1.0, 1024.0]))
def test_a_hundred_skips_in_a_row_never_pass_in_silence(
    steps: int, by: Literal["guard", "scaler"], scale: float | None
) -> None:
    rows = skip(SkipCount(POLICY), steps, by, scale)
    for beginning in range(steps - 99):
        stretch = rows[beginning : beginning + 100]
        assert any(event.severity is Severity.CRITICAL for row in stretch for event in row.events)


def test_a_loss_scaler_that_looks_for_its_first_scale_is_left_alone() -> None:
    count = SkipCount(POLICY)
    rows = [count.step(step, "scaler", 2.0 ** (16 - step)) for step in range(12)]
    assert not any(row.cut_scale for row in rows)
    assert [event.severity for row in rows for event in row.events] == [Severity.INFO]


def test_a_scale_that_does_not_come_down_by_itself_is_cut_after_five_skips() -> None:
    rows = skip(SkipCount(POLICY), 12, "scaler", 2.0**20)
    assert [number for number, item in enumerate(rows, 1) if item.cut_scale] == [5, 10]
    assert "lowered from 1.04858e+06 to 104858" in rows[4].events[0].message


def test_a_scale_that_had_grown_before_is_cut_though_it_falls() -> None:
    count = SkipCount(POLICY)
    count.step(1, None, 1024.0)
    count.step(2, None, 2048.0)
    rows = [count.step(3 + number, "scaler", 2048.0 / 2**number) for number in range(5)]
    assert [row.cut_scale for row in rows] == [False] * 4 + [True]


def test_a_scaler_that_has_to_be_cut_twice_in_short_is_calmed() -> None:
    rows = skip(SkipCount(POLICY), 12, "scaler", 2.0**20)
    assert [number for number, item in enumerate(rows, 1) if item.calm_scaler] == [10]
    seldom = SkipCount(POLICY)
    rows = [seldom.step(step, "scaler" if step % 400 < 5 else None, 2.0**20) for step in range(1000)]
    assert sum(row.cut_scale for row in rows) == 3
    assert not any(row.calm_scaler for row in rows)


def test_a_calmed_scaler_grows_no_faster_than_a_conservative_one_and_keeps_what_is_milder() -> None:
    bold = GradScaler("cpu", growth_factor=4.0, backoff_factor=0.97, growth_interval=2)
    calm_loss_scaler(bold)
    assert (bold.get_growth_factor(), bold.get_backoff_factor(), bold.get_growth_interval()) == (1.5, 0.5, 200)
    mild = GradScaler("cpu", growth_factor=1.1, backoff_factor=0.3, growth_interval=5000)
    calm_loss_scaler(mild)
    assert (mild.get_growth_factor(), mild.get_backoff_factor(), mild.get_growth_interval()) == (1.1, 0.3, 5000)


def test_a_scale_at_its_floor_is_not_cut() -> None:
    assert not any(item.cut_scale for item in skip(SkipCount(POLICY), 20, "scaler", 1.0))


def test_skipping_one_step_in_ten_is_critical_once() -> None:
    count = SkipCount(POLICY)
    rows = [count.step(step, "guard" if step % 10 == 0 else None) for step in range(1, 1001)]
    critical = [event for row in rows for event in row.events if event.severity is Severity.CRITICAL]
    assert len(critical) == 1
    assert "30 of the last 300 steps" in critical[0].message


def test_after_going_back_a_new_row_begins() -> None:
    count = SkipCount(POLICY)
    skip(count, 25, "guard")
    count.forget_row()
    assert count.step(26, "guard").in_a_row == 1
    assert count.total == 26


@pytest.mark.parametrize(("scale", "expected"), [(65536.0, 6553.6), (5.0, 1.0), (1.0, 1.0), (0.25, 0.25)])
def test_a_cut_lowers_the_scale_to_its_floor_and_never_raises_it(scale: float, expected: float) -> None:
    scaler = GradScaler("cpu", init_scale=scale)
    scaler.scale(torch.ones(()))
    held = scaler._scale
    cut_loss_scale(scaler, 0.1, 1.0)
    assert scaler._scale is held
    assert scaler.get_scale() == pytest.approx(expected)


def test_a_scale_that_was_cut_does_not_grow_at_the_next_step() -> None:
    scaler = GradScaler("cpu", init_scale=65536.0, growth_interval=3)
    weight, scales = torch.nn.Parameter(torch.ones(1)), list[float]()
    optimizer = torch.optim.SGD([weight], lr=0.0)
    for step in range(6):
        scaler.scale(weight.sum()).backward()
        scaler.step(optimizer)
        if step == 2:
            cut_loss_scale(scaler, 0.5, 1.0)
        scaler.update()
        scales.append(scaler.get_scale())
    assert scales == [65536.0, 65536.0, 32768.0, 32768.0, 65536.0, 65536.0]


def test_a_scaler_that_has_not_scaled_yet_has_nothing_to_cut() -> None:
    cut_loss_scale(GradScaler("cpu", enabled=False), 0.1, 1.0)
    cut_loss_scale(GradScaler("cpu"), 0.1, 1.0)


def test_the_first_skip_that_could_not_restore_buffers_says_so_and_what_to_do() -> None:
    skips = SkipCount(RollbackPolicy())
    (event,) = skips.step(1, "guard", buffers_lost=True).events
    assert "Buffers (batch-norm statistics) are not finite and were not restored" in event.message
    assert "reset_running_stats()" in str(event.remedies[0])
    skips.step(2, None)
    (event,) = skips.step(3, "guard", buffers_lost=True).events
    assert "Buffers" not in event.message
