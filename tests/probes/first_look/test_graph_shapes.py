"""What is mixed up in the graphs of losses: attention over queries, views for transposes, layers made again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path

import pytest
import torch
from scenarios.flying import flying
from torch import Tensor, nn
from torch.nn import functional

from mlflow_stability.kinds.first_look.dimensions import AttentionDimFacts, MixedDimensionsFacts
from mlflow_stability.kinds.first_look.not_trained import Holder, UnregisteredFacts
from mlflow_stability.probes.first_look.graph_shapes import GraphShapes
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.result import Severity

FEATURES, LENGTH = 6, 12


def tensor(*shape: int) -> Tensor:
    return torch.randn(*shape, requires_grad=True)


def looked_at(make: Callable[[], Tensor]) -> list[Facts]:
    """Return the facts of what the graphs of losses show, which must be at the third step."""
    look = GraphShapes()
    findings = [finding for step in range(2, 8) for finding in look.note(make(), step)]
    assert [finding.step for finding in findings] == [4] * len(findings)
    return [finding.facts for finding in findings]


def test_a_softmax_over_the_queries_is_found_after_three_steps() -> None:
    for scores, values in ((tensor(2, 5, 5), tensor(2, 5, 4)), (tensor(2, 3, 5, 5), tensor(2, 3, 5, 4))):
        mask = torch.ones(5, 5).tril() == 0
        weights = functional.dropout(scores.masked_fill(mask, -1e9).softmax(-2), 0.1)
        loss = (weights @ values).square().mean()
        assert looked_at(partial(loss.view, ())) == [AttentionDimFacts(5)]


@pytest.mark.parametrize("dim", [0, 1])
def test_a_softmax_over_heads_or_rows_is_found_as_well(dim: int) -> None:
    scores, values = tensor(2, 3, 5, 5), tensor(2, 3, 5, 4)
    assert looked_at(lambda: (scores.softmax(dim) @ values).square().mean()) == [AttentionDimFacts(5)]


SOUND_ATTENTION: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "over the keys": lambda scores, values: scores.softmax(-1) @ values,
    "keys and queries exchanged": lambda scores, values: scores.softmax(-2).transpose(-1, -2) @ values,
    "from the right": lambda scores, values: values.transpose(-1, -2) @ scores.softmax(-2),
    "slots, normalised again": lambda scores, values: (
        (weights := scores.softmax(-2)) / weights.sum(-1, keepdim=True) @ values
    ),
    "fewer slots than inputs": lambda scores, values: scores[:, :3].softmax(-2) @ values,
    "one matrix": lambda scores, values: scores[0].softmax(-2) @ values[0],
    "linear attention": lambda scores, values: torch.einsum("bde,bdn->bne", scores.softmax(-1), values),
}


@pytest.mark.parametrize("name", SOUND_ATTENTION)
def test_other_attention_is_not_reported(name: str) -> None:
    assert looked_at(lambda: SOUND_ATTENTION[name](tensor(2, 5, 5), tensor(2, 5, 4)).square().mean()) == []


@pytest.mark.parametrize("dim", [1, 2])
def test_a_training_whose_attention_is_normalised_over_queries_is_found(tmp_path: Path, dim: int) -> None:
    with flying(tmp_path) as flown:
        torch.manual_seed(0)
        layer, head = nn.Linear(FEATURES, 3 * FEATURES), nn.Linear(FEATURES, 1)
        optimizer = torch.optim.Adam([*layer.parameters(), *head.parameters()])
        for _ in range(6):
            query, key, value = layer(torch.randn(8, LENGTH, FEATURES)).chunk(3, -1)
            output = head((query @ key.transpose(1, 2)).softmax(dim) @ value)
            optimizer.zero_grad()
            functional.mse_loss(output, torch.randn(8, LENGTH, 1)).backward()
            optimizer.step()
    events = [(event.step, event.severity, event.message) for event in flown.events("attention_dim")]
    message = (
        "Attention over 12 positions does not take its softmax over the keys: the weights of a query do not add up to "
        "1."
    )
    assert events == ([(4, Severity.WARNING, message)] if dim == 1 else [])


def linear(x: Tensor, size: int) -> Tensor:
    out: Tensor = nn.Linear(x.shape[-1], size)(x)
    return out


def attended(heads: Callable[[Tensor], Tensor], merged: Callable[[Tensor], Tensor]) -> Tensor:
    query, key, value = (heads(linear(tensor(4, 30, 48), 48)) for _ in range(3))
    return merged((query @ key.transpose(-1, -2)).softmax(-1) @ value).sum()


def split(x: Tensor) -> Tensor:
    return x.view(4, 30, 8, 6).transpose(1, 2)


def shift_rows(scores: Tensor) -> Tensor:
    """Return scores as relative attention arranges them."""
    rows, columns = scores.shape[-2:]
    return functional.pad(scores, (1, 0)).view(*scores.shape[:2], columns + 1, rows)[:, :, 1:].reshape(scores.shape)


Shape = tuple[int, ...]
VIEWS: dict[str, tuple[Callable[[], Tensor], Shape, Shape]] = {
    "heads": (
        lambda: attended(lambda x: x.view(4, 8, 30, 6), lambda x: x.transpose(1, 2)),
        *((4, 30, 48), (4, 8, 30, 6)),
    ),
    "heads in the batch": (lambda: attended(lambda x: x.reshape(32, 30, 6), torch.sum), (4, 30, 48), (32, 30, 6)),
    "merged heads": (lambda: attended(split, lambda x: linear(x.reshape(4, 30, 48), 2)), (4, 8, 30, 6), (4, 30, 48)),
    "directions": (
        lambda: linear(nn.GRU(5, 7, batch_first=True, bidirectional=True)(tensor(4, 3, 5))[1].view(4, -1), 2).sum(),
        *((2, 4, 7), (4, 14)),
    ),
    "channels": (lambda: nn.Conv1d(9, 2, 3)(linear(tensor(4, 8, 5), 9).view(4, 9, 8)).sum(), (4, 8, 9), (4, 9, 8)),
    "columns": (
        lambda: nn.GRU(24, 5)(nn.Conv2d(1, 6, 1)(tensor(2, 1, 4, 10)).reshape(2, 10, 24))[0].sum(),
        *((2, 6, 4, 10), (2, 10, 24)),
    ),
    "pixels": (lambda: nn.Conv2d(3, 2, 3)(tensor(2, 8, 9, 3).view(2, 3, 8, 9)).sum(), (2, 8, 9, 3), (2, 3, 8, 9)),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_in_place_of_a_transpose_is_found(name: str) -> None:
    make, before, after = VIEWS[name]
    facts = looked_at(make)
    assert MixedDimensionsFacts(before, after) in facts or MixedDimensionsFacts(after, before) in facts


def encoded(batch: int, length: int, heads: int, size: int) -> list[Tensor]:
    """Return losses of sound code in which dimensions of equal size are split and merged."""
    width = heads * size
    x, first = tensor(batch, length, width), tensor(length, batch, width)
    query, key, value = linear(x, 3 * width).view(batch, length, 3, heads, size).permute(2, 0, 3, 1, 4)
    mixed = functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(batch, length, width)
    return [
        linear(mixed, 2).sum(),
        nn.MultiheadAttention(width, heads)(first, first, first)[0].sum(),
        nn.MultiheadAttention(width, heads, batch_first=True)(x, x, x, need_weights=False)[0].sum(),
        torch.einsum("nhd,nhe->nde", *(linear(x, width).view(-1, heads, size) for _ in range(2))).sum(),
        linear(x, width).reshape(batch * length * heads, size).sum(),
        linear(x.flatten(1), heads * length * size).view(batch, heads, length, size).sum(),
    ]


@pytest.mark.parametrize(("batch", "length"), list(product((2, 4, 8), repeat=2)))
def test_dimensions_of_equal_size_are_not_taken_for_mixed_ones(batch: int, length: int) -> None:
    for heads, size in product((2, 4), (2, 4, 8)):
        for loss in encoded(batch, length, heads, size):
            assert looked_at(partial(loss.view, ())) == []


def grouped(x: Tensor, groups: int) -> Tensor:
    """Normalise groups of channels, of which there are as many as rows."""
    groups_of_values = x.view(len(x), groups, -1)
    return (groups_of_values / groups_of_values.std(2, keepdim=True)).view(x.shape)


SOUND_VIEWS: dict[str, Callable[[], Tensor]] = {
    "relative attention": lambda: shift_rows(tensor(2, 3, 5, 5)).sum(),
    "directions": lambda: linear(
        nn.GRU(5, 7, bidirectional=True)(tensor(3, 4, 5))[1].transpose(0, 1).flatten(1), 2
    ).sum(),
    "patches": lambda: linear(tensor(2, 3, 8, 8).view(2, 3, 4, 2, 4, 2).permute(0, 2, 4, 1, 3, 5).flatten(3), 2).sum(),
    "shuffled channels": lambda: tensor(2, 6, 4).view(2, 2, 3, 4).transpose(1, 2).reshape(2, 6, 4).sum(),
    "groups of channels": lambda: grouped(linear(tensor(2, 16, 8, 8), 8), 8).sum(),
    "groups of as many channels": lambda: grouped(linear(tensor(2, 8, 8, 8), 8), 8).sum(),
    "images": lambda: linear(tensor(32, 10), 1024).view(-1, 1, 32, 32).sum(),
    "a transformer": lambda: nn.TransformerEncoderLayer(8, 2, 8)(tensor(4, 2, 8)).sum(),
}


@pytest.mark.parametrize("name", SOUND_VIEWS)
def test_views_of_neighbours_are_not_reported(name: str) -> None:
    assert looked_at(SOUND_VIEWS[name]) == []


def test_the_sentence_names_both_shapes() -> None:
    assert MixedDimensionsFacts((2, 16, 32), (16, 64)).sentence(4) == (
        "A view or reshape turns (2, 16, 32) into (16, 64): it moves a dimension but no values, so that "
        "those of different positions or rows are mixed. A transpose is missing."
    )


@pytest.mark.parametrize("is_viewed", [True, False])
def test_a_training_whose_channels_come_from_a_view_is_found(tmp_path: Path, is_viewed: bool) -> None:
    with flying(tmp_path) as flown:
        torch.manual_seed(0)
        table, layer, head = nn.Embedding(20, 9), nn.Conv1d(9, 4, 3), nn.Linear(4, 2)
        optimizer = torch.optim.Adam([*table.parameters(), *layer.parameters(), *head.parameters()])
        for _ in range(6):
            rows = table(torch.randint(0, 20, (8, 7)))
            channels = rows.view(8, 9, 7) if is_viewed else rows.transpose(1, 2)
            optimizer.zero_grad()
            functional.cross_entropy(head(layer(channels).amax(2)), torch.randint(0, 2, (8,))).backward()
            optimizer.step()
    events = [(event.step, event.severity, event.facts) for event in flown.events("mixed_dimensions")]
    assert events == ([(4, Severity.WARNING, MixedDimensionsFacts((8, 7, 9), (8, 9, 7)))] if is_viewed else [])


class Made(nn.Module):
    """Makes a layer in its forward pass, in front of its last layer or of the first one."""

    def __init__(self, place: str) -> None:
        super().__init__()
        self.body, self.head, self.place = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, 2), place
        self.middle: nn.Module = nn.Linear(FEATURES, FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        made = nn.Linear(FEATURES, FEATURES)
        hidden = self.body(made(x) if self.place == "data" else x).relu()
        hidden = made(hidden) if self.place == "hidden" else self.middle(hidden)
        out: Tensor = self.head(hidden)
        return out


@pytest.mark.parametrize("place", ["hidden", "data", "none"])
def test_a_layer_that_is_made_in_the_forward_pass_is_found(tmp_path: Path, place: str) -> None:
    with flying(tmp_path) as flown:
        torch.manual_seed(0)
        model, kept = Made(place), []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(6):
            loss = functional.cross_entropy(model(torch.randn(8, FEATURES)), torch.randint(0, 2, (8,)))
            kept.append(loss)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    events = [(event.severity, event.facts) for event in flown.events("unregistered_module")]
    facts = UnregisteredFacts(Holder.FORWARD, "", "", "", 2, FEATURES * (FEATURES + 1))
    assert events == ([(Severity.WARNING, facts)] if place == "hidden" else [])
