"""Routers of the models of transformers, which hold the experts of a layer in one tensor."""

from __future__ import annotations

import math

import pytest
import torch
import transformers
from probes.looked_into import looked_into, unguarded
from torch import Tensor, nn

from mlflow_stability.probes.inside.router_probe import QUANTITIES, RouterProbe

pytestmark = pytest.mark.slow
SIZES = {
    "vocab_size": 20, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2, "max_position_embeddings": 32, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip


def mixtral() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2)
    return transformers.MixtralForCausalLM(config).train()


def test_the_routers_of_a_mixtral_are_found_and_have_the_shares_that_transformers_gives() -> None:
    model, ids = mixtral(), torch.randint(20, (3, 10))
    _, row = looked_into(RouterProbe(unguarded), model, ids)
    logits = model(ids, output_router_logits=True).router_logits
    assert len(logits) == 2
    for layer, of_layer in enumerate(logits):
        place = f"model.layers.{layer}.mlp.gate"
        counts = of_layer.topk(2, -1).indices.flatten().bincount(minlength=4).tolist()
        shares = [count / 60 for count in counts]
        assert [row[f"router_share@{place}.expert_{at}"] for at in range(4)] == pytest.approx(shares)
        even = -sum(share * math.log(share) for share in shares if share) / math.log(4)
        assert row[f"router_load_entropy@{place}"] == pytest.approx(even, rel=1e-5)
        largest = (of_layer - of_layer.mean(-1, keepdim=True)).abs().max().item()
        assert row[f"router_max_logit@{place}"] == pytest.approx(largest, rel=1e-5)
    assert len(row) == 2 * (len(QUANTITIES) + 4)


def test_a_switch_transformer_shows_which_tokens_it_dropped() -> None:
    torch.manual_seed(0)
    config = transformers.SwitchTransformersConfig(
        vocab_size=20, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, num_experts=4, expert_capacity=2,
        num_sparse_encoder_layers=1, num_sparse_decoder_layers=1, router_jitter_noise=0.0, dropout_rate=0.0,
    )  # fmt: skip
    model, ids = transformers.SwitchTransformersForConditionalGeneration(config).train(), torch.randint(20, (2, 10))
    _, row = looked_into(RouterProbe(unguarded), model, ids, decoder_input_ids=ids)
    given: list[Tensor] = []
    router = model.encoder.block[1].layer[1].mlp.router
    router.register_forward_hook(lambda _module, _args, output: given.append(output[0]))
    model(ids, decoder_input_ids=ids)
    dropped = 1 - float(given[0].sum()) / 20
    assert dropped > 0
    assert row["router_dropped@encoder.block.1.layer.1.mlp.router"] == pytest.approx(dropped)


def dense_language_model() -> nn.Module:
    sizes = {"n_embd": 12, "n_layer": 4, "n_head": 4, "n_positions": 16, "vocab_size": 4}
    ends = {"bos_token_id": None, "eos_token_id": None}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **ends)).train()


def test_a_dense_language_model_has_no_router() -> None:
    assert looked_into(RouterProbe(unguarded), dense_language_model(), torch.randint(4, (2, 8)))[1] == {}
