"""What is compiled or traced first in the middle of a pass that is looked into has nothing of ours in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
from probes.looked_into import unguarded
from torch import Tensor, nn

from mlflow_stability.probes.forward.compiled_models import CompiledCodeWatch
from mlflow_stability.probes.forward.forward_passes import ForwardScheduler
from mlflow_stability.probes.inside.activation_probe import ActivationProbe
from mlflow_stability.probes.inside.attention_probe import AttentionProbe
from mlflow_stability.probes.inside.representation_probe import RepresentationProbe
from mlflow_stability.probes.probe import ForwardProbe


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.down(self.up(x).relu())
        return output


class Late(nn.Module):
    """Prepares its inner part when it is called for the first time."""

    def __init__(self, prepare: Callable[[nn.Module], Callable[[Tensor], Any]]) -> None:
        super().__init__()
        self.inner = Inner()
        self.prepare: Callable[[nn.Module], Callable[[Tensor], Any]] | None = prepare
        self.runs: list[Callable[[Tensor], Any]] = [self.inner]

    def forward(self, x: Tensor) -> Tensor:
        if self.prepare is not None:
            self.runs, self.prepare = [self.prepare(self.inner)], None
        output: Tensor = self.runs[0](x)
        return output


GRAPHS: list[torch.fx.GraphModule] = []


def counting(graph: torch.fx.GraphModule, _inputs: Any) -> Callable[..., Any]:
    GRAPHS.append(graph)
    return graph.forward


def in_place(inner: nn.Module) -> nn.Module:
    inner.compile(backend=counting, fullgraph=True)
    return inner


def as_a_function(inner: nn.Module) -> Any:
    return torch.compile(lambda x: inner(x), backend=counting, fullgraph=True)


def by_another_name(inner: nn.Module) -> Any:
    return torch._dynamo.optimize(counting, nopython=True)(lambda x: inner(x))


def look(model: nn.Module, *calls: Tensor) -> list[Tensor]:
    probes: list[ForwardProbe] = [
        ActivationProbe(unguarded, every=1),
        RepresentationProbe(unguarded, ["inner"], every=1),
        AttentionProbe(1, 8, unguarded, lambda _: None),
    ]
    turns = ForwardScheduler(unguarded, probes, 10)

    def began(root: nn.Module, args: Any, kwargs: Any) -> None:
        turns.forward_began(root, args, kwargs)

    model.register_forward_pre_hook(began, with_kwargs=True)
    model.register_forward_hook(lambda *_: turns.forward_ended())
    result = [model(call) for call in calls]
    turns.finish()
    return result


@pytest.mark.parametrize("prepare", [in_place, as_a_function, by_another_name])
def test_a_part_that_is_compiled_in_the_middle_is_compiled_once_and_whole(prepare: Callable[..., Any]) -> None:
    GRAPHS.clear()
    model = Late(prepare)
    inputs = torch.ones(3, 4)
    first, second = look(model, inputs, inputs)
    assert len(GRAPHS) == 1
    assert not torch._dynamo.utils.counters["graph_break"]
    assert torch.equal(first, second)


@pytest.mark.filterwarnings("ignore:`torch.jit.trace")
def test_a_part_that_is_traced_in_the_middle_has_the_operations_of_the_script_alone() -> None:
    graphs = []
    for looked in (False, True):
        model = Late(lambda inner: torch.jit.trace(inner, torch.ones(3, 4)))
        if looked:
            look(model, torch.ones(3, 4))
        else:
            model(torch.ones(3, 4))
        graphs.append([node.kind() for node in model.runs[0].inlined_graph.nodes()])  # type: ignore[attr-defined]
    assert graphs[0] == graphs[1]


def test_torch_is_unchanged_afterwards() -> None:
    before = torch.compile, torch._dynamo.optimize, torch.jit._trace.make_module
    calls: list[str] = []
    retreat = CompiledCodeWatch(lambda compiled: calls.append("back" if compiled else "traced"))
    retreat.put_on()
    torch.compile(lambda x: x + 1, backend="eager")
    retreat.take_off()
    retreat.take_off()
    torch.compile(lambda x: x + 1, backend="eager")
    assert set(calls) == {"back"}
    after = torch.compile, torch._dynamo.optimize, torch.jit._trace.make_module
    assert all(mine is theirs for mine, theirs in zip(before, after, strict=True))
