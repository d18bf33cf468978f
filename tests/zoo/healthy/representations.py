"""Trainings without labels, or with another network's answers for labels."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div, log_softmax, logsigmoid, normalize, softmax, triplet_margin_loss
from torch.optim import SGD, Adam, AdamW, SparseAdam
from zoo.healthy.data import accuracy, classify, cnn, dice_of, images, learnt, mlp, points, pretrained

from mlflow_stability.demo.training_loop import cosine


def contrastive(seed: int) -> None:
    """Two views of each picture against all others of the batch, with a temperature that is learnt."""
    dice = dice_of(seed)
    draw, encoder = images(dice, noise=0.3), cnn(out=16)
    heat = nn.Parameter(torch.tensor(2.0))
    optimizer = AdamW([*encoder.parameters(), heat], lr=1e-3)
    losses = []
    for _ in range(500):
        inputs, _ = draw(48)
        first, other = (
            normalize(encoder(inputs + 0.3 * torch.randn(inputs.shape, generator=dice)), dim=1) for _ in "ab"
        )
        scores, same = heat.exp().clamp(max=100) * first @ other.T, torch.arange(48)
        loss = (cross_entropy(scores, same) + cross_entropy(scores.T, same)) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    learnt("the loss", sum(losses[-20:]) / 20, most=2.5)


def triplets(seed: int) -> None:
    """A margin that is kept by ever more triplets: the loss is often exactly zero in the end."""
    draw, encoder = points(dice_of(seed), noise=0.6), mlp(out=8)
    optimizer = Adam(encoder.parameters(), lr=1e-3)
    losses = []
    for _ in range(900):
        inputs, labels = draw(64)
        codes = normalize(encoder(inputs), dim=1)
        order = labels.argsort()
        anchor, positive = order[:-1], order[1:]
        negative = order.roll(20)[:-1]
        kept = (labels[anchor] == labels[positive]) & (labels[anchor] != labels[negative])
        loss = triplet_margin_loss(codes[anchor[kept]], codes[positive[kept]], codes[negative[kept]], margin=0.3)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    learnt("the loss", sum(losses[-50:]) / 50, most=0.05)


def teacher_of_averages(seed: int) -> None:
    """BYOL: a student predicts what the average of its own weights says of another view."""
    dice = dice_of(seed)
    draw, student = points(dice), mlp(out=16)
    teacher, predictor = deepcopy(student).requires_grad_(requires_grad=False), mlp(32, 1, 16, 16)
    optimizer = AdamW([*student.parameters(), *predictor.parameters()], lr=1e-3)
    losses = []
    for _ in range(1000):
        inputs, _ = draw(64)
        first, other = (inputs + 0.3 * torch.randn(inputs.shape, generator=dice) for _ in "ab")
        with torch.no_grad():
            wanted = normalize(teacher(other), dim=1)
        loss = (2 - 2 * (normalize(predictor(student(first)), dim=1) * wanted).sum(1)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        with torch.no_grad():
            for mean, item in zip(teacher.parameters(), student.parameters(), strict=True):
                mean.lerp_(item, 0.01)
    learnt("the loss", sum(losses[-50:]) / 50, most=0.3)


def mean_teacher(seed: int) -> None:
    """Few labels, and an averaged teacher whose word counts ever more."""
    dice = dice_of(seed)
    draw, student = points(dice), mlp()
    teacher = deepcopy(student).requires_grad_(requires_grad=False)
    drawn = draw(200)
    optimizer = SGD(student.parameters(), lr=0.05, momentum=0.9)
    for step in range(900):
        rows = torch.randint(200, (32,), generator=dice)
        inputs, _ = draw(64)
        with torch.no_grad():
            wanted = softmax(teacher(inputs), 1)
        agree = (softmax(student(inputs + 0.2 * torch.randn(inputs.shape, generator=dice)), 1) - wanted).square().mean()
        loss = cross_entropy(student(drawn[0][rows]), drawn[1][rows]) + 10 * min(1.0, step / 300) * agree
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for mean, item in zip(teacher.parameters(), student.parameters(), strict=True):
                mean.lerp_(item, 0.02)
    learnt("accuracy", accuracy(teacher, draw(500)), least=0.9)


def distillation(seed: int) -> None:
    """A small network learns the softened answers of a large one."""
    draw, student = points(dice_of(seed)), mlp(24, 1)
    teacher = pretrained(mlp(128, 3), draw)
    teacher.requires_grad_(requires_grad=False)
    optimizer = Adam(student.parameters(), lr=2e-3)
    for _ in range(900):
        inputs, labels = draw(64)
        scores = student(inputs)
        soft = kl_div(log_softmax(scores / 4, 1), softmax(teacher(inputs) / 4, 1), reduction="batchmean") * 16
        optimizer.zero_grad()
        (0.9 * soft + 0.1 * cross_entropy(scores, labels)).backward()
        optimizer.step()
    learnt("accuracy", accuracy(student, draw(500)), least=0.9)


class LowRank(nn.Module):
    """A frozen layer and what is learnt beside it."""

    def __init__(self, inner: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.inner = inner.requires_grad_(requires_grad=False)
        self.down = nn.Linear(inner.in_features, rank, bias=False)
        self.up = nn.Linear(rank, inner.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + 2.0 * self.up(self.down(x))


def low_rank_adapters(seed: int) -> None:
    """A network that knows a task is adapted to a related one."""
    draw = points(dice_of(seed))
    model = pretrained(mlp(64, 3), draw)
    for at, module in enumerate(model):
        if isinstance(module, nn.Linear):
            model[at] = LowRank(module)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    schedule = cosine(800, 40)
    optimizer = AdamW(trained, lr=3e-3)
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: schedule(step + 1))

    def renamed(count: int) -> tuple[Tensor, Tensor]:
        inputs, labels = draw(count)
        return inputs, (labels + 3) % 10

    learnt("accuracy", classify(model, optimizer, renamed, 800, schedule=rates, clip=1.0), least=0.9)


def words(seed: int) -> None:
    """word2vec with negative samples: sparse gradients of two tables."""
    dice = dice_of(seed)
    centre, around = nn.Embedding(400, 16, sparse=True), nn.Embedding(400, 16, sparse=True)
    optimizer = SparseAdam([*centre.parameters(), *around.parameters()], lr=5e-3)
    losses = []
    for _ in range(1200):
        word = torch.randint(400, (128,), generator=dice)
        near = (word + torch.randint(1, 4, (128,), generator=dice)) % 400
        other = torch.randint(400, (128, 5), generator=dice)
        given = centre(word)
        good = logsigmoid((given * around(near)).sum(1))
        bad = logsigmoid(-(around(other) @ given[:, :, None])[:, :, 0]).sum(1)
        loss = -(good + bad).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    learnt("the loss", sum(losses[-50:]) / 50, most=2.6)


def recommender(seed: int) -> None:
    """Users and items, of which each batch touches a few."""
    dice = dice_of(seed)
    taste = torch.randn(300, 4, generator=torch.Generator().manual_seed(9))
    users, items, bias = nn.Embedding(300, 12), nn.Embedding(300, 12), nn.Embedding(300, 1)
    model = nn.ModuleList([users, items, bias])
    optimizer = AdamW(model.parameters(), lr=3e-2, weight_decay=1e-3)
    losses = []
    for _ in range(1500):
        user, item = torch.randint(300, (2, 128), generator=dice)
        truth = (taste[user] * taste[(item * 7) % 300]).sum(1) / 2 + 0.3 * torch.randn(128, generator=dice)
        result = (users(user) * items(item)).sum(1) + bias(item)[:, 0]
        loss = (result - truth).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    learnt("the error", sum(losses[-50:]) / 50, most=0.6)
