from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from session.interrupting import Attentive, Moments, thread_state
from torch import nn
from torch.nn.modules import module as torch_module

from mlflow_stability.probes.forward.forward_passes import ForwardScheduler
from mlflow_stability.probes.hooks.guarded_hooks import PartGuard
from mlflow_stability.probes.inside.attention_probe import AttentionProbe
from mlflow_stability.probes.step.readback import Block

MOST = 60


def guarded(probe: AttentionProbe, guard: PartGuard) -> tuple[Callable[..., Any], Callable[..., Any]]:
    return guard(probe.part, probe.open), guard("end", probe.close)


@pytest.mark.parametrize("place", ["open", "pass", "close"])
def test_attention_that_ctrl_c_ends_at_any_moment_leaves_nothing_once_it_is_closed_again(place: str) -> None:
    guard = PartGuard(strict=True, on_failure=lambda part, error: None)
    model, before, at, interrupted = Attentive(), thread_state(), 0, True
    tables = [
        getattr(torch_module, f"_global_forward_{name}")
        for name in ("pre_hooks", "hooks", "hooks_with_kwargs", "hooks_always_called")
    ]
    hooks = [len(table) for table in tables]
    while interrupted and at < MOST:
        at += 1
        moments, interrupted, alive = Moments(at), False, [True]
        probe = AttentionProbe(1, 16, guard, lambda _: None)
        begin, end = guarded(probe, guard)
        try:
            for name, act in (
                ("open", lambda begin=begin, alive=alive: begin(model, 1, lambda: alive[0])),
                ("pass", lambda: model(torch.ones(6, 4))),
                ("close", lambda end=end: end(True)),
            ):
                if name == place:
                    with moments.counted():
                        act()
                else:
                    act()
        except KeyboardInterrupt:
            interrupted = True
        alive[0] = False
        end(False)
        assert thread_state() == before, f"moment {at}"
        assert [len(table) for table in tables] == hooks, f"moment {at}"
    assert at > 10


class Reluctant:
    """Ctrl-C comes when it is closed for the first time."""

    part = "reluctant"

    def __init__(self) -> None:
        self.closed: list[bool] = []

    def due(self, own_step: int) -> bool:
        return True

    def next_due(self, own_step: int) -> int:
        return own_step + 1

    def open(self, root: nn.Module, step: int, alive: Callable[[], bool]) -> None:
        pass

    def close(self, whole: bool) -> None:
        self.closed.append(whole)
        if len(self.closed) == 1:
            raise KeyboardInterrupt

    def blocks(self) -> Sequence[Block]:
        return ()

    def finish(self) -> None:
        pass


def test_a_probe_that_ctrl_c_keeps_from_being_closed_is_closed_before_the_next_pass() -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    probe = Reluctant()
    turns = ForwardScheduler(PartGuard(strict=True, on_failure=lambda part, error: None), [probe], 1)
    model = nn.Linear(2, 2)
    turns.forward_began(model, (), {})
    with pytest.raises(KeyboardInterrupt):
        turns.forward_ended()
    turns.forward_failed()  # as the watch says before the next call
    turns.due(1)
    assert probe.closed[:2] == [True, False]
    seen = len(probe.closed)
    turns.due(2)
    assert len(probe.closed) == seen
