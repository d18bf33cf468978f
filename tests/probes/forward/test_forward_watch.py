from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from probes.looked_into import unguarded
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD
from torch.utils.checkpoint import checkpoint

from mlflow_stability.probes.forward.forward_passes import ForwardObserver, ForwardWatch
from mlflow_stability.probes.hooks.module_calls import MODULE_CALLS
from mlflow_stability.probes.probe import WatchedModules

pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.(script|save|load)"),  # on its way out, and still in use
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]


class Heard(ForwardObserver):
    """Takes down every call."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def forward_began(self, root: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.calls.append((type(root).__name__, len(args), sorted(kwargs)))

    def forward_ended(self) -> None:
        self.calls.append("ended")

    def forward_failed(self) -> None:
        self.calls.append("failed")

    def evaluated(self) -> None:
        self.calls.append("evaluated")


class Net(nn.Module):
    """Takes its input by place or by name."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.drop(self.inner(x))
        return output


@pytest.fixture(autouse=True)
def nothing_compiled_before() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def watched(model: nn.Module) -> tuple[ForwardWatch, Heard]:
    heard = Heard()
    watch = ForwardWatch(unguarded, (heard,))
    watch.before_step(SGD(model.parameters(), lr=0.1))
    return watch, heard


def hooks_of(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


def test_the_outermost_module_is_observed_by_position_and_by_name() -> None:
    model = nn.Sequential(Net())
    _, heard = watched(model)
    model(torch.ones(2, 4))
    assert heard.calls == [("Sequential", 1, []), "ended"]
    assert hooks_of(model) == 0
    named = Net()
    _, heard = watched(named)
    named(x=torch.ones(2, 4))
    assert heard.calls == [("Net", 0, ["x"]), "ended"]


def test_evaluation_is_distinguished_from_training() -> None:
    model = Net()
    _, heard = watched(model)
    with torch.no_grad():
        model(torch.ones(2, 4))
    model.eval()(torch.ones(2, 4))
    model.train()(torch.ones(2, 4))
    assert heard.calls == ["evaluated", "evaluated", ("Net", 1, []), "ended"]


def test_a_checkpoint_that_runs_the_model_again_in_backward_is_no_forward_pass() -> None:
    model = Net()
    watch, heard = watched(model)
    loss = checkpoint(model, torch.ones(2, 4), use_reentrant=False).sum()
    watch.backward_began()
    loss.backward()
    watch.backward_ended()
    assert heard.calls == [("Net", 1, []), "ended"]


def test_a_forward_pass_that_failed_does_not_hide_the_next_one() -> None:
    model = Net()
    _, heard = watched(model)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        model(torch.ones(2, 5))
    model(torch.ones(2, 4))
    assert heard.calls == [("Net", 1, []), "failed", ("Net", 1, []), "ended"]


def test_a_script_that_calls_the_inner_module_is_observed_after_two_optimizer_steps() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()
            self.measure = nn.L1Loss()

    outer = Outer()
    heard = Heard()
    watch = ForwardWatch(unguarded, (heard,))
    optimizer = SGD(outer.parameters(), lr=0.1)
    for _ in range(4):
        outer.net(torch.ones(2, 4))
        watch.before_step(optimizer)
    assert heard.calls == [("Net", 1, []), "ended"]
    assert watch.models == (outer.net,)
    watch.remove()
    assert hooks_of(outer) == 0


class Parts(nn.Module):
    """Is never called itself; one of its parts is a list, which cannot be called."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Net()
        self.blocks = nn.ModuleList([nn.Linear(4, 4), nn.ReLU()])
        self.scale = nn.Parameter(torch.ones(()))


def test_a_script_that_calls_the_parts_of_its_model_is_observed_and_has_one_model() -> None:
    model = Parts()
    heard = Heard()
    watch = ForwardWatch(unguarded, (heard,))
    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in range(6):
        heard.calls.clear()
        hidden = model.encoder(torch.ones(2, 4))
        for block in model.blocks:
            hidden = block(hidden)
        watch.before_step(optimizer)
    assert heard.calls == [("Net", 1, []), "ended", ("Linear", 1, []), "ended"]
    assert watch.models == (model,)
    places = [
        dict(WatchedModules(lambda: watch.models).inside(item)) for item in (model.encoder, model.blocks[0], model)
    ]
    assert [list(place) for place in places[:2]] == [["encoder", "encoder.inner", "encoder.drop"], ["blocks.0"]]
    assert places[2].items() >= {**places[0], **places[1]}.items()
    watch.remove()
    assert hooks_of(model) == 0


def test_removing_leaves_every_module_unchanged() -> None:
    model = Net()
    state = {id(module): dict(vars(module)) for module in model.modules()}
    MODULE_CALLS.forget_all()  # watches that other tests have left
    call = nn.Module.__call__.__code__
    watch, heard = watched(model)
    assert nn.Module.__call__.__code__ is not call
    watch.remove()
    model(torch.ones(2, 4))
    assert heard.calls == []
    assert hooks_of(model) == 0
    assert {id(module): dict(vars(module)) for module in model.modules()} == state
    assert nn.Module.__call__.__code__ is call


def test_a_copy_of_the_model_is_not_observed() -> None:
    model = Net()
    _, heard = watched(model)
    double = copy.deepcopy(model)
    double(torch.ones(2, 4))
    assert heard.calls == []


def test_a_saved_model_holds_nothing_of_ours_and_runs_when_it_is_loaded() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    _, heard = watched(model)
    assert b"mlflow_stability" not in pickle.dumps(model)
    buffer = io.BytesIO()
    torch.save(model, buffer)
    assert b"mlflow_stability" not in buffer.getvalue()
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=False)
    inputs = torch.ones(2, 4)
    assert torch.equal(loaded(inputs), model(inputs))
    assert heard.calls == [("Sequential", 1, []), "ended"]


def test_a_model_can_be_scripted_while_it_is_watched() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    _, heard = watched(model)
    scripted = torch.jit.script(model)
    inputs = torch.ones(2, 4)
    assert torch.equal(scripted(inputs), model(inputs))
    assert heard.calls == [("Sequential", 1, []), "ended"]


def test_a_compiled_model_is_observed_and_not_compiled_again() -> None:
    model = Net()
    compiled: Any = torch.compile(model, backend="aot_eager")
    compiled(torch.ones(2, 4))
    frames = dict(torch._dynamo.utils.counters["frames"])
    watch, heard = watched(compiled)
    compiled(torch.ones(2, 4)).sum().backward()
    assert heard.calls == [("OptimizedModule", 1, []), "ended"]
    assert hooks_of(model) == 0
    watch.remove()
    compiled(torch.ones(2, 4)).sum().backward()
    assert dict(torch._dynamo.utils.counters["frames"]) == frames
    assert len(heard.calls) == 2


def test_a_model_that_compiled_itself_is_observed_from_the_outside() -> None:
    model = Net()
    model.compile(backend="aot_eager", fullgraph=True)
    model(torch.ones(2, 4))
    compiled = model._compiled_call_impl
    frames = dict(torch._dynamo.utils.counters["frames"])
    watch, heard = watched(model)
    model(torch.ones(2, 4)).sum().backward()
    assert heard.calls == [("Net", 1, []), "ended"]
    assert hooks_of(model) == 0
    assert dict(torch._dynamo.utils.counters["frames"]) == frames
    assert hooks_of(copy.deepcopy(model)) == 0
    watch.remove()
    assert model._compiled_call_impl is compiled


@pytest.mark.slow
def test_what_is_compiled_while_it_is_watched_has_no_break_in_its_graph() -> None:
    model = Net()
    _, heard = watched(model)

    @torch.compile(backend="aot_eager", fullgraph=True)
    def forward(x: Tensor) -> Tensor:
        output: Tensor = model(x) * 2
        return output

    forward(torch.ones(2, 4)).sum().backward()
    forward(torch.ones(3, 4)).sum().backward()
    assert heard.calls == []
    assert not torch._dynamo.utils.counters["graph_break"]


def test_a_distributed_model_is_observed_at_its_wrapper(tmp_path: Any) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        model = DistributedDataParallel(Net())
        watch, heard = watched(model)
        model(torch.ones(2, 4)).sum().backward()
        assert heard.calls == [("DistributedDataParallel", 1, []), "ended"]
        assert hooks_of(model.module) == 0
        watch.remove()
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore:`torch.jit.trace` is deprecated")
@pytest.mark.filterwarnings("ignore:`torch.jit.trace_method` is deprecated")
def test_a_model_that_is_traced_during_training_is_not_observed() -> None:
    model = Net()
    _, heard = watched(model)
    torch.jit.trace(model, torch.ones(2, 4), check_trace=False)
    assert heard.calls == []


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
def test_a_copy_of_a_watched_model_can_be_scripted() -> None:
    model = nn.Sequential(nn.Linear(4, 2), nn.ReLU())
    watched(model)
    copied = nn.Sequential(copy.deepcopy(model))
    inputs = torch.ones(2, 4)
    assert torch.equal(torch.jit.script(copied)(inputs), model(inputs))


def test_a_module_that_overrides_named_parameters_is_not_called() -> None:
    class Odd(nn.Module):
        def named_parameters(self, prefix: str = "") -> list[object]:  # type: ignore[override]
            raise AssertionError("the script was called")

    odd, model = Odd(), Net()
    watch, _ = watched(model)
    assert watch.models == (model,)
    del odd
