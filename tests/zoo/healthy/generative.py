"""Models of how data are distributed: autoencoders, variational ones, diffusion, flows."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.optim import Adam, AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR
from zoo.healthy.adversaries import ring
from zoo.healthy.data import dice_of, images, learnt


def autoencoder(seed: int) -> None:
    draw = images(dice_of(seed), noise=0.1)
    model = nn.Sequential(
        *(nn.Flatten(), nn.Linear(144, 64), nn.ReLU(), nn.Linear(64, 12)),
        *(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 144)),
    )
    optimizer = Adam(model.parameters(), lr=2e-3)
    for _ in range(1200):
        inputs, _ = draw(64)
        loss = mse_loss(model(inputs), inputs.flatten(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    learnt("the error", loss.item(), most=0.2)


def denoising_autoencoder(seed: int) -> None:
    dice = dice_of(seed)
    draw = images(dice, noise=0.1)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 16, 3, 2, 1), nn.ReLU(),
        nn.ConvTranspose2d(16, 16, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(16, 1, 4, 2, 1),
    )  # fmt: skip
    optimizer = AdamW(model.parameters(), lr=3e-3)
    for _ in range(700):
        inputs, _ = draw(32)
        loss = mse_loss(model(inputs + torch.randn(inputs.shape, generator=dice)), inputs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    learnt("the error", loss.item(), most=0.6)


def variational_autoencoder(seed: int) -> None:
    """The weight of the prior is warmed up, so that the loss grows by design for a while."""
    dice = dice_of(seed)
    draw = images(dice, noise=0.1)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(144, 64), nn.ReLU(), nn.Linear(64, 16))
    decoder = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 144))
    optimizer = Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3)
    for step in range(1500):
        inputs, _ = draw(64)
        mean, spread = encoder(inputs).chunk(2, 1)
        code = mean + (spread / 2).exp() * torch.randn(mean.shape, generator=dice)
        prior = (mean**2 + spread.exp() - 1 - spread).sum(1).mean() / 2
        error = ((decoder(code) - inputs.flatten(1)) ** 2).sum(1).mean()
        loss = error + min(1.0, step / 500) * prior
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    learnt("the error", error.item(), most=60.0)


def diffusion(seed: int) -> None:
    """A network that tells the noise, at a step of its own for each example, and an average of its weights."""
    dice = dice_of(seed)
    model = nn.Sequential(nn.Linear(3, 128), nn.SiLU(), nn.Linear(128, 128), nn.SiLU(), nn.Linear(128, 2))
    average = deepcopy(model)
    optimizer = AdamW(model.parameters(), lr=1e-3)
    schedule = CosineAnnealingLR(optimizer, 1500)
    kept = torch.cumprod(1 - torch.linspace(1e-4, 0.1, 100), 0)
    losses = []
    for _ in range(1500):
        clean, at = ring(128, dice) / 2, torch.randint(100, (128, 1), generator=dice)
        noise = torch.randn(clean.shape, generator=dice)
        noisy = kept[at].sqrt() * clean + (1 - kept[at]).sqrt() * noise
        loss = mse_loss(model(torch.cat([noisy, at / 100], 1)), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        with torch.no_grad():
            for mean, item in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(item, 0.01)
    learnt("the loss", sum(losses[-100:]) / 100, most=0.6)


class Coupling(nn.Module):
    """Moves and stretches one coordinate by what the other says."""

    def __init__(self, which: int) -> None:
        super().__init__()
        self.which = which
        self.net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 2))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        kept, moved = x[:, self.which : self.which + 1], x[:, 1 - self.which : 2 - self.which]
        stretch, shift = self.net(kept).chunk(2, 1)
        moved = moved * stretch.tanh().exp() + shift
        pair = (kept, moved) if self.which == 0 else (moved, kept)
        return torch.cat(pair, 1), stretch.tanh()[:, 0]


def normalising_flow(seed: int) -> None:
    """The likelihood of a density: the loss goes through zero and on."""
    dice = dice_of(seed)
    layers = nn.ModuleList(Coupling(number % 2) for number in range(6))
    optimizer = Adam(layers.parameters(), lr=3e-3)
    losses = []
    for _ in range(900):
        x = torch.randn(128, 2, generator=dice) * torch.tensor([0.3, 0.05])
        x = torch.stack([x[:, 0], x[:, 1] + x[:, 0] ** 2], 1)
        volume = torch.zeros(128)
        for layer in layers:
            x, stretched = layer(x)
            volume = volume + stretched
        loss = (x.square().sum(1) / 2 + 1.8379 - volume).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    learnt("the negative log-likelihood", sum(losses[-50:]) / 50, most=0.0)
