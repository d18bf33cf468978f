"""Sound models are not warned of: random weights of usual architectures, and models before and after some training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from zoo.catalog import ZOO

from mlflow_stability import check
from mlflow_stability.demo.training_loop import Failure, FailurePoints, Notes, loop
from mlflow_stability.vocabulary.result import Severity

TWINS = list({item.twin: item for item in ZOO}.values())
SLOW = {"scheduled_gpt", "plain_gpt", "half_precision_gpt", "gpt_in_half", "post_norm_transformer"}
"""Fewer steps of these will do."""
SIZES: dict[str, Any] = {"vocab_size": 200, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
SMALL = {**SIZES, "intermediate_size": 128}
PICTURE: dict[str, Any] = {"image_size": 32, "patch_size": 8, "num_labels": 5}
MODELS: dict[str, dict[str, Any]] = {
    "Bert": SMALL,
    "DistilBert": {"vocab_size": 200, "dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128},
    "GPT2": {"vocab_size": 200, "n_embd": 64, "n_layer": 2, "n_head": 4, "bos_token_id": 0, "eos_token_id": 0},
    "Llama": SMALL,
    "Mamba": {"vocab_size": 200, "hidden_size": 64, "num_hidden_layers": 2, "state_size": 8},
    "Mixtral": {**SMALL, "num_key_value_heads": 2},
    "OPT": {**SIZES, "ffn_dim": 128, "word_embed_proj_dim": 64},
    "ResNet": {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "num_labels": 5},
    "T5": {"vocab_size": 200, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4},
    "ViT": {**{name: item for name, item in SMALL.items() if name != "vocab_size"}, **PICTURE},
}
HEADS = {"ViT": "ForImageClassification", "ResNet": "ForImageClassification", "GPT2": "LMHeadModel"}
HEADS |= {"T5": "ForConditionalGeneration", "Bert": "ForMaskedLM", "DistilBert": "ForMaskedLM"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # transformers says what it lacks
@pytest.mark.parametrize("name", MODELS)
def test_random_weights_of_a_usual_architecture_are_sound(name: str) -> None:
    transformers: Any = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**MODELS[name])
    if name == "T5":
        config.decoder_start_token_id = 0
    model: nn.Module = getattr(transformers, f"{name}{HEADS.get(name, 'ForCausalLM')}")(config)
    ids = torch.randint(5, 200, (4, 24))
    pictures = {"pixel_values": torch.randn(4, 3, 32, 32), "labels": torch.arange(4)}
    batch = pictures if "num_labels" in MODELS[name] else {"input_ids": ids, "labels": ids}
    checked = check(model, batch, optimizer=torch.optim.AdamW(model.parameters()))
    assert [finding for finding in checked.findings if finding.severity > Severity.INFO] == []
    assert checked.not_checked == ()
    assert checked.chance is not None


@pytest.mark.slow
@pytest.mark.parametrize("trained", [False, True], ids=["before", "in it"])
@pytest.mark.parametrize("failure", TWINS, ids=lambda letter: str(letter.twin))
def test_a_sound_training_is_sound_before_and_in_it(failure: Failure, trained: bool) -> None:
    torch.set_num_threads(1)
    task = failure.task(0)
    if trained:
        loop(replace(task, steps=30 if failure.twin in SLOW else 150), FailurePoints(), 0, Notes())
    inputs, targets = task.draw(torch.Generator().manual_seed(3))
    batch = {"inputs": inputs, "targets": targets}

    class WithLoss(nn.Module):
        def __init__(self, model: nn.Module, loss: Callable[..., torch.Tensor]) -> None:
            super().__init__()
            self.model, self.loss = model, loss

        def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return self.loss(self.model, (inputs, targets))

    checked = check(WithLoss(task.model, task.loss), batch, optimizer=task.optimizer)
    assert [finding for finding in checked.findings if finding.severity > Severity.INFO] == []
    assert checked.not_checked == ()
