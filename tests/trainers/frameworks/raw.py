"""A loop written by hand."""

from __future__ import annotations

import torch
from torch import nn
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


TRAINERS = [Trainer("raw", raw)]
