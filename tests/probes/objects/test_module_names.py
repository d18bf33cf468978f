from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from probes.measured import backward, by_layer, net
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.nn.parallel import DistributedDataParallel

from mlflow_stability.probes.model_discovery import owners_of_parameters, plain_name


def names_of(*models: nn.Module) -> list[str]:
    return list(dict.fromkeys(owners_of_parameters(models).values()))


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'meeting'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_a_parameter_belongs_to_the_module_that_owns_it_in_the_order_of_the_model() -> None:
    assert names_of(net()) == ["0", "1", "2.0", "3"] == list(by_layer(net()))


def test_names_are_the_same_under_ddp(process_group: None) -> None:
    model = net()
    wrapped = DistributedDataParallel(model)
    backward(wrapped, 0)
    assert names_of(wrapped) == names_of(model)


def test_names_are_the_same_when_compiled() -> None:
    model = net()
    compiled = torch.compile(model, backend="eager")
    backward(compiled, 0)
    assert names_of(compiled) == names_of(model)


def test_names_are_the_same_with_activation_checkpoints() -> None:
    model, plain = net(), names_of(net())
    apply_activation_checkpointing(model, check_fn=lambda module: isinstance(module, nn.Linear))
    backward(model, 0)
    assert "_checkpoint_wrapped_module" in "".join(name for name, _ in model.named_modules())
    assert names_of(model) == plain


def test_names_are_the_same_with_all_of_these_at_once(process_group: None) -> None:
    model, plain = net(), names_of(net())
    apply_activation_checkpointing(model, check_fn=lambda module: isinstance(module, nn.Linear))
    wrapped = DistributedDataParallel(torch.compile(model, backend="eager"))
    assert names_of(wrapped) == plain


def test_what_the_model_owns_itself_goes_by_its_class_be_it_wrapped_or_not() -> None:
    class Gate(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(2))
            self.up = nn.Linear(2, 2)

    model = Gate()
    assert names_of(model) == names_of(torch.compile(model, backend="eager")) == ["Gate", "up"]


def test_a_tied_parameter_has_its_first_name() -> None:
    model = nn.ModuleDict({"words": nn.Embedding(5, 3), "norm": nn.LayerNorm(3), "head": nn.Linear(3, 5, bias=False)})
    model["head"].weight = model["words"].weight
    assert names_of(model) == ["words", "norm"]


def test_names_of_several_models_begin_with_their_class() -> None:
    class Generator(nn.Sequential):
        pass

    assert names_of(Generator(nn.Linear(2, 2)), nn.Sequential(nn.Linear(2, 2))) == ["Generator.0", "Sequential.0"]
    assert names_of(nn.Linear(2, 2), nn.Linear(2, 2)) == ["Linear_0", "Linear_1"]


def test_names_that_would_be_alike_without_wrappers_keep_them() -> None:
    twins = nn.ModuleDict({"a": nn.Linear(2, 2, bias=False)})
    twins["a"].module = nn.Linear(2, 2, bias=False)
    assert names_of(twins) == ["a", "a.module"]


def test_only_whole_words_are_wrappers() -> None:
    assert plain_name("module.submodule.module_list.0._orig_mod.up") == "submodule.module_list.0.up"
