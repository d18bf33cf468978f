"""Lightning: its Trainer with automatic and manual optimization and with accumulation, and Fabric."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.utils.data import DataLoader
from trainers.frameworks.raw import model_of
from trainers.script import STEPS, Script, Trainer, norm_of


def fit(script: Script, *, manual: bool = False, accumulate: int = 1) -> None:
    import lightning.pytorch as pl

    script.autolog()

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model_of()
            self.automatic_optimization = not manual
            self.losses: list[float] = []

        def training_step(self, batch: Tensor, index: int) -> Tensor:
            inputs = script.batch(batch, index // accumulate)
            loss = nn.functional.mse_loss(self.model(inputs), torch.ones(8, 1))
            self.losses.append(loss.item() / accumulate)
            if manual:
                optimizer: Any = self.optimizers()
                optimizer.zero_grad()
                self.manual_backward(loss)
                script.step(self, loss, norm_of(self.parameters()))
                self.clip_gradients(optimizer, gradient_clip_val=1.0)
                optimizer.step()
            return loss

        def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
            if not manual:  # there, it has been clipped by then
                script.step(self, sum(self.losses[-accumulate:]), norm_of(self.parameters()))

        def configure_optimizers(self) -> Optimizer:
            return AdamW(self.parameters(), lr=0.01)

    module = Module()
    trainer = pl.Trainer(
        max_steps=STEPS,
        accumulate_grad_batches=accumulate,
        gradient_clip_val=None if manual else 1.0,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader(torch.randn(STEPS * accumulate * 8, 6), batch_size=8))
    script.end(module)


def fabric(script: Script) -> None:
    from lightning.fabric import Fabric

    script.autolog()
    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    model, optimizer = fabric.setup(plain := model_of(), AdamW(plain.parameters(), lr=0.01))
    for step in range(STEPS):
        loss = nn.functional.mse_loss(model(script.batch(torch.randn(8, 6), step)), torch.ones(8, 1))
        optimizer.zero_grad()
        fabric.backward(loss)
        script.step(model, loss, norm_of(model.parameters()))
        fabric.clip_gradients(model, optimizer, max_norm=1.0, error_if_nonfinite=False)
        optimizer.step()
    script.end(model)


SHOWN = ("lightning",)
TRAINERS = [
    Trainer("Lightning, automatic", fit, shown=SHOWN),
    Trainer("Lightning, manual", lambda script: fit(script, manual=True), shown=SHOWN),
    Trainer("Lightning, accumulation", lambda script: fit(script, accumulate=3), shown=SHOWN),
    Trainer("Fabric", fabric, shown=SHOWN),
]
