"""Attention by torch's own function, in all its forms, against weights computed by hand."""

from __future__ import annotations

import gc
import importlib
import math
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from probes.attention_by_hand import by_hand, looked
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from mlflow_stability.probes.inside import attention_scores as attention_numbers
from mlflow_stability.probes.inside.attention_scores import MASKED, first_weights, head_numbers, scores_of_call


class Mixing(nn.Module):
    """Calls the function with what it is given."""

    num_heads = 1

    def forward(self, query: Tensor, key: Tensor, **kwargs: object) -> Tensor:
        return scaled_dot_product_attention(query, key, key, **kwargs)  # type: ignore[arg-type]


def logits_of(query: Tensor, key: Tensor, scale: float | None = None) -> Tensor:
    key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    return query.double() @ key.double().mT * (scale or 1 / math.sqrt(query.shape[-1]))


def agree(values: tuple[list[float], list[float]], truth: tuple[list[float], list[float]]) -> None:
    assert values[0] == pytest.approx(truth[0], abs=1e-5, nan_ok=True)
    assert values[1] == pytest.approx(truth[1], rel=1e-5, abs=1e-5)


def everything(size: int) -> Tensor:
    return torch.ones(1, 1, 1, size, dtype=torch.bool)


@pytest.mark.slow
@settings(max_examples=60)
@given(
    samples=st.integers(1, 3),
    groups=st.integers(1, 2),
    shared=st.integers(1, 3),
    queries=st.integers(1, 9),
    keys=st.integers(2, 11),
    form=st.sampled_from(["none", "causal", "boolean", "added", "padding", "finfo"]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.float64]),
    size=st.floats(0.01, 8),
    block=st.sampled_from([1, 5, 30, 2**18]),
    seed=st.integers(0, 99),
)
def test_entropy_and_logits_are_those_of_weights_computed_by_hand(
    samples: int,
    groups: int,
    shared: int,
    queries: int,
    keys: int,
    form: str,
    dtype: torch.dtype,
    size: float,
    block: int,
    seed: int,
) -> None:
    dice = torch.Generator().manual_seed(seed)
    heads = groups * shared
    query = (torch.randn(samples, heads, queries, 4, generator=dice) * size).to(dtype)
    key = torch.randn(samples, shared, keys, 4, generator=dice).to(dtype)
    allowed, mask, added = torch.ones(samples, 1, queries, keys, dtype=torch.bool), None, torch.zeros(())
    if form == "causal":
        allowed = allowed.tril()
    elif form in ("boolean", "finfo"):
        allowed = torch.rand(samples, 1, queries, keys, generator=dice) > 0.4
        mask = (
            allowed
            if form == "boolean"
            else torch.zeros(allowed.shape, dtype=dtype).masked_fill(~allowed, torch.finfo(dtype).min)
        )
    elif form == "padding":
        mask = torch.arange(keys) < torch.randint(0, keys + 1, (samples, 1, 1, 1), generator=dice)
        allowed = mask.expand_as(allowed)
    elif form == "added":
        added = torch.randn(heads, queries, keys, generator=dice).to(dtype)
        mask = added
    scores = scores_of_call(1, None, query, key, key, mask, is_causal=form == "causal")
    assert scores is not None
    logits = logits_of(query, key) + added
    before = attention_numbers.BLOCK_ON_CPU
    attention_numbers.BLOCK_ON_CPU = block
    try:
        entropy, largest = head_numbers(scores).tolist()
        weights = first_weights(scores, 6)
    finally:
        attention_numbers.BLOCK_ON_CPU = before
    agree((entropy, largest), by_hand(logits, allowed))
    truth = logits[0].masked_fill(~allowed[0], -torch.inf).softmax(-1).nan_to_num(0)[:, :6, :6]
    torch.testing.assert_close(weights.double(), truth, atol=1e-5, rtol=1e-5)


def test_a_mask_is_distinguished_from_a_bias() -> None:
    query, key = torch.randn(1, 1, 2, 4), torch.randn(1, 1, 3, 4)
    for mask in (-1e4, -1e9, -math.inf):
        scores = scores_of_call(1, None, query, key, key, torch.tensor([0.0, 0.0, mask]))
        assert scores is not None
        (entropy,), _ = head_numbers(scores).tolist()
        allowed = torch.tensor([True, True, False]).view(1, 1, 1, 3)
        assert [entropy] == pytest.approx(by_hand(logits_of(query, key), allowed)[0], abs=1e-6)
    assert MASKED < -1000, "a bias by distance is none"


@pytest.fixture
def biases() -> Iterator[ModuleType]:
    """Torch's own; gone afterwards, for where they are known no operations are counted."""
    yield importlib.import_module("torch.nn.attention.bias")
    del sys.modules["torch.nn.attention.bias"], torch.nn.attention.bias
    gc.collect()


