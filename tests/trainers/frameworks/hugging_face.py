"""Hugging Face's Trainer, and accelerate."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from trainers.frameworks.raw import model_of
from trainers.script import STEPS, Script, Trainer, norm_of

ACCUMULATE = 2


def hugging_face(script: Script) -> None:
    import transformers
    from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments

    script.autolog()

    class OwnTrainer(transformers.Trainer):
        def __init__(self, *args: Any, **named: Any) -> None:
            super().__init__(*args, **named)
            self.seen: list[float] = []

        def training_step(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **named: Any) -> torch.Tensor:
            inputs["inputs_embeds"] = script.batch(inputs["inputs_embeds"], len(self.seen) // ACCUMULATE)
            loss: torch.Tensor = super().training_step(model, inputs, *args, **named)
            self.seen.append(loss.item())
            if len(self.seen) % ACCUMULATE == 0:
                script.step(model, sum(self.seen[-ACCUMULATE:]), norm_of(model.parameters()))
            return loss

    model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=16, n_embd=8, n_layer=2, n_head=2))
    rows = STEPS * ACCUMULATE * 2
    data = [{"inputs_embeds": torch.randn(8, 8), "labels": torch.randint(32, (8,))} for _ in range(rows)]
    trainer = OwnTrainer(
        model=model,
        args=TrainingArguments(
            output_dir="out",
            max_steps=STEPS,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=ACCUMULATE,
            learning_rate=0.01,
            max_grad_norm=1.0,
            logging_steps=5,
            eval_strategy="steps",
            eval_steps=8,
            report_to=[],
            save_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
        ),
        train_dataset=data,  # type: ignore[arg-type]
        eval_dataset=data[:4],  # type: ignore[arg-type]
    )
    trainer.train()
    script.validated(*(row["eval_loss"] for row in trainer.state.log_history if "eval_loss" in row))
    script.end(model)


def accelerate(script: Script) -> None:
    from accelerate import Accelerator

    script.autolog()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATE)
    plain = model_of()
    model, optimizer = accelerator.prepare(plain, torch.optim.AdamW(plain.parameters(), lr=0.01))
    losses: list[float] = []
    for step in range(STEPS * ACCUMULATE):
        with accelerator.accumulate(model):
            output = model(script.batch(torch.randn(8, 6), step // ACCUMULATE))
            loss = nn.functional.mse_loss(output, torch.ones(8, 1))
            accelerator.backward(loss)
            losses.append(loss.item() / ACCUMULATE)
            if accelerator.sync_gradients:
                script.step(model, sum(losses[-ACCUMULATE:]), norm_of(model.parameters()))
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    with torch.no_grad():
        validation = nn.functional.mse_loss(model(torch.ones(8, 6)), torch.ones(8, 1)).item()
    accelerator.log({"val_loss": validation})
    script.validated(validation)
    script.end(model)


TRAINERS = [
    Trainer("HF Trainer", hugging_face, shown=("transformers",)),
    Trainer("accelerate", accelerate, shown=("accelerate",)),
]
