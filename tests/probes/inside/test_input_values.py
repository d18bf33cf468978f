"""What is measured of the input of the first layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from probes.looked_into import looked_into, unguarded
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from mlflow_stability.probes.inside.activation_probe import InputProbe

ROWS = torch.arange(16.0).reshape(8, 2)


def measured(model: nn.Module, *args: Any) -> dict[str, float]:
    return looked_into(InputProbe(unguarded), model, *args)[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_size_and_spread_of_the_input_of_the_first_layer_are_measured(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)).to(dtype)
    row = measured(model, ROWS.to(dtype))
    assert row == {
        "input_spread@1": 14.0,
        "input_low@1": 0.0,
        "input_high@1": 15.0,
        "input_rms@1": pytest.approx(float(ROWS.square().mean().sqrt())),
    }


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)),
        nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3), nn.Linear(3, 3)),
    ],
    ids=["batch norm", "layer norm"],
)
def test_before_a_normalisation_the_size_does_not_matter(model: nn.Module) -> None:
    assert measured(model, ROWS) == {"input_spread@0": 14.0}


def test_behind_a_normalisation_nothing_is_measured() -> None:
    assert measured(nn.Sequential(nn.BatchNorm1d(2, affine=False), nn.Linear(2, 3)), ROWS) == {}


def test_behind_an_embedding_only_the_spread_is_measured() -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.rnn = nn.Embedding(4, 2), nn.GRU(2, 3)

        def forward(self, tokens: Tensor) -> Tensor:
            output: Tensor = self.rnn(self.embedding(tokens))[0]
            return output

    same = torch.zeros(5, 8, dtype=torch.long)
    assert measured(Tokens(), same) == {"input_spread@rnn": 0.0}
    mixed = torch.arange(8).repeat(5, 1) % 4
    assert measured(Tokens(), mixed)["input_spread@rnn"] > 0


def test_of_a_layer_that_is_called_for_each_token_the_spread_is_not_measured() -> None:
    class Cell(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.cell = nn.Embedding(4, 2), nn.Linear(5, 3)

        def forward(self, tokens: Tensor) -> Tensor:
            hidden = torch.zeros(len(tokens), 3)
            for token in self.embedding(tokens).unbind(1):
                hidden = torch.tanh(self.cell(torch.cat((token, hidden), 1)))
            return hidden

    assert measured(Cell(), torch.arange(8)[:, None].repeat(1, 5) % 4 * torch.tensor([0, 1, 1, 1, 1])) == {}


def test_the_spread_of_a_few_rows_is_not_measured() -> None:
    row = measured(nn.Sequential(nn.Linear(2, 3)), ROWS[:2])
    assert set(row) == {"input_low@0", "input_high@0", "input_rms@0"}


def test_integers_and_failed_passes_are_not_measured() -> None:
    class Raises(nn.Module):
        def forward(self, _: Tensor) -> Tensor:
            raise ValueError("no output")

    probe = InputProbe(unguarded)
    with pytest.raises(ValueError, match="no output"):
        looked_into(probe, nn.Sequential(nn.Linear(2, 3), Raises()), ROWS)
    assert list(probe.blocks()) == []
    assert measured(nn.Sequential(nn.Embedding(4, 2)), torch.zeros(3, dtype=torch.long)) == {}


def test_the_input_of_a_recurrent_layer_is_not_its_hidden_state() -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.rnn = nn.Embedding(4, 2), nn.GRU(2, 3)

        def forward(self, tokens: Tensor) -> Tensor:
            lengths = torch.arange(8, 0, -1).clamp(max=5)
            packed = pack_padded_sequence(self.embedding(tokens), lengths)
            output: Tensor = self.rnn(packed, torch.zeros(1, 8, 3))[1]
            return output

    assert measured(Packed(), torch.zeros(5, 8, dtype=torch.long)) == {"input_spread@rnn": 0.0}
    assert measured(Packed(), torch.arange(8).repeat(5, 1) % 4)["input_spread@rnn"] > 0
