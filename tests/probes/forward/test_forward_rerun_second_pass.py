"""A second pass of a compiled model changes nothing, whatever the model keeps and wherever it does."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from probes.own_state import NOT_RUN_AGAIN, RESTORED, HelperObject, Hooked, SnapshotManager, made
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from mlflow_stability.probes.forward import forward_rerun as second_pass
from mlflow_stability.probes.forward.forward_rerun import MAX_FAILURES, SecondPass


@pytest.fixture(autouse=True)
def _nothing_compiled() -> Iterator[None]:
    yield
    torch._dynamo.reset()


def trained(kind: type[SnapshotManager], looked_into: bool) -> tuple[list[Tensor], SecondPass, int]:
    """What came out of a model of which a part is compiled; and how many second passes there were."""
    model, second, looks = made(kind), SecondPass(), 0
    model.linear.compile(backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(1)
    outputs = []
    for _ in range(5):
        inputs = torch.randn(4, 6)
        with second.of(model, (inputs,), {}) if looked_into else nothing() as (inner, run):
            if inner is not None:
                looks += run()
        output = model(inputs)
        output.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        outputs.append(output.detach().clone())
    return [*outputs, *(parameter.detach() for parameter in model.parameters()), torch.get_rng_state()], second, looks


class nothing:  # noqa: N801
    """Observe nothing."""

    def __enter__(self) -> tuple[None, Any]:
        return None, None

    def __exit__(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("kind", RESTORED)
def test_a_model_with_its_own_state_trains_identically_with_and_without_a_second_pass(
    kind: type[SnapshotManager],
) -> None:
    bare, _, _ = trained(kind, looked_into=False)
    watched, second, looks = trained(kind, looked_into=True)
    assert (looks, second.reason) == (5, "")
    assert all(torch.equal(first, other) for first, other in zip(bare, watched, strict=True))


def reason(model: nn.Module, *args: Any, **kwargs: Any) -> str:
    second = SecondPass()
    with second.of(model, args, kwargs) as (inner, _):
        assert (inner is None) == bool(second.reason)
    return second.reason


@pytest.mark.parametrize("kind", NOT_RUN_AGAIN)
def test_a_model_that_cannot_be_restored_is_not_run_and_the_reason_is_given(kind: type[SnapshotManager]) -> None:
    model = made(kind)
    model.linear.compile(backend="eager")
    if kind is Hooked:  # hooks do not run in a second pass
        assert reason(model, torch.ones(2, 6)) == ""
    else:
        assert NOT_RUN_AGAIN[kind] in reason(model, torch.ones(2, 6))


def test_an_iterator_is_not_eaten() -> None:
    model = torch.compile(nn.Linear(2, 2), backend="eager")
    assert isinstance(model, nn.Module)
    chunks = iter([torch.ones(1, 2)] * 3)
    assert "args[0] is of type list_iterator" in reason(model, chunks)
    assert "later is of type generator" in reason(model, later=(chunk for chunk in chunks))
    assert len(list(chunks)) == 3


def test_a_batch_of_a_custom_class_is_restored() -> None:
    class Batch:
        def __init__(self) -> None:
            self.x, self.calls, self.notes = torch.ones(2, 6), 0, {"seen": [1]}

    class Reading(HelperObject):
        def forward(self, batch: Batch) -> Tensor:  # type: ignore[override]
            batch.calls += 1
            batch.notes["seen"].append(2)
            batch.notes["new"] = [3]
            return super().forward(batch.x.mul_(0.5))

    model, batch = made(Reading), Batch()
    model.linear.compile(backend="eager")
    version, x = batch.x._version, batch.x
    with SecondPass().of(model, (batch,), {}) as (_, run):
        assert run()
    assert (batch.calls, batch.notes, batch.x is x, x._version) == (0, {"seen": [1]}, True, version)
    assert torch.equal(x, torch.ones(2, 6))


def test_a_counter_of_the_script_does_not_count_a_second_pass() -> None:
    model = made(HelperObject)
    model.linear.compile(backend="eager")
    with torch.device("cpu"):
        assert reason(model, torch.ones(2, 6)) == ""
    with FlopCounterMode(display=False):
        assert reason(model, torch.ones(2, 6)).endswith("FlopCounterMode is active and would see it run twice")


class Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 2)
        self.linear.compile(backend="eager")

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] == 3:
            raise ValueError("odd batch")
        output: Tensor = self.linear(x)
        return output


def test_errors_of_the_model_end_the_pass_and_too_many_of_them_end_all_passes() -> None:
    model, second = Odd(), SecondPass()

    def looked(rows: int) -> bool | None:
        with second.of(model, (torch.ones(rows, 6),), {}) as (inner, run):
            return None if inner is None else run()

    assert [looked(rows) for rows in (3, 4, 3, 3)] == [False, True, False, False]
    assert second.reason == ""
    assert looked(4) is None
    assert f"failed {MAX_FAILURES} times in a row" in second.reason
    assert "ValueError: odd batch" in second.reason


def test_what_a_signal_handler_of_the_script_raises_reaches_the_script() -> None:
    class Alarmed(Odd):
        def forward(self, x: Tensor) -> Tensor:
            signal.raise_signal(signal.SIGUSR1)
            return x

    class TimeIsUpError(Exception):
        pass

    def handler(*_: object) -> None:
        raise TimeIsUpError

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(TimeIsUpError), SecondPass().of(Alarmed(), (torch.ones(2, 6),), {}) as (_, run):
            run()
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_pass_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    model, second = made(HelperObject), SecondPass()
    model.linear.compile(backend="eager")
    monkeypatch.setattr(second_pass, "run_again", lambda *_: written(-1.0))

    def written(seconds: float) -> None:
        with second_pass.TrackedWrites(second_pass.WrittenTensors(seconds)):
            torch.ones(2)

    with second.of(model, (torch.ones(2, 6),), {}) as (_, run):
        assert not run()


def test_weights_that_were_cast_for_the_second_pass_still_get_a_gradient() -> None:
    model = made(HelperObject)
    model.linear.compile(backend="eager")
    inputs = torch.ones(2, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with SecondPass().of(model, (inputs,), {}) as (_, run):
            assert run()
        model(inputs).sum().backward()
    assert model.linear.weight.grad is not None


def test_after_ctrl_c_in_a_second_pass_everything_is_restored() -> None:
    class Interrupted(HelperObject):
        def number(self) -> Tensor:
            result = super().number()
            self.linear.weight.data += 1
            if len(self.helper.seen) == 3:
                signal.raise_signal(signal.SIGINT)
            return result

    model, inputs = made(Interrupted), torch.ones(2, 6)
    model.linear.compile(backend="eager")
    for _ in range(2):
        model(inputs)
    weight, helper = model.linear.weight.detach().clone(), repr(model.helper)
    dice, hooks = torch.get_rng_state(), len(model._forward_hooks)
    with pytest.raises(KeyboardInterrupt), SecondPass().of(model, (inputs,), {}) as (_, run):
        run()
    assert torch.equal(model.linear.weight, weight)
    assert repr(model.helper) == helper
    assert torch.equal(torch.get_rng_state(), dice)
    assert len(model._forward_hooks) == hooks
    assert torch.is_grad_enabled()
