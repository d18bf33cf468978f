"""Attention that a model computes itself is distinguished from everything else that uses a softmax."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from probes.attention_by_hand import by_hand, looked
from torch import Tensor, nn
from torch.nn import functional

Form = Callable[[nn.Module, Tensor, Tensor], Tensor]
CAUSAL = torch.ones(5, 5, dtype=torch.bool).tril()


class Own(nn.Module):
    """Writes its attention out, in one of many ways."""

    def __init__(self, form: Form) -> None:
        super().__init__()
        self.form = form
        self.drop = nn.Dropout(0.5)
        self.softmax = nn.Softmax(dim=-1)
        self.num_heads = 2

    def forward(self, scores: Tensor, value: Tensor) -> Tensor:
        return self.form(self, scores, value)


def plain(_: nn.Module, scores: Tensor, value: Tensor) -> Tensor:
    return scores.softmax(-1) @ value


def with_modules(own: Any, scores: Tensor, value: Tensor) -> Tensor:
    return torch.matmul(own.drop(own.softmax(scores)), value)


def with_types(_: nn.Module, scores: Tensor, value: Tensor) -> Tensor:
    weights = functional.softmax(scores.float(), dim=-1, dtype=torch.float32).type_as(scores)
    return torch.matmul(functional.dropout(weights, 0.1), value)


def with_a_head_mask(_: nn.Module, scores: Tensor, value: Tensor) -> Tensor:
    return (torch.ones(1, 2, 1, 1) * torch.softmax(scores, dim=3)).matmul(value)


def with_einsum(_: nn.Module, scores: Tensor, value: Tensor) -> Tensor:
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(dim=-1), value.transpose(1, 2))


def with_short_einsum(_: nn.Module, scores: Tensor, value: Tensor) -> Tensor:
    return torch.einsum("... i j, ... j d -> ... i d", scores.softmax(dim=-1), value)


def with_bmm(_: nn.Module, scores: Tensor, value: Tensor) -> Tensor:
    return torch.bmm(functional.softmax(scores.flatten(0, 1), -1), value.flatten(0, 1))


def with_values_first(_: nn.Module, scores: Tensor, value: Tensor) -> Tensor:
    return value.mT @ scores.softmax(-1).transpose(-1, -2)


def after_another_softmax(_: nn.Module, scores: Tensor, value: Tensor) -> Tensor:
    other = (2 * scores).softmax(-1)  # whose product comes later
    result = scores.softmax(-1) @ value
    return result + 0 * (other.mean() + value.sum())


ATTENTION = [
    plain,
    after_another_softmax,
    with_modules,
    with_types,
    with_a_head_mask,
    with_einsum,
    with_short_einsum,
    with_bmm,
    with_values_first,
]


@pytest.mark.parametrize("masked", [-math.inf, -1e9, -1e4, torch.finfo(torch.float32).min])
@pytest.mark.parametrize("form", ATTENTION, ids=lambda form: form.__name__)
def test_attention_is_found_however_it_is_written(form: Form, masked: float) -> None:
    torch.manual_seed(2)
    scores, value = torch.randn(3, 2, 5, 5) * 4, torch.randn(3, 2, 5, 6)
    truth = by_hand(scores, CAUSAL)
    result = looked(Own(form), scores.masked_fill(~CAUSAL, masked).requires_grad_(), value)
    assert result.entropy["Own"] == pytest.approx(truth[0], abs=1e-5)
    assert result.max_logit["Own"] == pytest.approx(truth[1], rel=1e-5)
    torch.testing.assert_close(
        torch.from_numpy(result.maps[0].weights).float(),
        scores[0].masked_fill(~CAUSAL, -math.inf).softmax(-1),
        atol=1e-3,
        rtol=1e-3,
    )
    assert result.maps[0].causal


def classifier(_: nn.Module, scores: Tensor, value: Tensor) -> Tensor:
    return -(scores.softmax(-1).log() * value[..., :5]).sum()


def router(_: nn.Module, scores: Tensor, value: Tensor) -> Tensor:
    weights = scores[:, 0].softmax(-1)
    experts = torch.stack([value[:, 0] * number for number in range(5)], 2)
    return (weights[:, :, None, :] @ experts)[:, :, 0]


def router_by_einsum(_: nn.Module, scores: Tensor, value: Tensor) -> Tensor:
    experts = torch.stack([value[:, 0] * number for number in range(5)])
    return torch.einsum("bse,ebsd->bsd", scores[:, 0].softmax(-1), experts)


def codebook(_: nn.Module, scores: Tensor, value: Tensor) -> Tensor:
    return scores[:, 0].softmax(-1) @ value[0, 0]


def over_queries(_: nn.Module, scores: Tensor, value: Tensor) -> Tensor:
    return scores.softmax(-2) @ value


def other_numbers(_: nn.Module, scores: Tensor, value: Tensor) -> Tensor:
    scores.softmax(-1)
    return scores @ value


@pytest.mark.parametrize(
    "form",
    [classifier, router, router_by_einsum, codebook, over_queries, other_numbers],
    ids=lambda form: form.__name__,
)
def test_other_softmaxes_are_not_mistaken_for_attention(form: Form) -> None:
    scores, value = torch.randn(3, 2, 5, 5), torch.randn(3, 2, 5, 6)
    assert looked(Own(form), scores, value).entropy == {}


def test_a_softmax_over_a_vocabulary_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[Tensor] = []
    monkeypatch.setattr("mlflow_stability.probes.inside.attention_probe.head_numbers", looks.append)
    looked(Own(lambda _, scores, __: scores.softmax(-1)), torch.randn(2, 3, 5000), torch.randn(1))
    assert looks == []


def test_scores_that_change_after_the_softmax_were_read_before() -> None:
    def form(_: nn.Module, scores: Tensor, value: Tensor) -> Tensor:
        own = scores * 1
        weights = own.softmax(-1)
        own.zero_()
        return weights @ value

    scores, value = torch.randn(1, 2, 5, 5), torch.randn(1, 2, 5, 6)
    truth = by_hand(scores, torch.ones(5, dtype=torch.bool))
    assert looked(Own(form), scores, value).entropy["Own"] == pytest.approx(truth[0], abs=1e-5)
