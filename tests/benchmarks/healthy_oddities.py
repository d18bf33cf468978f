"""Healthy trainings in which layers are unlike each other by design: adapters, experts, rare rows, two models at once.

In: a seed, and a meter that is told of models and losses. All of them learn: the loss falls, nothing breaks.
"""

from __future__ import annotations

import math

import torch
from benchmarks.layer_meter import Meter
from benchmarks.usual_trainings import CENTRES, USUAL, Training, classifies, deep, descend, points
from torch import Generator, Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adafactor, Adagrad, Adam, AdamW, Optimizer


def fine_tuning(seed: int, meter: Meter, frozen: bool = False) -> None:
    """A network that can do a task already learns a related one, with a small rate."""
    torch.manual_seed(seed)
    model = deep(64, 3)
    before, dice = Adam(model.parameters(), lr=1e-3), Generator().manual_seed(seed)
    meter.stop()
    for _ in range(600):
        inputs, labels = points(dice)
        functional.cross_entropy(model(inputs), labels).backward()
        before.step()
        before.zero_grad()
    meter.start()
    dice = Generator().manual_seed(seed + 100)
    if frozen:
        for each in model[:-1].parameters():
            each.requires_grad_(requires_grad=False)

    def loss_of(step: int) -> Tensor:
        inputs, labels = points(dice)
        return functional.cross_entropy(model(inputs), (labels + (labels > 6).long()) % CENTRES)

    descend(meter, model, AdamW(model.parameters(), lr=2e-5 if not frozen else 1e-3), loss_of)


def frozen_backbone(seed: int, meter: Meter) -> None:
    fine_tuning(seed, meter, frozen=True)


class LowRank(nn.Module):
    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner = inner.requires_grad_(requires_grad=False)
        self.down, self.up = nn.Linear(inner.in_features, 4, bias=False), nn.Linear(4, inner.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + 4.0 * self.up(self.down(x))


def low_rank_adapters(seed: int, meter: Meter) -> None:
    """Adapters beside frozen weights; one half of each starts at zero."""
    torch.manual_seed(seed)
    model = deep(64, 3)
    for at, module in enumerate(model):
        if isinstance(module, nn.Linear) and at + 1 < len(model):
            model[at] = LowRank(module)
    trained = [each for each in model.parameters() if each.requires_grad]
    descend(meter, model, AdamW(trained, lr=1e-3), classifies(model, points, seed))


def generative_pair(seed: int, meter: Meter) -> None:
    """A GAN: two models, two optimizers, losses that fall and rise against each other."""
    torch.manual_seed(seed)
    makes = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    tells = nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
    meter.watch(makes, "makes.")
    meter.watch(tells, "tells.")
    of_makes, of_tells = (Adam(each.parameters(), lr=2e-4, betas=(0.5, 0.999)) for each in (makes, tells))
    dice, judge = Generator().manual_seed(seed + 100), functional.binary_cross_entropy_with_logits
    for _ in range(1500):
        angle = 2 * math.pi * torch.randint(8, (64,), generator=dice) / 8
        real = torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(64, 2, generator=dice)
        made = makes(torch.randn(64, 8, generator=dice))
        scores = torch.cat([tells(real), tells(made.detach())])
        loss = judge(scores, torch.cat([torch.ones(64, 1), torch.zeros(64, 1)]))
        step_of(meter, of_tells, loss)
        step_of(meter, of_makes, judge(tells(made), torch.ones(64, 1)))
        of_tells.zero_grad()


def step_of(meter: Meter, optimizer: Optimizer, loss: Tensor) -> None:
    meter.loss(float(loss.detach()))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def variational(seed: int, meter: Meter) -> None:
    """A VAE, with the weight of its prior warmed up."""
    torch.manual_seed(seed)
    codes, decodes = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)), deep_decoder()
    model, dice = nn.ModuleList([codes, decodes]), Generator().manual_seed(seed + 100)

    def loss_of(step: int) -> Tensor:
        inputs, _ = points(dice)
        mean, spread = codes(inputs).chunk(2, -1)
        code = mean + (spread / 2).exp() * torch.randn(mean.shape, generator=dice)
        prior = (mean**2 + spread.exp() - 1 - spread).sum(-1).mean() / 2
        return ((decodes(code) - inputs) ** 2).sum(-1).mean() + min(1.0, step / 500) * prior

    descend(meter, model, Adam(model.parameters(), lr=1e-3), loss_of)


def deep_decoder() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 32))


def rare_rows(seed: int, meter: Meter) -> None:
    """A recommender: tables of which each batch touches a few rows, and one that takes part in one batch of forty."""
    torch.manual_seed(seed)
    users, items, rare = nn.Embedding(500, 8), nn.Embedding(300, 8), nn.Embedding(50, 8)
    model, dice = nn.ModuleList([users, items, rare, nn.Linear(8, 1)]), Generator().manual_seed(seed + 100)
    taste = torch.randn(300, generator=Generator().manual_seed(9))

    def loss_of(step: int) -> Tensor:
        user, item = (torch.randint(most, (64,), generator=dice) for most in (500, 300))
        seldom = float(torch.rand((), generator=dice)) < 1 / 40
        extra = rare(user % 50) if seldom else 0.0 * rare(user % 50)
        score = model[3](users(user) * items(item) + extra)[:, 0]
        return functional.binary_cross_entropy_with_logits(score, (taste[item] > 0).float())

    descend(meter, model, Adagrad(model.parameters(), lr=0.1), loss_of)


