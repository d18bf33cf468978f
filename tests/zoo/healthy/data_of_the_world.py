"""Data as they are: mislabelled, unbalanced, made harder on the way, of several tasks at once."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR
from zoo.healthy.data import accuracy, classify, cnn, dice_of, epochs, images, learnt, mlp, points


def label_noise(seed: int) -> None:
    """Three labels of ten are wrong, and the loss ends far above zero."""
    dice = dice_of(seed)
    draw, model = points(dice), mlp()

    def mislabelled(count: int) -> tuple[Tensor, Tensor]:
        inputs, labels = draw(count)
        wrong = torch.rand(count, generator=dice) < 0.3
        return inputs, torch.where(wrong, torch.randint(10, (count,), generator=dice), labels)

    classify(model, AdamW(model.parameters(), lr=1e-3), mislabelled, 1200)
    learnt("accuracy", accuracy(model, draw(500)), least=0.9)


def curriculum(seed: int) -> None:
    """Pictures get noisier as the training goes on, so that the loss rises a little while more is learnt."""
    dice, model = dice_of(seed), cnn()
    optimizer = AdamW(model.parameters(), lr=2e-3)
    draw = images(dice, 0.0)
    for step in range(900):
        inputs, labels = draw(32)
        inputs = inputs + (0.8 + 0.8 * min(1.0, step / 600)) * torch.randn(inputs.shape, generator=dice)
        optimizer.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    learnt("accuracy", accuracy(model, images(dice, 1.0)(500)), least=0.9)


def class_imbalance(seed: int) -> None:
    """One row in fifty is of the class that is looked for, and weighs more."""
    dice = dice_of(seed)
    draw, model = points(dice), mlp(out=1)
    optimizer = Adam(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(1500):
        inputs, labels = draw(128)
        rare = (labels == 0) & (torch.rand(128, generator=dice) < 0.2)
        kept = rare | (labels != 0)
        loss = binary_cross_entropy_with_logits(
            model(inputs[kept])[:, 0], rare[kept].float(), pos_weight=torch.tensor(10.0)
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    learnt("the loss", sum(losses[-50:]) / 50, most=0.2)


def several_tasks(seed: int) -> None:
    """One body, a head that classifies, one that tells a number, and one that is asked in one batch of four."""
    dice = dice_of(seed)
    draw = points(dice)
    body, kinds, number, rare = mlp(out=32), nn.Linear(32, 10), nn.Linear(32, 1), nn.Linear(32, 2)
    model = nn.ModuleList([body, kinds, number, rare])
    optimizer = AdamW(model.parameters(), lr=1e-3)
    for step in range(1200):
        inputs, labels = draw(64)
        codes = torch.relu(body(inputs))
        loss = cross_entropy(kinds(codes), labels) + mse_loss(number(codes)[:, 0], inputs[:, :4].sum(1) / 4)
        if step % 4 == 0:
            loss = loss + 0.3 * cross_entropy(rare(codes), labels % 2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    learnt("the loss", loss.item(), most=1.0)


def mixed_up_pictures(seed: int) -> None:
    """Mixup and label smoothing: the loss has a floor well above zero, and every batch is new."""
    dice = dice_of(seed)
    draw, model = images(dice), cnn(norm=nn.BatchNorm2d)
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    schedule = CosineAnnealingLR(optimizer, 500)
    for _ in range(500):
        inputs, labels = draw(32)
        share, order = float(torch.rand((), generator=dice)), torch.randperm(32, generator=dice)
        scores = model(share * inputs + (1 - share) * inputs[order])
        loss = share * cross_entropy(scores, labels, label_smoothing=0.1)
        loss = loss + (1 - share) * cross_entropy(scores, labels[order], label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    learnt("accuracy", accuracy(model, draw(500)), least=0.9)


def group_norm_and_dropout(seed: int) -> None:
    draw = images(dice_of(seed))
    model = cnn(norm=lambda width: nn.GroupNorm(4, width))
    model.insert(len(model) - 1, nn.Dropout(0.4))
    learnt("accuracy", classify(model, AdamW(model.parameters(), lr=2e-3), draw, 500, batch=32), least=0.9)


def few_rows_in_many_epochs(seed: int) -> None:
    """A small table, weight decay and dropout, hundreds of epochs; the last loss is far from zero."""
    dice = dice_of(seed)
    draw = points(dice, 2.0)
    inputs, labels = draw(320)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 10))
    optimizer = AdamW(model.parameters(), lr=2e-3, weight_decay=0.1)
    for epoch in epochs(inputs, labels, 32, 120, dice):
        for batch, truth in epoch:
            optimizer.zero_grad()
            cross_entropy(model(batch), truth).backward()
            optimizer.step()
    learnt("accuracy", accuracy(model, draw(500)), least=0.5)
