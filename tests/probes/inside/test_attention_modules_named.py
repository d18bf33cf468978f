"""Attention inside of torch's own modules, whatever path they take, against the weights that they give."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from probes.attention_by_hand import Looked, by_hand, looked
from torch import Tensor, nn
from torch.nn import functional

MaybeTensor = Tensor | None


@pytest.fixture(autouse=True)
def _dice() -> None:
    torch.manual_seed(1)


def logits_by_module(
    module: nn.MultiheadAttention,
    query: Tensor,
    key: Tensor,
    mask: MaybeTensor,
    padding: MaybeTensor,
) -> tuple[list[float], list[float]]:
    """Projected by hand; `query` and `key` with the batch first."""
    width, heads = module.embed_dim, module.num_heads
    if module.in_proj_weight is not None:
        weights = module.in_proj_weight[:width], module.in_proj_weight[width : 2 * width]
    else:
        weights = module.q_proj_weight, module.k_proj_weight
    biases = module.in_proj_bias[:width], module.in_proj_bias[width : 2 * width]
    q, k = (
        functional.linear(x.double(), w.double(), b.double())
        for x, w, b in zip((query, key), weights, biases, strict=True)
    )
    allowed = torch.ones(len(q), 1, q.shape[1], k.shape[1], dtype=torch.bool)
    if mask is not None:
        allowed = allowed & ~mask
    if padding is not None:
        allowed = allowed & ~padding[:, None, None]
    if module.bias_k is not None:
        k = torch.cat((k, module.bias_k.double().expand(len(k), 1, -1)), 1)
        allowed = functional.pad(allowed, (0, 1), value=True)
    if module.add_zero_attn:
        k = functional.pad(k, (0, 0, 0, 1))
        allowed = functional.pad(allowed, (0, 1), value=True)
    q, k = (x.unflatten(2, (heads, -1)).transpose(1, 2) for x in (q, k))
    return by_hand((q @ k.mT).detach() / math.sqrt(width // heads), allowed)


def agree(result: Looked, layer: str, truth: tuple[list[float], list[float]]) -> None:
    assert result.entropy[layer] == pytest.approx(truth[0], abs=1e-5)
    assert result.max_logit[layer] == pytest.approx(truth[1], rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("need_weights", [True, False])
def test_multihead_attention_in_all_its_forms(need_weights: bool) -> None:
    for batch_first, extra, apart, float_mask in product((False, True), repeat=4):
        module = nn.MultiheadAttention(
            8, 2, 0.3, add_bias_kv=extra, add_zero_attn=extra, batch_first=batch_first,
            kdim=6 if apart else None, vdim=6 if apart else None,
        )  # fmt: skip
        nn.init.normal_(module.in_proj_bias)
        query, key = torch.randn(3, 5, 8), torch.randn(3, 7, 6 if apart else 8)
        mask, padding = torch.rand(5, 7) > 0.6, torch.rand(3, 7) > 0.6
        padding[:, 0] = mask[:, 0] = False
        truth = logits_by_module(module, query, key, mask, padding)
        inputs = (query, key, key) if batch_first else (query.mT.permute(2, 0, 1), *(key.permute(1, 0, 2),) * 2)
        given = {"attn_mask": mask, "key_padding_mask": padding}
        if float_mask:
            given = {name: torch.zeros(tensor.shape).masked_fill(tensor, -math.inf) for name, tensor in given.items()}
        result = looked(module, *inputs, need_weights=need_weights, **given)
        agree(result, "MultiheadAttention", truth)
        assert result.maps[0].kind == "cross"


def test_a_mask_for_each_head_and_inputs_without_a_batch() -> None:
    module = nn.MultiheadAttention(8, 2)
    x, mask = torch.randn(4, 8), torch.rand(2, 4, 4) > 0.6
    mask[..., 0] = False
    result = looked(module, x, x, x, attn_mask=mask)
    agree(result, "MultiheadAttention", logits_by_module(module, x[None], x[None], mask[None], None))
    assert result.maps[0].kind == "self"


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_an_encoder_on_the_path_that_it_takes_by_itself(norm_first: bool, padded: bool, training: bool) -> None:
    """A frozen encoder of a model that trains takes torch's fused path, and must go on doing so."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.2 * training, batch_first=True, norm_first=norm_first)
    encoder = (
        nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first).train(training).requires_grad_(training)
    )
    for module in encoder.modules():
        if isinstance(module, nn.MultiheadAttention):
            nn.init.normal_(module.in_proj_bias)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = encoder
            self.head = nn.Linear(8, 1)

        def forward(self, x: Tensor, padding: MaybeTensor) -> Tensor:
            output: Tensor = self.head(self.encoder(x, src_key_padding_mask=padding))
            return output

    model, x = Model(), torch.randn(3, 5, 8)
    padding = torch.arange(5) >= torch.tensor([5, 3, 2])[:, None] if padded else None
    calls: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        fused = torch._transformer_encoder_layer_fwd
        patch.setattr(torch, "_transformer_encoder_layer_fwd", lambda *given: calls.append("fused") or fused(*given))
        result = looked(model, x, padding)
    assert calls == ([] if training else ["fused"] * 4), "two passes of two layers"
    assert set(result.entropy) == ({"encoder.layers.0.self_attn", "encoder.layers.1.self_attn"} if training else set())
    if not training:
        return
    first = encoder.layers[0]
    inputs = first.norm1(x) if norm_first else x  # type: ignore[union-attr, operator]
    truth = logits_by_module(first.self_attn, inputs, inputs, None, padding)  # type: ignore[union-attr, arg-type]
    agree(result, "encoder.layers.0.self_attn", truth)


def test_a_decoder_has_two_attentions_a_layer() -> None:
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, batch_first=True), 1)
    x, memory = torch.randn(2, 5, 8), torch.randn(2, 5, 8)
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    result = looked(decoder, x, memory, tgt_mask=causal, tgt_is_causal=True)
    first = decoder.layers[0]
    agree(result, "layers.0.self_attn", logits_by_module(first.self_attn, x, x, causal < 0, None))  # type: ignore[union-attr, arg-type]
    assert [(finding.layer, finding.kind, finding.causal) for finding in result.maps] == [
        ("layers.0.self_attn", "self", True),
        ("layers.0.multihead_attn", "cross", False),
    ]


def test_the_function_behind_the_module_is_seen_too() -> None:
    class Pool(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attn = nn.MultiheadAttention(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            a = self.attn
            return functional.multi_head_attention_forward(
                x[:1],
                x,
                x,
                8,
                4,
                a.in_proj_weight,
                a.in_proj_bias,
                None,
                None,
                False,
                0.0,
                a.out_proj.weight,
                a.out_proj.bias,
            )[0]

    model, x = Pool(), torch.randn(6, 3, 8)
    agree(looked(model, x), "Pool", logits_by_module(model.attn, x[:1].transpose(0, 1), x.transpose(0, 1), None, None))