def rare_expert(seed: int, meter: Meter) -> None:
    """A mixture of experts, of which each is asked by some rows only, and one by hardly any."""
    torch.manual_seed(seed)
    first, last = nn.Linear(32, 64), nn.Linear(64, CENTRES)
    experts = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))
    model, dice = nn.ModuleList([first, experts, last]), Generator().manual_seed(seed + 100)

    def loss_of(step: int) -> Tensor:
        inputs, labels = points(dice)
        hidden = functional.relu(first(inputs))
        asked = torch.multinomial(torch.tensor([0.6, 0.3, 0.095, 0.005]), 64, replacement=True, generator=dice)
        out = torch.stack([experts[int(which)](row) for which, row in zip(asked, hidden, strict=True)])
        return functional.cross_entropy(last(functional.relu(out)), labels)

    descend(meter, model, AdamW(model.parameters(), lr=1e-3), loss_of, steps=500)


def adafactor_autoencoder(seed: int, meter: Meter) -> None:
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 6), nn.Tanh(), nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 32)
    )
    dice = Generator().manual_seed(seed + 100)

    def loss_of(step: int) -> Tensor:
        inputs, _ = points(dice)
        return functional.mse_loss(model(inputs), inputs)

    descend(meter, model, Adafactor(model.parameters(), lr=1e-2), loss_of)


def contrastive(seed: int, meter: Meter) -> None:
    """Two towers with a learned temperature, a layer of a single number."""
    torch.manual_seed(seed)
    left, right = deep(48, 1), deep(48, 1)
    heat, dice = nn.Module(), Generator().manual_seed(seed + 100)
    heat.log = nn.Parameter(torch.tensor(2.0))
    model = nn.ModuleList([left, right, heat])

    def loss_of(step: int) -> Tensor:
        inputs, _ = points(dice)
        views = [inputs + 0.5 * torch.randn(inputs.shape, generator=dice) for _ in range(2)]
        one, other = (
            functional.normalize(tower(view), dim=-1) for tower, view in zip((left, right), views, strict=True)
        )
        return functional.cross_entropy(heat.log.exp() * one @ other.T, torch.arange(64))

    descend(meter, model, AdamW(model.parameters(), lr=1e-3), loss_of)


def q_learning(seed: int, meter: Meter) -> None:
    """Rewards that are rare, and a target network that is copied every hundred steps."""
    torch.manual_seed(seed)
    model, target = deep(48, 1), deep(48, 1)
    target.load_state_dict(model.state_dict())
    dice = Generator().manual_seed(seed + 100)

    def loss_of(step: int) -> Tensor:
        if step % 100 == 0:
            target.load_state_dict(model.state_dict())
        inputs, labels = points(dice)
        chosen = torch.randint(CENTRES, (64,), generator=dice)
        following, _ = points(dice)
        with torch.no_grad():
            wanted = (labels == chosen).float() + 0.9 * target(following).max(-1).values
        return functional.smooth_l1_loss(model(inputs)[torch.arange(64), chosen], wanted)

    descend(meter, model, Adam(model.parameters(), lr=1e-3), loss_of, clip=10.0)


def logistic(seed: int, meter: Meter) -> None:
    """A single layer that starts at zero."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(32, CENTRES))
    nn.init.zeros_(model[0].weight)
    nn.init.zeros_(model[0].bias)
    descend(meter, model, SGD(model.parameters(), lr=0.1), classifies(model, points, seed))


def scaled_inputs(seed: int, meter: Meter) -> None:
    """Inputs in the hundreds and a gradient norm that is large from the first step on, and healthy."""
    torch.manual_seed(seed)
    model = deep(64, 2)
    draw = lambda dice: (100 * (pair := points(dice))[0], pair[1])  # noqa: E731
    descend(meter, model, Adam(model.parameters(), lr=3e-4), classifies(model, draw, seed))


class Scaled(nn.Module):
    """A residual branch that begins at a hundred-thousandth, as in deep vision transformers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.gain = nn.Parameter(1e-5 * torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gain * self.inner(self.norm(x))


def layer_scale(seed: int, meter: Meter) -> None:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(32, 48), *(Scaled(48) for _ in range(4)), nn.Linear(48, CENTRES))
    descend(meter, model, AdamW(model.parameters(), lr=1e-3), classifies(model, points, seed), clip=1.0)


HEALTHY: tuple[Training, ...] = (
    *USUAL, fine_tuning, frozen_backbone, low_rank_adapters, generative_pair, variational, rare_rows, rare_expert,
    adafactor_autoencoder, contrastive, q_learning, logistic, scaled_inputs, layer_scale,
)  # fmt: skip
