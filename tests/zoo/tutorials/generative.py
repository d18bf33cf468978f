"""Models that make data: GANs, variational autoencoders, diffusion."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Adam, AdamW
from zoo.tutorials.pictures import PATTERNS, digits
from zoo.tutorials.tutorial import Outcome

KINDS = 1.5 * PATTERNS[:3]


def shapes(count: int) -> Tensor:
    """Pictures of three kinds, in a little noise."""
    return KINDS[torch.randint(len(KINDS), (count,))] + 0.1 * torch.randn(count, 1, 12, 12)


def distance_to_shapes(made: Tensor) -> float:
    """Mean squared error to the nearest kind, as a share of its variance: 1 for empty pictures."""
    nearest = torch.cdist(made.flatten(1), KINDS.flatten(1)).min(1).values ** 2
    return (nearest.mean() / KINDS.flatten(1).square().sum(1).min()).item()


def weights_init(module: nn.Module) -> None:
    name = module.__class__.__name__
    if name.find("Conv") != -1:
        nn.init.normal_(module.weight, 0.0, 0.02)
    elif name.find("BatchNorm") != -1:
        nn.init.normal_(module.weight, 1.0, 0.02)
        nn.init.zeros_(module.bias)


def dcgan() -> Outcome:
    """DCGAN's tutorial: labels of 1 and 0, two backward passes for the discriminator, Adam with a beta of 0.5."""
    net_g = nn.Sequential(
        nn.ConvTranspose2d(16, 32, 3, 1, 0, bias=False), nn.BatchNorm2d(32), nn.ReLU(inplace=True),
        nn.ConvTranspose2d(32, 16, 4, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True),
        nn.ConvTranspose2d(16, 1, 4, 2, 1, bias=False),
    )  # fmt: skip
    net_d = nn.Sequential(
        nn.Conv2d(1, 16, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(16, 32, 4, 2, 1, bias=False), nn.BatchNorm2d(32), nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(32, 1, 3, 1, 0, bias=False), nn.Flatten(0),
    )  # fmt: skip
    net_g.apply(weights_init)
    net_d.apply(weights_init)
    criterion = nn.BCEWithLogitsLoss()
    fixed_noise = torch.randn(64, 16, 1, 1)
    optimizer_d = Adam(net_d.parameters(), lr=2e-4, betas=(0.5, 0.999))
    optimizer_g = Adam(net_g.parameters(), lr=1e-3, betas=(0.5, 0.999))
    for _ in range(500):
        net_d.zero_grad()
        real = shapes(32)
        label = torch.full((32,), 1.0)
        err_d_real = criterion(net_d(real), label)
        err_d_real.backward()
        fake = net_g(torch.randn(32, 16, 1, 1))
        label.fill_(0.0)
        err_d_fake = criterion(net_d(fake.detach()), label)
        err_d_fake.backward()
        optimizer_d.step()
        net_g.zero_grad()
        label.fill_(1.0)
        criterion(net_d(fake), label).backward()
        optimizer_g.step()
    with torch.no_grad():
        made = net_g(fixed_noise)
    return Outcome(distance_to_shapes(made), (net_g, net_d))


def leaky(*widths: int) -> nn.Sequential:
    layers = [layer for pair in pairwise(widths) for layer in (nn.Linear(*pair), nn.LeakyReLU(0.2))]
    return nn.Sequential(*layers[:-1])


def wgan_gp() -> Outcome:
    """A critic without a bound, with a gradient penalty; the generator steps every fifth time."""
    generator, critic = leaky(8, 64, 128, 144), leaky(144, 128, 64, 1)
    optimizer_g = Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.9))
    optimizer_d = Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.9))
    for i in range(1500):
        real = shapes(32).flatten(1)
        optimizer_d.zero_grad()
        fake = generator(torch.randn(32, 8)).detach()
        alpha = torch.rand(32, 1)
        interpolates = (alpha * real + (1 - alpha) * fake).requires_grad_(requires_grad=True)
        gradients = torch.autograd.grad(
            outputs=critic(interpolates), inputs=interpolates, grad_outputs=torch.ones(32, 1), create_graph=True
        )[0]
        gradient_penalty = ((gradients.norm(2, dim=1) - 1) ** 2).mean()
        d_loss = -torch.mean(critic(real)) + torch.mean(critic(fake)) + 10 * gradient_penalty
        d_loss.backward()
        optimizer_d.step()
        optimizer_g.zero_grad()
        if i % 5 == 0:
            g_loss = -torch.mean(critic(generator(torch.randn(32, 8))))
            g_loss.backward()
            optimizer_g.step()
    with torch.no_grad():
        made = generator(torch.randn(200, 8))
    return Outcome(distance_to_shapes(made), (generator, critic))


class VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc21, self.fc22 = nn.Linear(144, 64), nn.Linear(64, 8), nn.Linear(64, 8)
        self.fc3, self.fc4 = nn.Linear(8, 64), nn.Linear(64, 144)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h1 = functional.relu(self.fc1(x.view(-1, 144)))
        mu, logvar = self.fc21(h1), self.fc22(h1)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
        return torch.sigmoid(self.fc4(functional.relu(self.fc3(z)))), mu, logvar


def vae_warm_up() -> Outcome:
    """pytorch/examples' VAE: sums over the batch; the weight of the prior rises for half of the training."""
    model = VAE()
    optimizer = Adam(model.parameters(), lr=1e-3)
    errors = []
    for step in range(1200):
        data = torch.sigmoid(2 * digits(32, noise=0.1)[0])
        optimizer.zero_grad()
        recon, mu, logvar = model(data)
        bce = functional.binary_cross_entropy(recon, data.view(-1, 144), reduction="sum")
        kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
        loss = bce + min(1.0, step / 600) * kld
        loss.backward()
        optimizer.step()
        errors.append((recon - data.view(-1, 144)).square().mean().item())
    return Outcome(sum(errors[-50:]) / 50, (model,))


class VectorQuantizer(nn.Module):
    def __init__(self, codes: int = 32, width: int = 8) -> None:
        super().__init__()
        self.embedding = nn.Embedding(codes, width)
        self.embedding.weight.data.uniform_(-1 / codes, 1 / codes)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        flat = inputs.permute(0, 2, 3, 1).reshape(-1, inputs.shape[1])
        distances = flat.pow(2).sum(1, keepdim=True) + self.embedding.weight.pow(2).sum(1)
        encoding = torch.argmin(distances - 2 * flat @ self.embedding.weight.t(), dim=1)
        batch, _, height, width = inputs.shape
        quantized = self.embedding(encoding).view(batch, height, width, -1).permute(0, 3, 1, 2)
        loss = functional.mse_loss(quantized, inputs.detach()) + 0.25 * functional.mse_loss(quantized.detach(), inputs)
        avg_probs = torch.bincount(encoding, minlength=32) / len(encoding)
        perplexity = torch.exp(-torch.sum(avg_probs * torch.log(avg_probs + 1e-10)))
        return inputs + (quantized - inputs).detach(), loss, perplexity


def vq_vae() -> Outcome:
    """A codebook with a straight-through estimator: its loss rises while the encoder spreads out."""
    encoder = nn.Sequential(nn.Conv2d(1, 16, 4, 2, 1), nn.ReLU(), nn.Conv2d(16, 8, 3, 1, 1))
    decoder = nn.Sequential(nn.Conv2d(8, 16, 3, 1, 1), nn.ReLU(), nn.ConvTranspose2d(16, 1, 4, 2, 1))
    model = nn.ModuleDict({"encoder": encoder, "vq": VectorQuantizer(), "decoder": decoder})
    optimizer = Adam(model.parameters(), lr=2e-3)
    train_res_recon_error, train_res_perplexity = [], []
    for _ in range(700):
        data, _ = digits(32, noise=0.1)
        optimizer.zero_grad()
        quantized, vq_loss, perplexity = model["vq"](model["encoder"](data))
        recon_error = functional.mse_loss(model["decoder"](quantized), data) / 0.6
        loss = recon_error + vq_loss
        loss.backward()
        optimizer.step()
        train_res_recon_error.append(recon_error.item())
        train_res_perplexity.append(perplexity.item())
    return Outcome(sum(train_res_recon_error[-50:]) / 50, (model,))


class Denoiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Embedding(100, 64)
        self.enter, self.middle, self.leave = nn.Linear(144, 128), nn.Linear(128 + 64, 128), nn.Linear(128, 144)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        hidden = functional.silu(self.enter(x))
        return self.leave(functional.silu(self.middle(torch.cat([hidden, self.time(t)], 1))))


def ddpm() -> Outcome:
    """Noise at a timestep that is drawn for each picture: batches of 8, so that the loss depends on the draw."""
    model = Denoiser()
    optimizer = AdamW(model.parameters(), lr=1e-3)
    alphas_cumprod = torch.cumprod(1.0 - torch.linspace(1e-4, 0.08, 100), dim=0)

    def p_losses(x_start: Tensor, t: Tensor) -> Tensor:
        noise = torch.randn_like(x_start)
        a = alphas_cumprod[t][:, None]
        x_noisy = a.sqrt() * x_start + (1 - a).sqrt() * noise
        return functional.mse_loss(noise, model(x_noisy, t))

    for _ in range(1500):
        optimizer.zero_grad()
        batch = digits(8, noise=0.1)[0].flatten(1)
        t = torch.randint(0, 100, (8,)).long()
        loss = p_losses(batch, t)
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        score = p_losses(digits(1000, noise=0.1)[0].flatten(1), torch.arange(100).repeat(10)).item()
    return Outcome(score, (model,))
