"""Fine-tuning: TRL's SFT with LoRA adapters, DPO and GRPO, and sentence-transformers.

Tiny models with random weights; nothing is fetched.
"""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import nn
from trainers.script import NAN_AT, STEPS, Script, Trainer, norm_of

WORDS = [f"word{number}" for number in range(60)]


def tokenizer() -> Any:
    """One token a word: a tokenizer that was not fetched."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "[EOS]", *WORDS])}
    plain = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="[PAD]", unk_token="[UNK]", eos_token="[EOS]", model_max_length=32
    )


def sentence(number: int, length: int = 10) -> str:
    return " ".join(WORDS[(number * 7 + place * place) % len(WORDS)] for place in range(length))


def tiny_gpt(words: Any) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=len(words), n_positions=32, n_embd=16, n_layer=2, n_head=2, eos_token_id=2)
    return GPT2LMHeadModel(config)


def train_by(kind: Any, script: Script, config: Any, **given: Any) -> None:
    """Train with this trainer of TRL, which logs every step: a NaN is 0.0 in its own log."""

    class OwnTrainer(kind):  # type: ignore[misc]
        def training_step(self, model: nn.Module, *args: Any, **named: Any) -> torch.Tensor:
            loss: torch.Tensor = super().training_step(model, *args, **named)
            script.step(model, loss, norm_of(model.parameters()))
            return loss

        def compute_loss(self, *args: Any, **named: Any) -> Any:
            result = super().compute_loss(*args, **named)
            broken = script.nan(self.state.global_step)
            if isinstance(result, tuple):
                return (result[0] * float("nan"), *result[1:]) if broken else result
            return result * float("nan") if broken else result

    arguments = config(
        output_dir="out",
        max_steps=STEPS,
        per_device_train_batch_size=4,
        learning_rate=0.01,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        disable_tqdm=True,
        **given.pop("settings"),
    )
    trainer = OwnTrainer(args=arguments, **given)
    trainer.train()
    script.logged(*(row["loss"] for row in trainer.state.log_history if "loss" in row))
    script.end(trainer.model)


def sft(script: Script) -> None:
    from datasets import Dataset
    from peft import LoraConfig
    from trl import SFTConfig, SFTTrainer

    script.autolog()
    words = tokenizer()
    train_by(
        SFTTrainer,
        script,
        SFTConfig,
        settings={"max_length": 16},
        model=tiny_gpt(words),
        train_dataset=Dataset.from_dict({"text": [sentence(number) for number in range(STEPS * 4)]}),
        processing_class=words,
        peft_config=LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM"),
    )


def dpo(script: Script) -> None:
    """Preferred and rejected answers, against a copy of the model."""
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    script.autolog()
    words = tokenizer()
    model = tiny_gpt(words)
    columns = {
        name: [sentence(number + begin, 5) for number in range(STEPS * 4)]
        for begin, name in enumerate(("prompt", "chosen", "rejected"))
    }
    train_by(
        DPOTrainer,
        script,
        DPOConfig,
        settings={"max_length": 16},
        model=model,
        ref_model=deepcopy(model),
        train_dataset=Dataset.from_dict(columns),
        processing_class=words,
    )


def grpo(script: Script) -> None:
    """Four completions of each prompt, rewarded for different words."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    def different_words(completions: list[str], **_more: Any) -> list[float]:
        return [float(len(set(completion.split()))) for completion in completions]

    script.autolog()
    words = tokenizer()
    place = Path("tiny").absolute()  # its reference model is loaded from where the model was
    tiny_gpt(words).save_pretrained(place)
    train_by(
        GRPOTrainer,
        script,
        GRPOConfig,
        settings={"num_generations": 4, "max_completion_length": 8, "beta": 0.04},
        model=str(place),
        reward_funcs=different_words,
        train_dataset=Dataset.from_dict({"prompt": [sentence(number, 5) for number in range(STEPS * 4)]}),
        processing_class=words,
    )


def sentence_transformers(script: Script) -> None:
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
        losses,
    )
    from transformers import BertConfig, BertModel

    script.autolog()
    words = tokenizer()
    config = BertConfig(
        vocab_size=len(words), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
    )
    BertModel(config).save_pretrained("tiny")
    words.save_pretrained("tiny")
    model = SentenceTransformer(str(Path("tiny").absolute()), device="cpu")

    class OwnTrainer(SentenceTransformerTrainer):  # type: ignore[misc]
        def training_step(self, model: nn.Module, *args: Any, **named: Any) -> torch.Tensor:
            loss: torch.Tensor = super().training_step(model, *args, **named)
            script.step(model, loss, norm_of(model.parameters()))
            return loss

    scores = [float(number % 5) / 4 for number in range(STEPS * 4)]
    if script.nan(NAN_AT):
        scores[NAN_AT * 4] = float("nan")
    pairs = {
        "first": [sentence(number) for number in range(STEPS * 4)],
        "second": [sentence(number + 3) for number in range(STEPS * 4)],
        "score": scores,
    }
    trainer = OwnTrainer(
        model=model,
        args=SentenceTransformerTrainingArguments(
            output_dir="out",
            max_steps=STEPS,
            per_device_train_batch_size=4,
            learning_rate=1e-3,
            logging_steps=5,
            report_to=[],
            save_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_dict(pairs),
        loss=losses.CosineSimilarityLoss(model),
    )
    trainer.train()
    script.end(model)


TRL, SHOWN = ("trl", "peft", "datasets"), ("trl", "peft", "transformers")
TRAINERS = [
    Trainer("TRL SFT + LoRA", sft, packages=TRL, shown=SHOWN),
    Trainer("TRL DPO", dpo, packages=TRL, shown=SHOWN),
    Trainer("TRL GRPO", grpo, packages=TRL, shown=SHOWN),
    Trainer(
        "sentence-transformers",
        sentence_transformers,
        packages=("sentence-transformers", "datasets"),
        shown=("sentence-transformers", "transformers"),
    ),
]
