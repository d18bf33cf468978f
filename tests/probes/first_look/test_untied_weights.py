"""Output layers that begin as a copy of an embedding."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mlflow_stability.probes.first_look.first_look import MAX_ROWS, copied_embeddings


class Language(nn.Module):
    """An embedding, a layer, and an output layer of the embedding's shape."""

    def __init__(self, rows: int = 12) -> None:
        super().__init__()
        self.embedding, self.body, self.head = nn.Embedding(rows, 4), nn.Linear(4, 4), nn.Linear(4, rows)


def measured(model: nn.Module) -> dict[str, float]:
    return {block.signals[0].place: float(block.values[0]) for block in copied_embeddings([model])}


def copied(rows: int = 12) -> Language:
    model = Language(rows)
    model.head.weight = nn.Parameter(model.embedding.weight.detach().clone())
    return model


@pytest.mark.parametrize("rows", [12, MAX_ROWS + 1])
def test_a_copy_of_an_embedding_is_seen(rows: int) -> None:
    assert measured(copied(rows)) == {"head": 1.0}


def test_weights_that_began_apart_are_seen_to_differ() -> None:
    assert measured(Language()) == {"head": 0.0}


def test_a_tied_output_layer_is_not_compared() -> None:
    model = Language()
    model.head.weight = model.embedding.weight
    assert measured(model) == {}


def test_a_copy_that_is_not_trained_is_not_compared() -> None:
    model = copied()
    model.head.weight.requires_grad_(False)
    assert measured(model) == {}


def test_weights_of_one_value_say_nothing() -> None:
    model = Language()
    nn.init.zeros_(model.embedding.weight)
    nn.init.zeros_(model.head.weight)
    assert measured(model) == {"head": 0.0}


def test_no_weight_is_changed_by_the_look() -> None:
    model = copied()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    copied_embeddings([model])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
