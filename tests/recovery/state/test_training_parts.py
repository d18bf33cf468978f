from __future__ import annotations

import copy
import gc

import torch
from recovery.restorable import Net
from torch import nn
from torch.optim.lr_scheduler import ChainedScheduler, ConstantLR, ExponentialLR
from torch.optim.swa_utils import AveragedModel

from mlflow_stability.probes.model_discovery import plain_name
from mlflow_stability.recovery.state.training_parts import TrainingParts, find_parts, named_tensors


class Wrapper(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


class Proxy:
    """Answers for another, as proxies of web frameworks do."""

    @property
    def __class__(self) -> type:
        raise RuntimeError("nobody may ask")


def test_the_outermost_module_that_owns_the_parameters_is_the_model() -> None:
    inner, other = Net(), Net()
    outer = Wrapper(inner)
    parts = find_parts([torch.optim.SGD(inner.head.parameters(), lr=0.1)])
    assert parts.models == (outer,)
    assert other not in parts.models


def test_objects_that_answer_in_the_name_of_others_are_not_asked() -> None:
    kept, net = Proxy(), Net()
    assert find_parts([torch.optim.SGD(net.parameters(), lr=0.1)]).models == (net,)
    assert kept is not None


def test_models_come_in_the_order_of_the_optimizers() -> None:
    second, first = Net(), Net()
    optimizers = [torch.optim.SGD(item.parameters(), lr=0.1) for item in (first, second)]
    parts = find_parts(optimizers)
    assert parts.models == (first, second)
    names = [tensor.name for tensor in named_tensors(parts)]
    assert names[0] == "model_0/convolution.weight"
    assert "model_1/head.bias" in names
    assert len(names) == len(set(names))


def test_names_do_not_depend_on_wrappers() -> None:
    net = Net()
    plain = [tensor.name for tensor in named_tensors(TrainingParts((), (net,)))]
    for wrapped in (Wrapper(net), torch.compile(net), Wrapper(torch.compile(net))):
        assert [tensor.name for tensor in named_tensors(TrainingParts((), (wrapped,)))] == plain
    assert plain_name("_fsdp_wrapped_module.blocks.0._checkpoint_wrapped_module.up.weight") == "blocks.0.up.weight"


def test_what_a_compiler_leaves_behind_is_no_model_of_its_own() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    traced = torch.fx.symbolic_trace(net)
    assert next(traced.parameters()) is next(net.parameters())
    compiled = torch.compile(net, backend="eager")
    compiled(torch.ones(1, 2)).sum().backward()
    parts = find_parts([torch.optim.SGD(net.parameters(), lr=0.1)])
    assert parts.models == (compiled,)
    assert [tensor.name for tensor in named_tensors(parts)] == ["0.weight", "0.bias"]


def test_names_that_would_be_alike_without_wrappers_keep_them() -> None:
    twins = nn.ModuleDict({"a": nn.Linear(2, 2, bias=False)})
    twins["a"].module = nn.Linear(2, 2, bias=False)
    assert [tensor.name for tensor in named_tensors(TrainingParts((), (twins,)))] == ["a.weight", "a.module.weight"]


def test_schedulers_of_these_optimizers_are_found_and_those_inside_others_are_not() -> None:
    net, other = Net(), Net()
    optimizer, stranger = (torch.optim.SGD(item.parameters(), lr=0.1) for item in (net, other))
    chain = ChainedScheduler([ConstantLR(optimizer), ExponentialLR(optimizer, 0.9)])
    single, foreign = ExponentialLR(optimizer, 0.5), ExponentialLR(stranger, 0.5)
    schedulers = find_parts([optimizer]).schedulers
    assert set(schedulers) == {chain, single}
    assert foreign not in schedulers


def test_averages_are_found_and_a_copy_that_may_be_the_best_model_so_far_is_left_alone() -> None:
    net = Net()
    average = AveragedModel(net)
    frozen = copy.deepcopy(net).requires_grad_(False)
    wrapped = Wrapper(copy.deepcopy(net).requires_grad_(False))
    best, other = copy.deepcopy(net), nn.Linear(2, 2).requires_grad_(False)
    parts = find_parts([torch.optim.SGD(net.parameters(), lr=0.1)])
    assert {id(item) for item in parts.averaged} == {id(average), id(frozen), id(wrapped)}
    assert best is not other
    assert parts.models == (net,)


def test_parameters_that_no_module_owns_have_names_too() -> None:
    loose = torch.zeros(3, requires_grad=True)
    parts = find_parts([torch.optim.SGD([loose], lr=0.1)])
    assert parts.models == ()
    assert [tensor.name for tensor in named_tensors(parts)] == ["optimizer_0/parameter_0"]


def test_looking_draws_nothing_and_keeps_nothing_alive() -> None:
    gc.collect()
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    random = torch.get_rng_state()
    parts = find_parts([optimizer])
    assert torch.equal(torch.get_rng_state(), random)
    assert parts.scaler is None
