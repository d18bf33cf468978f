"""Attention of Hugging Face models, as they come and in their eager form, against the weights that they hand out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from probes.attention_by_hand import by_hand, looked
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

TOKENS = torch.randint(3, 50, (2, 7), generator=torch.Generator().manual_seed(5))
PADDING = torch.ones(2, 7, dtype=torch.long)
PADDING[1, 4:] = 0


def gpt_2(form: str) -> nn.Module:
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=2, n_head=4, attn_implementation=form)
    )


def llama(form: str) -> nn.Module:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=50, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, attn_implementation=form,
        )
    )  # fmt: skip


def bert(form: str) -> nn.Module:
    return BertModel(
        BertConfig(
            vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
            attn_implementation=form,
        )
    )  # fmt: skip


def t_5(form: str) -> nn.Module:
    config = T5Config(
        vocab_size=50, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0,
        dropout_rate=0.0, attn_implementation=form,
    )  # fmt: skip
    return T5ForConditionalGeneration(config)


LAYERS = {
    gpt_2: ["transformer.h.0.attn", "transformer.h.1.attn"],
    llama: ["model.layers.0.self_attn", "model.layers.1.self_attn"],
    bert: ["encoder.layer.0.attention.self", "encoder.layer.1.attention.self"],
    t_5: [
        "encoder.block.0.layer.0.SelfAttention",
        "decoder.block.0.layer.0.SelfAttention",
        "decoder.block.0.layer.1.EncDecAttention",
    ],
}


def weights_of(output: Any, make: Any) -> list[Tensor]:
    if make is t_5:
        return [*output.encoder_attentions, *output.decoder_attentions, *output.cross_attentions]
    return list(output.attentions)


@pytest.mark.parametrize("form", ["sdpa", "eager"])
@pytest.mark.parametrize("make", [gpt_2, llama, bert, t_5], ids=lambda make: make.__name__)
def test_models_as_they_come(make: Any, form: str) -> None:
    given: dict[str, Any] = {"input_ids": TOKENS, "attention_mask": PADDING}
    if make is t_5:
        given["labels"] = TOKENS[:, :5].contiguous()
    torch.manual_seed(3)
    truth_of = make("eager").eval()
    truth_of.requires_grad_(False)
    for parameter in truth_of.parameters():
        parameter.mul_(0.7 if make is t_5 else 4)  # so that heads differ, and no weight is nothing
    torch.manual_seed(3)
    model = make(form).train()
    model.load_state_dict(truth_of.state_dict())
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    result = looked(model, **given, **({"use_cache": False} if make is not bert else {}))
    expected = weights_of(truth_of(**given, output_attentions=True), make)
    assert list(result.entropy) == LAYERS[make]
    for name, weights in zip(LAYERS[make], expected, strict=True):
        allowed = weights > 0
        truth, _ = by_hand(weights.double().log(), allowed)
        assert result.entropy[name] == pytest.approx(truth, abs=2e-5), name
    assert [finding.kind for finding in result.maps] == [
        "cross" if "EncDec" in name else "self" for name in LAYERS[make]
    ]
