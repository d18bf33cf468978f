from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.flop_counter import FlopCounterMode

from mlflow_stability.probes.hooks import thread_state
from mlflow_stability.probes.hooks.thread_state import untracked
from mlflow_stability.probes.inside.attention_probe import AttentionMode
from mlflow_stability.probes.performance.flop_count import FlopCounter


class Silent(TorchFunctionMode):
    """A mode of the script."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def mode(alive: list[bool]) -> AttentionMode:
    return AttentionMode(lambda *_: None, lambda _: None, lambda: alive[0])


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    assert not _get_current_function_mode_stack()
    assert torch.is_grad_enabled()


def test_changed_state_of_the_thread_is_restored_and_the_rest_is_left_alone() -> None:
    with Silent() as theirs, torch.no_grad():
        before = thread_state.noted()
        torch.set_grad_enabled(True)
        untracked().__enter__()
        torch._C._pop_torch_function_stack()
        ours = FlopCounter()
        assert ours.enter()
        thread_state.restore_thread_state(before)
        assert _get_current_function_mode_stack() == [theirs]
        assert not torch.is_grad_enabled()
        assert torch._C._is_torch_function_enabled()
        assert not torch._C._len_torch_dispatch_stack()
        assert thread_state.noted() == before
        ours.leave()


def test_an_error_of_ours_ends_no_count_that_is_going_on_nor_ctrl_c_one_of_the_script() -> None:
    before = thread_state.noted()
    ours = FlopCounter()
    assert ours.enter()
    thread_state.restore_thread_state(before, interrupted=False)
    assert _get_current_dispatch_mode_stack() == [ours]
    ours.leave()
    with FlopCounterMode(display=False) as counter:
        thread_state.restore_thread_state(before)
        assert _get_current_dispatch_mode_stack() == [counter.mode]


def test_a_mode_of_ours_that_has_ended_is_not_restored() -> None:
    alive = [True]
    ours = mode(alive)
    ours.enter()
    before = thread_state.noted()
    with Silent() as theirs:
        alive[0] = False
        thread_state.restore_thread_state(before)
        assert _get_current_function_mode_stack() == []
        torch._C._push_on_torch_function_stack(theirs)


def test_a_mode_that_ctrl_c_has_left_behind_goes_as_soon_as_code_of_ours_runs() -> None:
    alive = [True]
    ours = mode(alive)
    ours.enter()
    with Silent() as theirs:
        thread_state.noted()
        assert _get_current_function_mode_stack() == [ours, theirs]
        alive[0] = False
        assert thread_state.noted()[1] == (theirs,)
        assert _get_current_function_mode_stack() == [theirs]


def test_a_mode_that_another_thread_removes_passes_calls_through_until_its_own_thread_removes_it() -> None:
    seen: list[Any] = []
    ours = AttentionMode(lambda *given: seen.append(given), lambda _: None, lambda: True)
    ours.enter()
    torch.ones(1)
    assert len(seen) == 1
    with Silent():
        other = threading.Thread(target=ours.leave)
        other.start()
        other.join()
    torch.ones(1)
    assert len(seen) == 1
    assert _get_current_function_mode_stack() == [ours]
    thread_state.noted()
    assert not _get_current_function_mode_stack()


def test_aside_nothing_is_recorded_counted_or_rounded_and_all_is_as_before_behind_it() -> None:
    weight = torch.ones(2, 2, requires_grad=True)
    with torch.autocast("cpu"), FlopCounterMode(display=False) as counter:
        with untracked():
            product = weight @ weight
        assert (product.dtype, product.requires_grad, counter.get_total_flops()) == (torch.float32, False, 0)
        product = weight @ weight
        assert (product.dtype, product.requires_grad) == (torch.bfloat16, True)
        assert counter.get_total_flops() > 0
