from __future__ import annotations

from pathlib import Path

import pytest
import torch
from analysis.test_attention_of_weights import texts
from torch import nn

from mlflow_stability import parameter_histograms
from mlflow_stability.errors import SettingsError


def two_layers() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    with torch.no_grad():
        model[1].weight[32:] += 3.0
    return model


def test_weights_are_drawn_with_the_names_of_their_shapes(tmp_path: Path) -> None:
    words = texts(parameter_histograms(two_layers(), save_path=tmp_path / "weights.png"))
    assert all(name in words for name in ("0.weight", "0.bias", "1.weight", "healthy", "multi-modal"))
    assert "4 parameters now" in words
    assert (tmp_path / "weights.png").read_bytes().startswith(b"\x89PNG")


def test_gradients_are_those_that_backward_left() -> None:
    model = two_layers()
    with pytest.raises(SettingsError, match="No parameter of the model has a gradient: call it after backward"):
        parameter_histograms(model, of="gradient")
    model(torch.randn(8, 64)).square().mean().backward()
    before = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    words = texts(parameter_histograms(model, "0", of="gradient"))
    assert "Gradient histograms" in words
    assert "1.weight" not in words
    assert all(map(torch.equal, before, (parameter.grad for parameter in model.parameters())))


def test_values_that_are_not_finite_and_those_that_are_all_one_are_named() -> None:
    model = two_layers()
    with torch.no_grad():
        model[0].weight[0, 0] = torch.nan
        model[1].weight.fill_(0.5)
    words = texts(parameter_histograms(model))
    assert "not finite" in words
    assert "collapsed" in words


def test_a_parameter_that_there_is_not_is_answered_by_a_near_one() -> None:
    with pytest.raises(SettingsError, match=r"no parameter '0\.wieght'\. Did you mean '0\.weight'\?"):
        parameter_histograms(two_layers(), "0.wieght")
    with pytest.raises(SettingsError, match=r"model must be a torch\.nn\.Module; got 3"):
        parameter_histograms(3)
