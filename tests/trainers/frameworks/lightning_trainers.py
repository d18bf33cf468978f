"""Lightning: its Trainer with automatic and manual optimization, accumulation, two optimizers, `fit` twice and from a
checkpoint; and Fabric."""

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
    trainer = trainer_for(
        max_steps=STEPS, accumulate_grad_batches=accumulate, gradient_clip_val=None if manual else 1.0
    )
    trainer.fit(module, DataLoader(torch.randn(STEPS * accumulate * 8, 6), batch_size=8))
    script.end(module)


def gan(script: Script) -> None:
    """Manual optimization of two models in turns."""
    import lightning.pytorch as pl

    script.autolog()

    class GAN(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.generator = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 6))
            self.discriminator = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))

        def training_step(self, batch: Tensor, index: int) -> None:
            first, second = self.optimizers()  # type: ignore[misc]
            made = self.generator(torch.randn(8, 4))
            self.take("generator", first, self.generator, bce(self.discriminator(made), torch.ones(8, 1)))
            real = self.discriminator(script.batch(batch, index))
            fake = self.discriminator(made.detach())
            loss = bce(real, torch.ones(8, 1)) + bce(fake, torch.zeros(8, 1))
            self.take("discriminator", second, self.discriminator, loss)

        def take(self, track: str, optimizer: Any, model: nn.Module, loss: Tensor) -> None:
            self.toggle_optimizer(optimizer)
            optimizer.zero_grad()
            self.manual_backward(loss)
            script.step(model, loss, norm_of(model.parameters()), track)
            optimizer.step()
            self.untoggle_optimizer(optimizer)

        def configure_optimizers(self) -> list[Optimizer]:  # type: ignore[override]
            return [AdamW(item.parameters(), lr=0.01) for item in (self.generator, self.discriminator)]

    bce = nn.functional.binary_cross_entropy_with_logits
    module = GAN()
    trainer_for(max_epochs=1).fit(module, DataLoader(torch.randn(STEPS * 8, 6), batch_size=8))
    script.end(module.generator, module.discriminator, tracks=("generator", "discriminator"))


def fit_twice(script: Script, *, resumed: bool) -> None:
    """Half of the steps by one `fit` and half by a second one: of the same module, or from the checkpoint of the first.

    A module made again from the checkpoint, while the first one is alive, is a track of its own in the run. Each `fit`
    is validated at its end, so that there are metrics of Lightning's own.
    """
    import lightning.pytorch as pl

    script.autolog()

    class Module(pl.LightningModule):
        def __init__(self, track: str = "") -> None:
            super().__init__()
            self.model, self.track = model_of(), track

        def training_step(self, batch: Tensor, index: int) -> Tensor:
            inputs = script.batch(batch, sum(map(len, script.weights.values())))
            loss = nn.functional.mse_loss(self.model(inputs), torch.ones(8, 1))
            self.loss = loss.item()
            return loss

        def validation_step(self, batch: Tensor, index: int) -> None:
            self.log("val_loss", self.model(batch).square().mean())

        def on_validation_end(self) -> None:
            if not self.trainer.sanity_checking:
                script.validated(self.trainer.callback_metrics["val_loss"])

        def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
            script.step(self, self.loss, norm_of(self.parameters()), self.track)

        def configure_optimizers(self) -> Optimizer:
            return AdamW(self.parameters(), lr=0.01)

    loaders = [DataLoader(torch.randn(count * 8, 6), batch_size=8) for count in (STEPS // 2, 2)]
    module = Module()
    first = trainer_for(max_epochs=1)
    first.fit(module, *loaders)
    if resumed:
        first.save_checkpoint("half.ckpt")
        second = Module("resumed")
        trainer_for(max_epochs=2).fit(second, *loaders, ckpt_path="half.ckpt")
        script.end(module, second, tracks=("", "resumed"))
    else:
        trainer_for(max_epochs=1).fit(module, *loaders)
        script.end(module)


def trainer_for(**limits: Any) -> Any:
    """A Trainer on the CPU that writes and shows nothing."""
    import lightning.pytorch as pl

    return pl.Trainer(
        **limits,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


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
    Trainer("Lightning, GAN", gan, shown=SHOWN),
    Trainer("Lightning, fit twice", lambda script: fit_twice(script, resumed=False), shown=SHOWN),
    Trainer("Lightning, fit from a checkpoint", lambda script: fit_twice(script, resumed=True), shown=SHOWN),
    Trainer("Fabric", fabric, shown=SHOWN),
]
