"""Healthy trainings of many kinds, each with what its kind does to layers: what no judgement may call ill.

In: a seed, and a meter that is told of models and losses. All of them learn: the loss falls, nothing breaks. Where a
training has ill variants, it takes them as arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from benchmarks.layer_meter import Meter
from torch import Generator, Tensor, nn
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, Adam, AdamW, Muon, Optimizer, RMSprop

from mlflow_stability.demo.tasks.language import LETTERS, lines, written
from mlflow_stability.demo.tasks.schedules import cosine

Training = Callable[[int, Meter], None]
Rate = Callable[[int], float]
Draw = Callable[[Generator], tuple[Tensor, Tensor]]
STEPS = 1500
CENTRES = 10


def descend(
    meter: Meter,
    models: nn.Module | Iterable[nn.Module],
    optimizers: Optimizer | list[Optimizer],
    loss_of: Callable[[int], Tensor],
    steps: int = STEPS,
    clip: float | None = None,
    share: Rate | None = None,
    after: Callable[[int], None] | None = None,
) -> None:
    """The loop: a loss, backward, perhaps clipping, a step of each optimizer."""
    models = [models] if isinstance(models, nn.Module) else list(models)
    optimizers = optimizers if isinstance(optimizers, list) else [optimizers]
    for number, model in enumerate(models):
        meter.watch(model, f"model_{number}." if number else "")
    rates = [[group["lr"] for group in each.param_groups] for each in optimizers]
    for step in range(1, steps + 1):
        if share is not None:
            for optimizer, firsts in zip(optimizers, rates, strict=True):
                for group, rate in zip(optimizer.param_groups, firsts, strict=True):
                    group["lr"] = rate * share(step)
        loss = loss_of(step)
        meter.loss(float(loss.detach()))
        loss.backward()
        if clip is not None:
            parameters = [each for model in models for each in model.parameters()]
            meter.norm_before_clipping = float(clip_grad_norm_(parameters, clip))
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        if after is not None:
            after(step)


def images(dice: Generator, count: int = 32, size: int = 12) -> tuple[Tensor, Tensor]:
    """Pictures of ten fixed patterns in noise, with their number."""
    patterns = torch.randn(CENTRES, 3, size, size, generator=Generator().manual_seed(3))
    labels = torch.randint(CENTRES, (count,), generator=dice)
    return patterns[labels] + 1.5 * torch.randn(count, 3, size, size, generator=dice), labels


def points(dice: Generator, count: int = 64, width: int = 32) -> tuple[Tensor, Tensor]:
    """Points around ten centres, with the number of their centre."""
    centres = torch.randn(CENTRES, width, generator=Generator().manual_seed(4))
    labels = torch.randint(CENTRES, (count,), generator=dice)
    return centres[labels] + 1.2 * torch.randn(count, width, generator=dice), labels


def classifies(
    model: nn.Module, draw: Callable[[Generator], tuple[Tensor, Tensor]], seed: int
) -> Callable[[int], Tensor]:
    dice = Generator().manual_seed(seed + 100)

    def loss_of(step: int) -> Tensor:
        inputs, labels = draw(dice)
        return functional.cross_entropy(model(inputs), labels)

    return loss_of


def deep(width: int, layers: int, activation: type[nn.Module] = nn.ReLU, norm: bool = False) -> nn.Sequential:
    parts: list[nn.Module] = [nn.Linear(32, width), activation()]
    for _ in range(layers):
        parts += [nn.Linear(width, width), *([nn.LayerNorm(width)] if norm else []), activation()]
    return nn.Sequential(*parts, nn.Linear(width, CENTRES))


def small_cnn(seed: int, meter: Meter) -> None:
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(32, CENTRES),
    )  # fmt: skip
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    descend(meter, model, optimizer, classifies(model, images, seed), share=cosine(STEPS))


class Residual(nn.Module):
    def __init__(self, width: int, zero_last: bool) -> None:
        super().__init__()
        self.one, self.norm_one = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.two, self.norm_two = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        if zero_last:
            nn.init.zeros_(self.norm_two.weight)

    def forward(self, x: Tensor) -> Tensor:
        inner = functional.relu(self.norm_one(self.one(x)))
        return functional.relu(x + self.norm_two(self.two(inner)))


def resnet(seed: int, meter: Meter, zero_last: bool = False) -> None:
    torch.manual_seed(seed)
    blocks = [Residual(16, zero_last) for _ in range(4)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, CENTRES)]
    model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), *blocks, *head)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    steps = 600
    draw = lambda dice: images(dice, 16, 8)  # noqa: E731
    descend(meter, model, optimizer, classifies(model, draw, seed), steps=steps, share=cosine(steps))


def resnet_from_zero_gains(seed: int, meter: Meter) -> None:
    resnet(seed, meter, zero_last=True)


class Tagger(nn.Module):
    def __init__(self, cell: type[nn.RNNBase]) -> None:
        super().__init__()
        self.letters = nn.Embedding(LETTERS, 24)
        self.cell = cell(24, 48, batch_first=True)
        self.head = nn.Linear(48, LETTERS)

    def forward(self, given: Tensor) -> Tensor:
        states, _ = self.cell(self.letters(given))
        return self.head(states)


def reads(model: nn.Module, seed: int, batch: int = 16) -> Callable[[int], Tensor]:
    texts, dice = written(0), Generator().manual_seed(seed + 100)

    def loss_of(step: int) -> Tensor:
        given, following = lines(texts, dice, batch)
        return functional.cross_entropy(model(given).flatten(0, 1), following.flatten())

    return loss_of


def lstm(seed: int, meter: Meter) -> None:
    torch.manual_seed(seed)
    model = Tagger(nn.LSTM)
    descend(meter, model, Adam(model.parameters(), lr=3e-3), reads(model, seed), steps=1000, clip=1.0)


def gru_by_rmsprop(seed: int, meter: Meter) -> None:
    torch.manual_seed(seed)
    model = Tagger(nn.GRU)
    descend(meter, model, RMSprop(model.parameters(), lr=1e-3), reads(model, seed), steps=1000)


class Transformer(nn.Module):
    def __init__(self, layers: int = 3, width: int = 32, norm_first: bool = True, tied: bool = False) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(LETTERS, width), nn.Embedding(32, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.1, "gelu", batch_first=True, norm_first=norm_first)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, LETTERS, bias=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(32))
        nn.init.normal_(self.letters.weight, std=0.02)
        nn.init.normal_(self.places.weight, std=0.02)
        if tied:
            self.head.weight = self.letters.weight

    def forward(self, given: Tensor) -> Tensor:
        x = self.letters(given) + self.places(torch.arange(given.shape[1]))
        return self.head(self.norm(self.layers(x, mask=self.mask, is_causal=True)))


def pre_norm_transformer(seed: int, meter: Meter) -> None:
    torch.manual_seed(seed)
    model = Transformer(tied=True)
    optimizer = AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)
    descend(meter, model, optimizer, reads(model, seed, 8), steps=800, clip=1.0, share=cosine(800, 50))


def post_norm_with_warm_up(seed: int, meter: Meter) -> None:
    torch.manual_seed(seed)
    model = Transformer(norm_first=False)
    descend(meter, model, Adam(model.parameters(), lr=2e-3), reads(model, seed, 8), steps=800, share=cosine(800, 200))


def muon_and_adamw(seed: int, meter: Meter) -> None:
    torch.manual_seed(seed)
    model = Transformer(layers=2)
    matrices = [each for name, each in model.named_parameters() if each.ndim == 2 and "layers" in name]
    others = [each for each in model.parameters() if not any(each is matrix for matrix in matrices)]
    optimizers: list[Optimizer] = [Muon(matrices, lr=5e-3, weight_decay=0.1), AdamW(others, lr=3e-3)]
    descend(meter, model, optimizers, reads(model, seed, 8), steps=800, clip=1.0, share=cosine(800))


def relu_mlp(seed: int, meter: Meter) -> None:
    torch.manual_seed(seed)
    model = deep(64, 6)
    descend(meter, model, AdamW(model.parameters(), lr=1e-3), classifies(model, points, seed))


def plain_sgd(seed: int, meter: Meter) -> None:
    torch.manual_seed(seed)
    model = deep(64, 2)
    descend(meter, model, SGD(model.parameters(), lr=0.1), classifies(model, points, seed))


def deep_tanh_with_norm(seed: int, meter: Meter) -> None:
    torch.manual_seed(seed)
    model = deep(48, 10, nn.Tanh, norm=True)
    optimizer = SGD(model.parameters(), lr=0.03, momentum=0.9)
    descend(meter, model, optimizer, classifies(model, points, seed), share=cosine(STEPS))


def to_zero_loss(seed: int, meter: Meter) -> None:
    """It learns its few examples by heart: the gradient goes to nothing because there is nothing left."""
    torch.manual_seed(seed)
    model = deep(64, 3)
    inputs, labels = points(Generator().manual_seed(seed), 64)
    loss_of = lambda step: functional.cross_entropy(model(inputs), labels)  # noqa: E731
    descend(meter, model, AdamW(model.parameters(), lr=1e-3), loss_of, steps=3000)


def rate_to_zero(seed: int, meter: Meter) -> None:
    """A schedule that ends at nothing, as linear decay does."""
    torch.manual_seed(seed)
    model = deep(64, 3)
    optimizer = AdamW(model.parameters(), lr=1e-3)
    descend(meter, model, optimizer, classifies(model, points, seed), share=lambda step: 1 - (step - 1) / STEPS)


USUAL: tuple[Training, ...] = (
    small_cnn, resnet, resnet_from_zero_gains, lstm, gru_by_rmsprop, pre_norm_transformer, post_norm_with_warm_up,
    muon_and_adamw, relu_mlp, plain_sgd, deep_tanh_with_norm, to_zero_loss, rate_to_zero,
)  # fmt: skip
