from __future__ import annotations

import gc
import weakref

import pytest
import torch
from probes.measured import backward, net
from torch import nn
from torch.optim import SGD, AdamW, Muon, Optimizer

from mlflow_stability.probes.model_discovery import models_of
from mlflow_stability.probes.parameters import layers as module
from mlflow_stability.probes.parameters.layers import Layers


def test_parameters_follow_the_order_of_the_optimizer_and_layers_the_order_of_the_model() -> None:
    model = net()
    optimizer = SGD([{"params": model[3].parameters()}, {"params": model[:3].parameters()}], lr=0.1)
    layers = Layers()
    held = layers.held(optimizer, 0)
    assert held.names == ("3", "0", "0", "1", "1", "2.0", "2.0")
    assert held.groups == (0, 1, 1, 1, 1, 1, 1)
    assert layers.layout([held]).names == ("0", "1", "2.0", "3")
    assert held.complete


def test_sums_by_layer_are_sums_of_its_parameters() -> None:
    model = net()
    layers = Layers()
    layout = layers.layout([layers.held(SGD(model.parameters(), lr=0.1), 0)])
    rows = torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]])
    assert layout.sums(rows).tolist() == [[3.0, 7.0, 11.0, 7.0]]
    assert layout.largest(rows[0]).tolist() == [2.0, 4.0, 6.0, 7.0]


def test_models_are_searched_for_only_when_an_optimizer_or_what_it_trains_is_new(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searches: list[int] = []

    def counted(optimizers: list[Optimizer]) -> list[nn.Module]:
        searches.append(len(optimizers))
        return models_of(optimizers)

    monkeypatch.setattr(module, "models_of", counted)
    model, layers = net(), Layers()
    optimizer = SGD(model[0].parameters(), lr=0.1)
    first = layers.held(optimizer, 0)
    for step in range(1, 5):
        backward(model, step)
        optimizer.step()
        assert layers.held(optimizer, step) is first
    optimizer.add_param_group({"params": list(model[1].parameters())})
    assert layers.held(optimizer, 5).names == ("0", "0", "1", "1")
    model[0].bias.requires_grad_(False)
    assert layers.held(optimizer, 6).names == ("0", "1", "1")
    other = AdamW(model[3].parameters())
    assert layers.held(other, 6).names == ("3",)
    assert layers.held(other, 7).names == ("3",)
    assert searches == [1, 1, 1, 2]


def test_frozen_layers_are_named_and_not_measured() -> None:
    model = net()
    model[0].requires_grad_(False)
    held = Layers().held(SGD(model.parameters(), lr=0.1), 0)
    assert held.frozen == ("0",)
    assert "0" not in held.names
    assert held.complete


def test_a_second_model_gives_both_their_class_for_a_first_name() -> None:
    class Generator(nn.Sequential):
        pass

    first, second = Generator(nn.Linear(2, 2)), nn.Sequential(nn.Linear(2, 2))
    optimizers = [SGD(item.parameters(), lr=0.1) for item in (first, second)]
    layers = Layers()
    assert set(layers.held(optimizers[0], 0).names) == {"0"}
    assert set(layers.held(optimizers[1], 0).names) == {"Sequential.0"}
    assert set(layers.held(optimizers[0], 1).names) == {"Generator.0"}


def test_layers_that_two_optimizers_share_are_one() -> None:
    model = net()
    matrices = Muon([parameter for parameter in model.parameters() if parameter.dim() == 2])
    others = AdamW([parameter for parameter in model.parameters() if parameter.dim() != 2])
    layers = Layers()
    layers.held(matrices, 0)
    held = [layers.held(item, 1) for item in (matrices, others)]
    layout = layers.layout(held)
    assert layout.names == ("0", "1", "2.0", "3")
    assert layout.of_parameter == (0, 2, 3, 0, 1, 1, 2)
    assert layers.layout(held) is layout


def test_parameters_that_no_module_owns_are_numbered() -> None:
    loose = [torch.zeros(3, requires_grad=True), torch.zeros(3, requires_grad=True)]
    model = nn.Linear(2, 2)
    held = Layers().held(SGD([loose[0], *model.parameters(), loose[1]], lr=0.1), 0)
    assert held.names == ("parameter_0", "Linear", "Linear", "parameter_3")


@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate")
def test_a_parameter_that_is_listed_twice_counts_once() -> None:
    model = nn.Linear(2, 2)
    held = Layers().held(SGD([model.weight, model.bias, model.weight], lr=0.1), 0)
    assert held.positions == (0, 1)


def test_nothing_is_kept_alive() -> None:
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    layers = Layers()
    layers.layout([layers.held(optimizer, 0)])
    gone = [weakref.ref(model), weakref.ref(optimizer), weakref.ref(model[0].weight)]
    del model, optimizer
    gc.collect()
    assert [function() for function in gone] == [None, None, None]


@pytest.mark.slow
def test_a_script_that_makes_an_optimizer_for_every_sample_has_no_layers() -> None:
    model, layers = nn.Linear(2, 2), Layers()
    kept = [SGD(model.parameters(), lr=0.1) for _ in range(module.MAX_SEARCHES + 1)]
    for step, item in enumerate(kept[:-1]):
        layers.held(item, step)
    assert layers.held(kept[-1], 99).names == ()
    assert not layers.held(kept[-1], 99).complete
    assert layers.held(kept[0], 100).complete
