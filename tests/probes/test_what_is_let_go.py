"""Nothing of a pass that was looked into is kept once it is over, and no mode of the script sees us look."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from typing import Any

import pytest
import torch
from probes.looked_into import unguarded
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from mlflow_stability.probes.forward.forward_passes import ForwardScheduler
from mlflow_stability.probes.hooks.module_calls import MODULE_CALLS
from mlflow_stability.probes.inside.activation_probe import ActivationProbe
from mlflow_stability.probes.inside.attention_probe import AttentionProbe
from mlflow_stability.probes.inside.representation_probe import RepresentationProbe
from mlflow_stability.probes.probe import ForwardProbe

PROBES = ("activations", "representations", "attention")


def probe_of(part: str) -> ForwardProbe:
    if part == "activations":
        return ActivationProbe(unguarded, every=1)
    if part == "representations":
        return RepresentationProbe(unguarded, ["1"], every=1)
    return AttentionProbe(1, 8, unguarded, lambda _: None)


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
        self.seen: weakref.ref[Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        x = self.parts(x)
        self.seen = weakref.ref(x)
        output: Tensor = nn.functional.scaled_dot_product_attention(x, x, x)
        return output


class Listener:
    """Tells the scheduler of the passes of a model, as the watch of a training does."""

    def __init__(self, turns: ForwardScheduler) -> None:
        self.turns = turns

    def call_began(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.turns.forward_began(module, args, kwargs)

    def call_ended(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self.turns.forward_ended()

    def call_failed(self, module: nn.Module) -> None:
        self.turns.forward_failed()


def listened(model: nn.Module, turns: ForwardScheduler) -> None:
    MODULE_CALLS.observe(model, Listener(turns))


@pytest.mark.parametrize("part", PROBES)
def test_inputs_outputs_and_intermediate_tensors_are_released_after_the_pass(part: str) -> None:
    probe, model = probe_of(part), Attends()
    turns = ForwardScheduler(unguarded, [probe], 10)
    listened(model, turns)
    given = torch.randn(2, 5, 8)
    output = model(given)
    kept = [weakref.ref(given), weakref.ref(output), model.seen]
    del given, output
    assert [function() is None for function in kept if function is not None] == [True] * 3
    assert turns.due(10)
    assert turns.blocks(10)


@pytest.mark.parametrize("part", PROBES)
@pytest.mark.parametrize("asked", [False, True])
def test_a_model_that_the_script_drops_is_released_when_watching_ends(part: str, asked: bool) -> None:
    probe, model = probe_of(part), Attends()
    turns = ForwardScheduler(unguarded, [probe], 10)
    listened(model, turns)
    model(torch.randn(2, 5, 8))
    if asked:
        turns.due(10)
        turns.blocks(10)
    turns.finish()
    dropped = weakref.ref(model)
    del model
    gc.collect()
    assert dropped() is None


class Sees(TorchFunctionMode):
    """Notes down which of torch's functions are called."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[str(func)] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("part", PROBES[:2])
def test_a_mode_of_the_script_sees_the_calls_of_the_script_alone(part: str) -> None:
    seen: list[Counter[str]] = []
    for probes in ([], [probe_of(part)]):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(70, 80), nn.ReLU(), nn.Linear(80, 2))
        turns = ForwardScheduler(unguarded, probes, 10)
        given = torch.randn(32, 70)
        turns.forward_began(model, (given,), {})
        with Sees() as mode:
            model(given)
        turns.forward_ended()
        assert turns.due(10) is bool(probes)
        seen.append(mode.calls)
    assert seen[0] == seen[1]
