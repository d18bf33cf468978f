"""Flex attention, in a second pass without the compiler: in blocks, and right."""

from __future__ import annotations

import math

import pytest
import torch
from probes.attention_by_hand import by_hand
from probes.looked_into import unguarded
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from mlflow_stability.probes.forward.forward_rerun import run_again
from mlflow_stability.probes.inside import attention_scores as attention_numbers
from mlflow_stability.probes.inside import attention_sources
from mlflow_stability.probes.inside.attention_probe import AttentionProbe
from mlflow_stability.vocabulary.measured.layer_arrays import AttentionMap

LENGTH = 160
DOCUMENTS = torch.arange(LENGTH) // 50
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])


def same_document(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return (query >= key) & (DOCUMENTS[query] == DOCUMENTS[key])


def by_distance(score: Tensor, _batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return score - SLOPES[head] * (query - key)


class Flexible(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mask = create_block_mask(same_document, None, None, LENGTH, LENGTH, device="cpu")
        self.project = nn.Linear(8, 8)
        self.attend = flex_attention

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return self.attend(self.project(query), key, key, by_distance, self.mask, enable_gqa=True)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_a_compiled_flex_attention_is_computed_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = Flexible()
    query, key = torch.randn(2, 4, LENGTH, 8) * 3, torch.randn(2, 2, LENGTH, 8)
    maps: list[AttentionMap] = []
    probe = AttentionProbe(1, 16, unguarded, maps.append)
    largest: list[int] = []
    block_of = attention_sources.FlexScores.block
    monkeypatch.setattr(
        attention_sources.FlexScores,
        "block",
        lambda *given: largest.append((result := block_of(*given)).numel()) or result,
    )
    monkeypatch.setattr(attention_sources, "BLOCK", 4 * LENGTH * 20)
    monkeypatch.setattr(attention_numbers, "BLOCK_ON_CPU", 4 * LENGTH * 20)
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        probe.open(model, 1, lambda: True)
        output = run_again(model, (query, key), {})
        probe.close(True)
    (block,) = probe.blocks()
    assert isinstance(block.values, Tensor)
    assert max(largest) <= 4 * LENGTH * 20, "never the table of all scores"
    ahead = torch.arange(LENGTH)
    allowed = same_document(ahead, ahead, ahead[:, None], ahead[None])
    shared = key.repeat_interleave(2, 1)
    logits = (model.project(query).detach().double() @ shared.double().mT) / math.sqrt(8)
    logits = logits - SLOPES.view(4, 1, 1) * (ahead[:, None] - ahead[None])
    truth = logits.masked_fill(~allowed, -math.inf).softmax(-1)
    torch.testing.assert_close(output, (truth @ shared.double()).float(), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(
        torch.from_numpy(maps[0].weights).float(), truth[0, :, :16, :16].float(), atol=1e-3, rtol=0
    )
    values = dict(zip(map(str, block.signals), block.values.tolist(), strict=True))
    whole, _ = by_hand(logits, allowed)
    assert [values[f"attention_entropy@Flexible.head_{at}"] for at in range(4)] == pytest.approx(whole, abs=1e-5)
