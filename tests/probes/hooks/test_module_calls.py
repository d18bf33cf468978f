from __future__ import annotations

import gc
import inspect
import os
import traceback
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mlflow_stability.probes.hooks.module_calls import MODULE_CALLS, ModuleCalls

ORIGINAL = nn.Module.__call__
TORCHS_CODE = MODULE_CALLS.torchs_code
FOUR = torch.ones(2, 4)


@pytest.fixture(autouse=True)
def torch_is_as_it_was() -> Iterator[None]:
    MODULE_CALLS.forget_all()  # watches that other tests have left
    yield
    gc.collect()
    assert len(MODULE_CALLS) == 0
    assert nn.Module.__call__ is ORIGINAL
    assert nn.Module.__call__.__code__ is TORCHS_CODE


class Calls:
    """Takes down every call."""

    def __init__(self, heard: list[Any] | None = None, name: str = "") -> None:
        self.heard: list[Any] = [] if heard is None else heard
        self.name = name

    def call_began(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.heard.append((f"{self.name}began", type(module).__name__, len(args), sorted(kwargs)))

    def call_ended(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self.heard.append((f"{self.name}ended", None if output is None else tuple(output.shape)))

    def call_failed(self, module: nn.Module) -> None:
        self.heard.append(f"{self.name}failed")


class Own(nn.Module):
    """Overrides its call, and calls that of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 3)
        self.calls = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return super().__call__(*args, **kwargs)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.inner(x)
        return output


def test_observers_get_the_arguments_and_outputs_of_calls() -> None:
    model = Own()
    calls = Calls()
    watched = MODULE_CALLS.observe(model, calls)
    model(FOUR)
    model(x=FOUR)
    assert calls.heard == [("began", "Own", 1, []), ("ended", (2, 3)), ("began", "Own", 0, ["x"]), ("ended", (2, 3))]
    assert model.calls == 2
    watched()
    watched()
    model(FOUR)
    assert len(calls.heard) == 4


def test_a_failed_call_is_reported_and_its_traceback_is_that_of_torch() -> None:
    model = Own()
    with pytest.raises(RuntimeError) as bare:
        model(torch.ones(2, 5))
    calls = Calls()
    watched = MODULE_CALLS.observe(model, calls)
    with pytest.raises(RuntimeError) as seen:
        model(torch.ones(2, 5))
    watched()
    assert calls.heard == [("began", "Own", 1, []), "failed"]
    assert traceback.format_tb(seen.value.__traceback__)[1:] == traceback.format_tb(bare.value.__traceback__)[1:]


def test_ctrl_c_within_a_call_is_reported() -> None:
    class Interrupted(nn.Module):
        def forward(self, _x: Tensor) -> None:
            raise KeyboardInterrupt

    model, calls = Interrupted(), Calls()
    watched = MODULE_CALLS.observe(model, calls)
    with pytest.raises(KeyboardInterrupt):
        model(FOUR)
    watched()
    assert calls.heard[-1] == "failed"


def test_observers_end_in_reverse_order_and_one_added_during_a_call_sees_its_end() -> None:
    heard: list[Any] = []
    model = nn.Linear(4, 3)
    later = Calls(heard, "later ")

    class Adding(Calls):
        def call_began(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            super().call_began(module, args, kwargs)
            added.append(MODULE_CALLS.observe(module, later))

    added = [MODULE_CALLS.observe(model, Adding(heard))]
    model(FOUR)
    for function in added:
        function()
    assert heard == [("began", "Linear", 1, []), ("later ended", (2, 3)), ("ended", (2, 3))]


def test_a_call_without_output_is_reported_as_ended() -> None:
    class Keeps(nn.Module):
        def forward(self, x: Tensor) -> None:
            self.kept = x

    model, calls = Keeps(), Calls()
    watched = MODULE_CALLS.observe(model, calls)
    assert model(FOUR) is None
    watched()
    assert calls.heard[-1] == ("ended", None)


def test_unwatched_modules_copies_of_watched_modules_and_muted_calls_are_not_reported() -> None:
    model, calls = nn.Sequential(nn.Linear(4, 3)), Calls()
    watched = MODULE_CALLS.observe(model, calls)
    model[0](FOUR)
    nn.Sequential(nn.Linear(4, 3))(FOUR)
    with MODULE_CALLS.muted():
        model(FOUR)
    assert calls.heard == []
    watched()


def test_a_deleted_module_is_forgotten() -> None:
    model = nn.Linear(4, 3)
    MODULE_CALLS.observe(model, Calls())
    assert len(MODULE_CALLS) == 1
    del model
    gc.collect()
    assert len(MODULE_CALLS) == 0


def test_a_watcher_gets_only_the_gradient_mode_and_the_training_mode() -> None:
    model = nn.Linear(4, 3)
    items: list[Any] = []
    watched = MODULE_CALLS.watch(
        model, lambda module, _args, _kwargs: items.append((module, torch.is_grad_enabled(), module.training))
    )
    model(FOUR)
    with torch.no_grad():
        model.eval()(FOUR)
    watched()
    model(FOUR)
    assert items == [(model, True, True), (model, False, False)]


@pytest.mark.filterwarnings("ignore:`torch.jit.(trace|trace_method)` is deprecated")
def test_calls_during_tracing_are_not_reported() -> None:
    model, calls = nn.Sequential(nn.Sequential(nn.Linear(4, 3))), Calls()
    watched = [MODULE_CALLS.observe(module, calls) for module in model.modules()]
    torch.fx.symbolic_trace(model)
    torch.jit.trace(model, (FOUR,), check_trace=False)  # type: ignore[no-untyped-call]
    torch.export.export(model, (FOUR,))
    for function in watched:
        function()
    assert calls.heard == []


def test_the_code_can_be_hashed_and_its_source_is_that_of_torch() -> None:
    source = inspect.getsource(nn.Module.__call__)
    watched = MODULE_CALLS.observe(model := nn.Linear(4, 3), Calls())
    code = nn.Module.__call__.__code__
    assert code is MODULE_CALLS.code
    assert code in {code}
    assert code.co_filename == TORCHS_CODE.co_filename
    assert inspect.getsource(nn.Module.__call__) == source
    watched()
    assert model(FOUR).shape == (2, 3)


def test_calls_are_reported_if_the_source_of_torch_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: object) -> str:
        raise OSError("could not get source code")

    monkeypatch.setattr(inspect, "getsource", missing)
    table, calls = ModuleCalls(), Calls()
    model = nn.Linear(4, 3)
    expected = model(FOUR)
    watched = table.observe(model, calls)
    assert torch.equal(model(FOUR), expected)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        model(torch.ones(2, 5))
    watched()
    assert calls.heard == [("began", "Linear", 1, []), ("ended", (2, 3)), ("began", "Linear", 1, []), "failed"]


def test_a_forked_process_watches_nothing() -> None:
    model, calls = nn.Linear(4, 3), Calls()
    watched = MODULE_CALLS.observe(model, calls)
    child = os.fork()
    if child == 0:
        same = nn.Module.__call__.__code__ is TORCHS_CODE and not MODULE_CALLS
        os._exit(0 if same and model(FOUR).shape == (2, 3) else 1)
    assert os.waitpid(child, 0)[1] == 0
    watched()