@pytest.mark.parametrize(("name", "diagonal"), [("causal_upper_left", 0), ("causal_lower_right", 3)])
def test_the_causal_biases_of_torch_are_understood(name: str, diagonal: int, biases: ModuleType) -> None:
    query, key = torch.randn(2, 3, 4, 8), torch.randn(2, 3, 7, 8)
    result = looked(Mixing(), query, key, attn_mask=getattr(biases, name)(4, 7))
    allowed = torch.ones(4, 7, dtype=torch.bool).tril(diagonal)
    agree((result.entropy["Mixing"], result.max_logit["Mixing"]), by_hand(logits_of(query, key), allowed))


def test_an_own_scale_dropout_and_grouped_queries() -> None:
    query, key = torch.randn(2, 6, 5, 8, requires_grad=True), torch.randn(2, 2, 5, 8)
    result = looked(Mixing(), query, key, scale=0.7, dropout_p=0.5, is_causal=True, enable_gqa=True)
    allowed = torch.ones(5, 5, dtype=torch.bool).tril()
    agree((result.entropy["Mixing"], result.max_logit["Mixing"]), by_hand(logits_of(query, key, 0.7), allowed))


def test_two_three_and_five_dimensions() -> None:
    query, key = torch.randn(2, 3, 2, 5, 8), torch.randn(2, 1, 2, 6, 8)
    mask = torch.rand(2, 3, 1, 5, 6) > 0.5
    result = looked(Mixing(), query, key.expand(2, 3, 2, 6, 8), attn_mask=mask)
    truth = by_hand(logits_of(query.flatten(0, 1), key.expand(2, 3, 2, 6, 8).flatten(0, 1)), mask.flatten(0, 1))
    agree((result.entropy["Mixing"], result.max_logit["Mixing"]), truth)
    assert len(looked(Mixing(), query[0, 0], key[0, 0]).entropy["Mixing"]) == 1, "samples, unless the module says else"
    flat = looked(Mixing(), query[0, 0, 0], key[0, 0, 0])
    agree(
        (flat.entropy["Mixing"], flat.max_logit["Mixing"]),
        by_hand(logits_of(query[:1, 0, :1], key[:1, 0, :1]), everything(6)),
    )


def test_three_dimensions_are_samples_and_heads_where_the_module_says_so() -> None:
    model = Mixing()
    model.num_heads = 2
    query, key = torch.randn(6, 5, 8), torch.randn(6, 5, 8)
    result = looked(model, query, key, attn_mask=torch.ones(6, 5, 5, dtype=torch.bool).tril())
    logits = logits_of(query.unflatten(0, (3, 2)), key.unflatten(0, (3, 2)))
    agree(
        (result.entropy["Mixing"], result.max_logit["Mixing"]),
        by_hand(logits, torch.ones(5, 5, dtype=torch.bool).tril()),
    )


def test_autocast_rounds_the_inputs_as_the_attention_does() -> None:
    query, key = torch.randn(1, 2, 4, 16) * 30, torch.randn(1, 2, 4, 16)
    with torch.autocast("cpu", torch.bfloat16):
        result = looked(Mixing(), query, key)
    agree(
        (result.entropy["Mixing"], result.max_logit["Mixing"]),
        by_hand(logits_of(query.bfloat16(), key.bfloat16()), everything(4)),
    )


def test_of_many_scores_evenly_spaced_rows_are_measured() -> None:
    query, key = torch.randn(6, 2, 12, 4), torch.randn(6, 2, 8, 4)
    scores = scores_of_call(1, None, query, key, key)
    assert scores is not None
    samples = head_numbers(scores, most=3 * 2 * 12 * 8).tolist()
    agree((samples[0], samples[1]), by_hand(logits_of(query, key)[::2], everything(8)))
    queries = head_numbers(scores, most=2 * 4 * 8).tolist()
    agree((queries[0], queries[1]), by_hand(logits_of(query, key)[:1, :, ::3], everything(8)))


def test_a_broken_score_is_not_hidden() -> None:
    query, key = torch.randn(1, 2, 4, 8), torch.randn(1, 2, 4, 8)
    query[0, 1, 2] = math.nan
    scores = scores_of_call(1, None, query, key, key)
    assert scores is not None
    entropy, largest = head_numbers(scores)
    assert entropy.isnan().tolist() == largest.isnan().tolist() == [False, True]


def test_tensors_without_readable_numbers_are_not_measured() -> None:
    far = torch.randn(1, 2, 4, 8, device="meta")
    assert scores_of_call(1, None, far, far, far) is None
    ragged = torch.nested.nested_tensor([torch.randn(2, 3, 8), torch.randn(2, 4, 8)], layout=torch.jagged)
    assert scores_of_call(1, None, ragged, ragged, ragged) is None
    near = torch.randn(1, 2, 4, 8)
    assert looked(Mixing(), near, near[..., :1, :]).entropy == {}, "with one key there is nothing to choose"
