"""Ways to train: optimizers, schedules, number formats, and loops that are not one batch, one step."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn
from torch.amp import GradScaler, autocast
from torch.nn.functional import cross_entropy, huber_loss, mse_loss
from torch.optim import LBFGS, SGD, Adafactor, Adam, AdamW, Optimizer, RMSprop
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, MultiStepLR, OneCycleLR
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
from zoo.healthy.data import accuracy, classify, cnn, dice_of, epochs, images, learnt, mlp, points, pretrained, surface


def plain_sgd(seed: int) -> None:
    model = mlp()
    learnt("accuracy", classify(model, SGD(model.parameters(), lr=0.1), points(dice_of(seed)), 1500), least=0.9)


def adafactor(seed: int) -> None:
    model = mlp()
    learnt("accuracy", classify(model, Adafactor(model.parameters(), lr=1e-2), points(dice_of(seed)), 1200), least=0.9)


def rmsprop(seed: int) -> None:
    model = cnn()
    optimizer = RMSprop(model.parameters(), lr=3e-4, momentum=0.9)
    learnt("accuracy", classify(model, optimizer, images(dice_of(seed)), 700, batch=32), least=0.9)


class SignDescent(Optimizer):
    """Lion: every weight moves by the rate, in the direction of an average of signs."""

    def __init__(self, parameters: list[nn.Parameter], lr: float, decay: float = 0.1) -> None:
        super().__init__(parameters, {"lr": lr, "decay": decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for param in group["params"]:
                mean = self.state[param].setdefault("mean", torch.zeros_like(param))
                param.mul_(1 - group["lr"] * group["decay"]).sub_(
                    (0.9 * mean + 0.1 * param.grad).sign(), alpha=group["lr"]
                )
                mean.mul_(0.99).add_(param.grad, alpha=0.01)


def lion(seed: int) -> None:
    model = mlp()
    optimizer = SignDescent(list(model.parameters()), lr=3e-4)
    learnt("accuracy", classify(model, optimizer, points(dice_of(seed)), 1200), least=0.9)


def lbfgs(seed: int) -> None:
    """A few hundred steps on all data at once, each with evaluations of its own."""
    inputs, wanted = surface(dice_of(seed), noise=0.1)(400)
    model = nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 1))
    optimizer = LBFGS(model.parameters(), lr=0.5, max_iter=4, history_size=10)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = mse_loss(model(inputs), wanted)
        loss.backward()
        return loss

    losses = [optimizer.step(closure).item() for _ in range(200)]
    learnt("the error", losses[-1], most=0.3)


def sharpness_aware(seed: int) -> None:
    """SAM: up the slope, a second gradient there, back, and a step with that one."""
    draw, model = points(dice_of(seed)), mlp()
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(900):
        inputs, labels = draw(64)
        cross_entropy(model(inputs), labels).backward()
        with torch.no_grad():
            weights = [parameter for parameter in model.parameters() if parameter.grad is not None]
            norm = torch.stack([weight.grad.norm() for weight in weights]).norm()
            moves = [0.05 * weight.grad / (norm + 1e-12) for weight in weights]
            for item, move in zip(weights, moves, strict=True):
                item.add_(move)
        optimizer.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        with torch.no_grad():
            for item, move in zip(weights, moves, strict=True):
                item.sub_(move)
        optimizer.step()
        optimizer.zero_grad()
    learnt("accuracy", accuracy(model, draw(500)), least=0.9)


def cosine_restarts(seed: int) -> None:
    model = mlp(layers=3)
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    schedule = CosineAnnealingWarmRestarts(optimizer, 300, eta_min=1e-4)
    learnt("accuracy", classify(model, optimizer, points(dice_of(seed)), 1500, schedule=schedule), least=0.9)


def one_cycle(seed: int) -> None:
    model = cnn(norm=nn.BatchNorm2d)
    optimizer = SGD(model.parameters(), lr=0.02, momentum=0.9)
    schedule = OneCycleLR(optimizer, 0.1, total_steps=600)
    learnt("accuracy", classify(model, optimizer, images(dice_of(seed)), 600, batch=32, schedule=schedule), least=0.9)


def steps_of_the_rate(seed: int) -> None:
    model = cnn(norm=nn.BatchNorm2d)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    schedule = MultiStepLR(optimizer, [250, 450])
    learnt(
        "accuracy", classify(model, optimizer, images(dice_of(seed), 1.5), 600, batch=32, schedule=schedule), least=0.8
    )


def staged_unfreezing(seed: int) -> None:
    """The head first, then layer by layer from the back, each with a smaller rate."""
    draw = points(dice_of(seed))
    model = pretrained(mlp(64, 3), draw)

    def renamed(count: int) -> tuple[Tensor, Tensor]:
        inputs, labels = draw(count)
        return inputs, (labels * 3 + 1) % 10

    layers = [module for module in model if isinstance(module, nn.Linear)]
    model.requires_grad_(requires_grad=False)
    optimizer = AdamW(layers[-1].requires_grad_().parameters(), lr=3e-3)
    right = classify(model, optimizer, renamed, 400)
    for place, layer in enumerate(reversed(layers[:-1]), start=1):
        optimizer.add_param_group({"params": list(layer.requires_grad_().parameters()), "lr": 3e-3 * 0.3**place})
        right = classify(model, optimizer, renamed, 300)
    learnt("accuracy", right, least=0.9)


def bfloat16(seed: int) -> None:
    draw, model = images(dice_of(seed)), cnn()
    optimizer = AdamW(model.parameters(), lr=2e-3)
    for _ in range(400):
        inputs, labels = draw(32)
        with autocast("cpu", torch.bfloat16):
            loss = cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    learnt("accuracy", accuracy(model, draw(500)), least=0.9)


def half_with_scaler(seed: int) -> None:
    """fp16 with a loss scaler: its first steps are skipped until the scale fits, as they always are."""
    draw, model = points(dice_of(seed)), mlp()
    optimizer, scaler = AdamW(model.parameters(), lr=2e-3), GradScaler("cpu", growth_interval=200)
    for _ in range(900):
        inputs, labels = draw(64)
        with autocast("cpu", torch.float16):
            loss = cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    learnt("accuracy", accuracy(model, draw(500)), least=0.9)


def accumulation(seed: int) -> None:
    """Eight small batches for each step."""
    draw, model = images(dice_of(seed)), cnn()
    optimizer = AdamW(model.parameters(), lr=2e-3)
    for _ in range(300):
        for _ in range(8):
            inputs, labels = draw(8)
            (cross_entropy(model(inputs), labels) / 8).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    learnt("accuracy", accuracy(model, draw(500)), least=0.9)


def weight_averaging(seed: int) -> None:
    """SWA: an ordinary training, then a rate that stays high while weights are averaged."""
    draw, dice = images(dice_of(seed)), dice_of(seed + 1)
    inputs, labels = draw(512)
    model = cnn(norm=nn.BatchNorm2d)
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    average, rates = AveragedModel(model), SWALR(optimizer, swa_lr=0.02, anneal_epochs=2)
    for number, epoch in enumerate(epochs(inputs, labels, 32, 30, dice)):
        for batch, truth in epoch:
            optimizer.zero_grad()
            cross_entropy(model(batch), truth).backward()
            optimizer.step()
        if number >= 15:
            average.update_parameters(model)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # of the order of two calls, which it has itself
                rates.step()
    update_bn(list(inputs.split(64)), average)
    learnt("accuracy", accuracy(average, draw(500)), least=0.85)


def regression(seed: int) -> None:
    draw = surface(dice_of(seed))
    model = mlp(given=16, out=1)
    optimizer = Adam(model.parameters(), lr=2e-3)
    losses = []
    for _ in range(1500):
        inputs, wanted = draw(64)
        loss = mse_loss(model(inputs), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    learnt("the error", sum(losses[-50:]) / 50, most=0.6)


def regression_with_outliers(seed: int) -> None:
    """Heavy-tailed targets, a loss that bears them, raw units in the thousands."""
    dice = dice_of(seed)
    draw, model = surface(dice), mlp(given=16, out=1)
    optimizer = Adam(model.parameters(), lr=2e-3)
    losses = []
    for _ in range(1200):
        inputs, wanted = draw(64)
        wild = torch.rand(wanted.shape, generator=dice) < 0.02
        wanted = torch.where(wild, 5 * torch.randn(wanted.shape, generator=dice), wanted)
        loss = 1000 * huber_loss(model(inputs), wanted)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1000.0)
        optimizer.step()
        losses.append(loss.item())
    learnt("the error", sum(losses[-50:]) / 50, most=600)
