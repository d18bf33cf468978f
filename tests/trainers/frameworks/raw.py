"""A loop written by hand: plain, and compiled."""

from __future__ import annotations

import os

import torch
from torch import Tensor, nn
from trainers.script import STEPS, Script, Trainer, norm_of


def model_of() -> nn.Sequential:
    """With what randomness, buffers and modes a model may have."""
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 1))


def raw(script: Script) -> None:
    script.autolog()
    model = model_of()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(STEPS):
        inputs = script.batch(torch.randn(8, 6), step)
        loss = nn.functional.mse_loss(model(inputs), torch.ones(8, 1))
        optimizer.zero_grad()
        loss.backward()
        script.step(model, loss, norm_of(model.parameters()))
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    script.end(model)


def compiled(script: Script, *, whole: bool) -> None:
    """`torch.compile` of all that a step does, or of the optimizer's step alone."""
    script.autolog()
    model = model_of()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    backend = os.environ.get("TRAINERS_COMPILE_WITH", "inductor")
    update = optimizer.step if whole else torch.compile(optimizer.step, backend=backend)

    def train(inputs: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), torch.ones(8, 1))
        loss.backward()
        update()
        return loss

    train = torch.compile(train, backend=backend) if whole else train
    for step in range(STEPS):
        script.step(model)
        loss = train(script.batch(torch.randn(8, 6), step))
        script.note(loss, norm_of(model.parameters()))
    script.end(model)


TRAINERS = [
    Trainer("raw", raw),
    Trainer("compiled train step", lambda script: compiled(script, whole=True)),
    Trainer("compiled optimizer", lambda script: compiled(script, whole=False)),
]
