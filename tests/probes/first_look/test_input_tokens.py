"""What is measured of the targets of a language model and of its input."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from probes.first_look.test_targets import measured
from torch import Tensor, nn
from torch.nn import functional

from mlflow_stability.probes.first_look.targets import Targets

TOKENS = torch.tensor([[3, 1, 4, 1, 5], [2, 6, 5, 3, 5]])


class Language(nn.Module):
    """Tokens of 7 kinds to logits, with positions."""

    def __init__(self, tables: int = 1) -> None:
        super().__init__()
        self.tokens = nn.ModuleList(nn.Embedding(7, 4) for _ in range(tables))
        self.positions, self.head = nn.Embedding(5, 4), nn.Linear(4, 7)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = self.positions(torch.arange(tokens.shape[1]))
        logits: Tensor = self.head(torch.relu(sum(table(tokens) for table in self.tokens) + positions))
        return logits


def share_in_input(targets: Tensor, tables: int = 1, columns: bool = False) -> float | None:
    logits = Language(tables)(TOKENS)
    if columns:
        loss = functional.cross_entropy(logits.transpose(1, 2), targets)
    else:
        loss = functional.cross_entropy(logits.reshape(-1, 7), targets.reshape(-1))
    return measured(loss / 2).get("targets_in_input")


@pytest.mark.parametrize("columns", [False, True])
def test_targets_that_are_the_input_are_counted(columns: bool) -> None:
    assert share_in_input(TOKENS, columns=columns) == 1
    masked = TOKENS.masked_fill(TOKENS == 5, -100)
    assert share_in_input(masked, columns=columns) == 1, "of those that are used"
    shifted = TOKENS.roll(-1, 1)
    assert share_in_input(shifted, columns=columns) == pytest.approx((shifted == TOKENS).float().mean().item())


def test_targets_of_another_number_or_of_several_inputs_are_not_compared_with_the_input() -> None:
    assert share_in_input(TOKENS, tables=2) is None
    loss = functional.cross_entropy(Language()(TOKENS)[:, :-1].reshape(-1, 7), TOKENS[:, 1:].reshape(-1))
    assert "targets_in_input" not in measured(loss)


def test_the_input_is_compared_once_a_step_in_the_first_five() -> None:
    targets = Targets()
    for step in range(8):
        for _ in range(2):
            targets.note(functional.cross_entropy(Language()(TOKENS).reshape(-1, 7), TOKENS.reshape(-1)))
        measured_now = [signal.quantity for block in targets.blocks() for signal in block.signals]
        assert measured_now.count("targets_in_input") == (step < 5)


CAUSAL = torch.ones(5, 5).tril().bool()
Attention = Callable[[Tensor], Tensor]


def product(is_causal: bool = False, mask: Tensor | None = None) -> Attention:
    return lambda hidden: functional.scaled_dot_product_attention(
        hidden[:, None], hidden[:, None], hidden[:, None], mask, is_causal=is_causal
    )[:, 0]


def softmax(mask: Tensor | None = None) -> Attention:
    def attend(hidden: Tensor) -> Tensor:
        scores = hidden @ hidden.transpose(1, 2)
        return (scores if mask is None else scores.masked_fill(~mask, -torch.inf)).softmax(-1) @ hidden

    return attend


def share_in_view(attend: Attention, targets: Tensor, by_column: bool = False, cut: bool = False) -> float | None:
    """Of one layer of attention after another with a causal mask."""
    table, head = nn.Embedding(7, 4), nn.Linear(4, 7)
    hidden = table(TOKENS.T.contiguous()).transpose(0, 1) if by_column else table(TOKENS)
    logits = head(attend(hidden + product(is_causal=True)(hidden)))
    if by_column:
        logits, targets = logits.transpose(0, 1), targets.T
    if cut:
        logits, targets = logits[:, :-1], targets[:, :-1]
    return measured(functional.cross_entropy(logits.reshape(-1, 7), targets.reshape(-1))).get("targets_in_view")


SHIFTED = torch.tensor([[1, 4, 1, 5, -100], [6, 5, 3, 5, -100]])


@pytest.mark.parametrize("attend", [product(), product(mask=CAUSAL.new_ones(5, 5)), softmax()])
@pytest.mark.parametrize("layout", [{}, {"by_column": True}, {"cut": True}], ids=str)
def test_next_tokens_that_attention_sees_are_counted(attend: Attention, layout: dict[str, bool]) -> None:
    assert share_in_view(attend, SHIFTED, **layout) == 1


@pytest.mark.parametrize(
    "attend",
    [
        product(is_causal=True),
        product(mask=CAUSAL),
        product(mask=torch.zeros(5, 5).masked_fill(~CAUSAL, -1e9)),
        softmax(CAUSAL),
    ],
)
@pytest.mark.parametrize("layout", [{}, {"by_column": True}, {"cut": True}], ids=str)
def test_next_tokens_behind_a_causal_mask_are_not_in_view(attend: Attention, layout: dict[str, bool]) -> None:
    assert not share_in_view(attend, SHIFTED, **layout)


def test_targets_that_are_not_the_next_token_are_not_in_view() -> None:
    assert share_in_view(product(), TOKENS) == 0, "the token itself, as for a masked language model"
    prefix = torch.zeros(5, 5).masked_fill(~CAUSAL, -torch.inf)
    prefix[:, :3] = 0
    later = SHIFTED.clone()
    later[:, :2] = -100
    assert share_in_view(product(mask=prefix), later) == 0, "the tokens after a prefix that all positions see"


def test_without_attention_nothing_is_in_view() -> None:
    assert share_in_view(lambda hidden: hidden, SHIFTED) is None, "the only attention is causal"
    loss = functional.cross_entropy(Language()(TOKENS).reshape(-1, 7), SHIFTED.reshape(-1))
    assert "targets_in_view" not in measured(loss)


@pytest.mark.parametrize("attend", [product(), product(mask=CAUSAL), softmax(), softmax(CAUSAL)])
def test_what_a_hook_packed_is_neither_unpacked_nor_taken_for_a_missing_mask(attend: Attention) -> None:
    unpacked: list[object] = []

    def unpack(packed: Tensor) -> Tensor:
        unpacked.append(packed)
        return packed

    table, head = nn.Embedding(7, 4), nn.Linear(4, 7)
    embedded = table(TOKENS)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack):
        attended = attend(embedded)
    loss = functional.cross_entropy(head(attended).reshape(-1, 7), SHIFTED.reshape(-1))
    assert "targets_in_view" not in measured(loss)
    assert unpacked == []


@pytest.mark.parametrize(("padding", "ignored", "share"), [(5, -100, True), (5, 5, False), (None, -100, False)])
def test_targets_that_are_padding_are_counted_unless_they_are_ignored(
    padding: int | None, ignored: int, share: bool
) -> None:
    model = Language()
    model.tokens[0] = torch.nn.Embedding(7, model.tokens[0].embedding_dim, padding_idx=padding)
    loss = functional.cross_entropy(model(TOKENS).reshape(-1, 7), TOKENS.reshape(-1), ignore_index=ignored)
    expected = (TOKENS == 5).float().mean().item() if share else None
    assert measured(loss).get("targets_padding") == (pytest.approx(expected) if share else None)


@pytest.mark.parametrize("by_weight", [False, True])
def test_targets_that_a_mask_or_a_weight_may_leave_out_are_not_counted(by_weight: bool) -> None:
    model = Language()
    model.tokens[0] = nn.Embedding(7, 4, padding_idx=5)
    logits, targets = model(TOKENS).reshape(-1, 7), TOKENS.reshape(-1)
    if by_weight:
        loss = functional.cross_entropy(logits, targets, weight=(torch.arange(7) != 5).float())
    else:
        counted = (targets != 5).float()
        loss = (functional.cross_entropy(logits, targets, reduction="none") * counted).sum() / counted.sum()
    assert not {"targets_padding", "targets_in_input", "targets_in_view"} & set(measured(loss))
