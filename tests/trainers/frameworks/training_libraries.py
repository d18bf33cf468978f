"""Libraries that bring a loop of their own: ignite, skorch, timm."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from trainers.frameworks.raw import model_of
from trainers.frameworks.torchvision_operators import declare_operators
from trainers.script import NAN_AT, STEPS, Script, Trainer, norm_of


def ignite(script: Script) -> None:
    from ignite.engine import Engine, Events

    script.autolog()
    model = model_of()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def update(engine: Engine, batch: torch.Tensor) -> float:
        model.train()
        inputs = script.batch(batch, engine.state.iteration - 1)
        loss = nn.functional.mse_loss(model(inputs), torch.ones(8, 1))
        optimizer.zero_grad()
        loss.backward()
        script.step(model, loss, norm_of(model.parameters()))
        optimizer.step()
        return loss.item()

    engine = Engine(update)
    seen: list[float] = []
    engine.add_event_handler(Events.ITERATION_COMPLETED, lambda engine: seen.append(engine.state.output))
    engine.run(torch.utils.data.DataLoader(torch.randn(STEPS * 8, 6), batch_size=8), max_epochs=1)
    script.end(model)


def skorch(script: Script) -> None:
    from skorch import NeuralNetRegressor
    from skorch.callbacks import Callback, GradientNormClipping
    from skorch.dataset import Dataset
    from skorch.helper import predefined_split

    script.autolog()

    class Noting(Callback):  # type: ignore[misc]
        def on_grad_computed(self, net: Any, named_parameters: Any, **more: Any) -> None:
            script.step(net.module_, net.noted_loss, norm_of(net.module_.parameters()))

    class Net(NeuralNetRegressor):  # type: ignore[misc]
        def get_loss(self, *args: Any, **named: Any) -> torch.Tensor:
            loss: torch.Tensor = super().get_loss(*args, **named)
            if named.get("training"):
                self.noted_loss = loss.item()
            return loss

    net = Net(
        model_of,
        optimizer=torch.optim.AdamW,
        lr=0.01,
        max_epochs=1,
        batch_size=8,
        train_split=predefined_split(Dataset(np.ones((8, 6), np.float32), np.ones((8, 1), np.float32))),
        callbacks=[("noting", Noting()), ("clipping", GradientNormClipping(1.0))],
        verbose=0,
    )
    inputs = np.random.default_rng(0).standard_normal((STEPS * 8, 6)).astype(np.float32)
    if script.nan(NAN_AT):
        inputs[NAN_AT * 8 : (NAN_AT + 1) * 8] = np.nan
    net.fit(inputs, np.ones((STEPS * 8, 1), np.float32))
    script.validated(*net.history[:, "valid_loss"])
    script.end(net.module_)


def timm(script: Script) -> None:
    declare_operators()
    import timm
    from timm.loss import LabelSmoothingCrossEntropy
    from timm.optim import create_optimizer_v2
    from timm.scheduler import CosineLRScheduler
    from timm.utils import dispatch_clip_grad

    script.autolog()
    model = timm.create_model("test_vit", pretrained=False, num_classes=10)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
    scheduler = CosineLRScheduler(optimizer, t_initial=STEPS, warmup_t=4, warmup_lr_init=1e-5)
    loss_of = LabelSmoothingCrossEntropy(0.1)
    model.train()
    for step in range(STEPS):
        images = script.batch(torch.randn(4, *model.default_cfg["input_size"]), step)
        loss = loss_of(model(images), torch.randint(10, (4,)))
        optimizer.zero_grad()
        loss.backward()
        script.step(model, loss, norm_of(model.parameters()))
        dispatch_clip_grad(model.parameters(), value=1.0, mode="norm")
        optimizer.step()
        scheduler.step(step + 1)
    script.end(model)


TRAINERS = [
    Trainer("timm", timm, packages=("timm",), shown=("timm",)),
    Trainer("ignite", ignite, packages=("pytorch-ignite",), shown=("pytorch-ignite",)),
    Trainer("skorch", skorch, packages=("skorch",), shown=("skorch",)),
]
