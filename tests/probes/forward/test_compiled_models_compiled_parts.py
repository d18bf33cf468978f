"""Whether a model is compiled is a matter of that model, and of nothing else that is compiled in the process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
from probes.looked_into import unguarded
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mlflow_stability.probes.forward.compiled_models import compiled
from mlflow_stability.probes.forward.forward_passes import ForwardScheduler, ForwardWatch
from mlflow_stability.probes.inside.activation_probe import ActivationProbe
from mlflow_stability.probes.inside.attention_probe import AttentionProbe
from mlflow_stability.probes.performance.flop_count import FlopCounter
from mlflow_stability.vocabulary.result import Finding

# of what torch itself does while it compiles
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def sine(x: Tensor) -> Tensor:
    return x.sin()


function: Callable[[Tensor], Tensor] = sine


class Naming(nn.Module):
    """Calls a variable of its Python module, by way of a method."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.bend(self.linear(x))

    def bend(self, x: Tensor) -> Tensor:
        return function(x)

    def unused(self, x: Tensor) -> Tensor:
        return never_called(x)


never_called: Any = sine


class SnapshotManager(Naming):
    """Calls one that it keeps, or that is in a table which no walk over its attributes reaches."""

    def __init__(self, **kept: Any) -> None:
        super().__init__()
        self.table = {"bend": (0, function)}
        self.kept = kept.get("kept")

    def bend(self, x: Tensor) -> Tensor:
        output: Tensor = self.table["bend"][1](x) if self.kept is None else self.kept(x)
        return output


def test_what_else_is_compiled_in_the_process_is_no_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    other = torch.compile(sine, backend="eager", fullgraph=True)
    other(torch.ones(2))
    monkeypatch.setitem(globals(), "never_called", other)
    assert compiled(Naming()) == "no"
    assert compiled(SnapshotManager()) == "no"
    assert compiled(nn.TransformerEncoderLayer(8, 2)) == "no"


def test_a_module_that_is_compiled_is_a_part_of_the_model() -> None:
    block = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    block[0].compile(backend="eager")
    assert compiled(block) == "in part"
    assert compiled(nn.DataParallel(torch.compile(nn.Linear(2, 2), backend="eager"))) == "whole"  # type: ignore[arg-type]


GRAPHS: list[torch.fx.GraphModule] = []


def counting(graph: torch.fx.GraphModule, _inputs: Any) -> Callable[..., Any]:
    GRAPHS.append(graph)
    return graph.forward


def trained(
    model: nn.Module, looked: bool, steps: int = 6
) -> tuple[list[Tensor], list[Finding], list[str], FlopCounter | None]:
    findings: list[Finding] = []
    seen: list[str] = []
    counter = FlopCounter()
    every = 1 if looked else 10**9
    probes = [
        ActivationProbe(unguarded, every),
        AttentionProbe(every, 8, unguarded, lambda _: None),
    ]
    turns = ForwardScheduler(unguarded, probes, 1, findings.append)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = ForwardWatch(unguarded, [turns])
    watch.before_step(optimizer)
    torch.manual_seed(3)
    outputs = []
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        if looked and step == 1:
            assert counter.enter()
        output = model(torch.randn(4, 6))
        counter.leave()
        output.square().mean().backward()
        seen.append("")
        if turns.due(step):
            seen[-1] = " ".join(str(signal) for block in turns.blocks(step) for signal in block.signals)
        optimizer.step()
        outputs.append(output.detach().clone())
    watch.remove()
    return [*outputs, *(parameter.detach() for parameter in model.parameters())], findings, seen, counter


@pytest.mark.parametrize("warm", [False, True])
def test_unexpected_compiled_code_is_not_disturbed_and_is_avoided_from_the_next_pass(
    monkeypatch: pytest.MonkeyPatch, warm: bool
) -> None:
    result = []
    for looked in (False, True):
        torch._dynamo.reset()
        GRAPHS.clear()
        torch.manual_seed(0)
        bend = torch.compile(lambda x: x.sin(), backend=counting, fullgraph=True)
        if warm:
            bend(torch.ones(4, 6, requires_grad=True))
        monkeypatch.setitem(globals(), "function", bend)
        model = SnapshotManager()
        monkeypatch.setitem(globals(), "function", sine)
        assert compiled(model) == "no"
        torch._dynamo.utils.counters.clear()
        tensors, values, seen, counter = trained(model, looked)
        result.append((tensors, len(GRAPHS), dict(torch._dynamo.utils.counters["frames"])))
        assert not torch._dynamo.utils.counters["graph_break"]
        assert not values
    assert compiled(model) == "in part"
    assert seen[0] == ""
    assert all("activation_mean@linear" in text for text in seen[1:])
    assert counter is not None
    assert counter.given_up == "compiled"
    (bare, *of_bare), (watched, *of_watched) = result
    assert of_bare == of_watched
    assert all(torch.equal(first, other) for first, other in zip(bare, watched, strict=True))


class Checkpointing(Naming):
    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = checkpoint(self.linear, torch.compiler.disable(sine)(x), use_reentrant=False)  # type: ignore[no-untyped-call]
        return output


def test_what_is_kept_from_the_compiler_does_not_end_a_look() -> None:
    model = Checkpointing()
    _, values, seen, counter = trained(model, looked=True)
    assert compiled(model) == "no"
    assert not values
    assert all("activation_mean@linear" in text for text in seen)
    assert counter is not None
    assert (counter.given_up, counter.flops) == ("", 2 * 4 * 6 * 6)


def test_several_counters_leave_torch_unchanged_in_whatever_order_they_end() -> None:
    before = torch.compile, torch._dynamo.eval_frame.set_eval_frame
    first, second = FlopCounter(), FlopCounter()
    first._compiled_code.put_on()
    second._compiled_code.put_on()
    first._compiled_code.take_off()
    assert torch.compile is not before[0]
    second._compiled_code.take_off()
    assert torch.compile is before[0]
    assert torch._dynamo.eval_frame.set_eval_frame is before[1]
