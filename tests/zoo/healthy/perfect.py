"""Trainings that learn all there is to learn: every answer right, next to nothing of the loss left."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import cross_entropy, multi_margin_loss
from torch.optim import SGD, Adam, AdamW
from zoo.healthy.data import accuracy, classify, cnn, dice_of, epochs, images, learnt, mlp, points


def perfect_mlp(seed: int) -> None:
    """To a loss of exactly zero, and on."""
    model, draw = mlp(), points(dice_of(seed), noise=0.1)
    learnt("accuracy", classify(model, SGD(model.parameters(), lr=0.1, momentum=0.9), draw, 1200), least=1.0)


def perfect_mlp_by_adam(seed: int) -> None:
    model, draw = mlp(layers=3), points(dice_of(seed), noise=0.2)
    learnt("accuracy", classify(model, Adam(model.parameters(), lr=3e-3), draw, 1500), least=1.0)


def perfect_cnn(seed: int) -> None:
    """Rectifiers and pooling, by Adam, with a rate on the high side."""
    model, draw = cnn(), images(dice_of(seed), noise=0.5)
    learnt("accuracy", classify(model, Adam(model.parameters(), lr=1e-2), draw, 1000), least=0.99)


def perfect_cnn_in_epochs(seed: int) -> None:
    """The same pictures again and again, validated after each epoch, until they are all memorised."""
    draw, dice = images(dice_of(seed), noise=0.5), dice_of(seed + 1)
    inputs, labels = draw(512)
    unseen = draw(256)
    model = cnn()
    optimizer = SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    for epoch in epochs(inputs, labels, 32, 40, dice):
        for batch, truth in epoch:
            optimizer.zero_grad()
            cross_entropy(model(batch), truth).backward()
            optimizer.step()
        accuracy(model, unseen)
    learnt("accuracy", accuracy(model, (inputs, labels)), least=1.0)


def perfect_cnn_with_batch_norm(seed: int) -> None:
    model, draw = cnn(norm=nn.BatchNorm2d), images(dice_of(seed), noise=0.3)
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)  # at 0.1 one seed in three diverges
    learnt("accuracy", classify(model, optimizer, draw, 800), least=0.99)


def easy_cnn(seed: int) -> None:
    """A tenth of a second of work: the loss is near zero after fifty steps, with a hard picture now and then."""
    model, draw = cnn(), images(dice_of(seed), noise=1.0)
    learnt("accuracy", classify(model, Adam(model.parameters(), lr=3e-3), draw, 1200, batch=16), least=0.95)


def one_batch_on_purpose(seed: int) -> None:
    """The first test of every new model: one batch, until its loss is zero."""
    model = mlp()
    inputs, labels = points(dice_of(seed))(64)
    learnt("accuracy", classify(model, Adam(model.parameters(), lr=1e-2), lambda _: (inputs, labels), 1200), least=1.0)


def noise_by_heart(seed: int) -> None:
    """Random labels, memorised by a network that is large enough."""
    dice = dice_of(seed)
    inputs, labels = torch.randn(256, 32, generator=dice), torch.randint(10, (256,), generator=dice)
    model = mlp(width=256, layers=3)
    optimizer = AdamW(model.parameters(), lr=1e-3)
    for epoch in epochs(inputs, labels, 32, 80, dice):
        for batch, truth in epoch:
            optimizer.zero_grad()
            cross_entropy(model(batch), truth).backward()
            optimizer.step()
    learnt("accuracy", accuracy(model, (inputs, labels)), least=1.0)


def hinge_to_zero(seed: int) -> None:
    """A loss that is exactly zero as soon as all margins are kept, and its gradient with it."""
    model, draw = mlp(), points(dice_of(seed), noise=0.5)
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(1200):
        inputs, labels = draw(64)
        optimizer.zero_grad()
        multi_margin_loss(model(inputs), labels).backward()
        optimizer.step()
    learnt("accuracy", accuracy(model, draw(500)), least=0.99)
