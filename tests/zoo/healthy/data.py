"""Small tasks that networks learn from in seconds, and what says that a training has really learnt its task.

All chance comes from the generator that is handed in; what is to be learnt is the same for every seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy, interpolate

CLASSES = 10
WORLD = 3
Batch = tuple[Tensor, Tensor]
Draw = Callable[[int], Batch]


class NotLearntError(AssertionError):
    """A training that should be healthy has not learnt what it was to learn: the training is wrong, not a judgement."""


def learnt(what: str, value: float, *, least: float = float("-inf"), most: float = float("inf")) -> None:
    """The end of each training: it has reached what a healthy one reaches."""
    if not least <= value <= most:
        raise NotLearntError(f"{what} is {value:.4g}, not within {least:g} to {most:g}")


REWARDS: list[float] = []
"""What the agent of this training has earned, as its script would log it beside the loss."""


def earns(reward: float) -> float:
    REWARDS.append(reward)
    return reward


def dice_of(seed: int) -> Generator:
    return Generator().manual_seed(seed + 100)


def images(dice: Generator, noise: float = 1.0, size: int = 12, channels: int = 1) -> Draw:
    """Ten smooth pictures, shifted a little and in noise, with their number."""
    world = Generator().manual_seed(WORLD)
    patterns = interpolate(torch.randn(CLASSES, channels, 4, 4, generator=world), size, mode="bilinear") * 2

    def draw(count: int) -> Batch:
        labels = torch.randint(CLASSES, (count,), generator=dice)
        across, down = torch.randint(-1, 2, (2,), generator=dice).tolist()
        given = patterns[labels].roll((across, down), (2, 3))
        return given + noise * torch.randn(given.shape, generator=dice), labels

    return draw


def points(dice: Generator, noise: float = 1.2, width: int = 32) -> Draw:
    """Points around ten centres, with the number of their centre."""
    centres = torch.randn(CLASSES, width, generator=Generator().manual_seed(WORLD))

    def draw(count: int) -> Batch:
        labels = torch.randint(CLASSES, (count,), generator=dice)
        return centres[labels] + noise * torch.randn(count, width, generator=dice), labels

    return draw


def surface(dice: Generator, noise: float = 0.3) -> Draw:
    """A number that depends smoothly on sixteen others."""
    world = Generator().manual_seed(WORLD)
    inner, outer = torch.randn(16, 8, generator=world) / 4, torch.randn(8, 1, generator=world)

    def draw(count: int) -> Batch:
        inputs = torch.randn(count, 16, generator=dice)
        return inputs, 3 * torch.tanh(inputs @ inner) @ outer + noise * torch.randn(count, 1, generator=dice)

    return draw


def epochs(inputs: Tensor, labels: Tensor, batch: int, count: int, dice: Generator) -> Iterator[Iterator[Batch]]:
    """A data set that is gone through again and again, shuffled, as a loader does."""

    def epoch() -> Iterator[Batch]:
        for rows in torch.randperm(len(inputs), generator=dice).split(batch):
            if len(rows) == batch:
                yield inputs[rows], labels[rows]

    for _ in range(count):
        yield epoch()


def mlp(width: int = 64, layers: int = 2, given: int = 32, out: int = CLASSES) -> nn.Sequential:
    hidden = [part for _ in range(layers - 1) for part in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(nn.Linear(given, width), nn.ReLU(), *hidden, nn.Linear(width, out))


def cnn(
    channels: int = 1, out: int = CLASSES, norm: Callable[[int], nn.Module] = lambda width: nn.Identity()
) -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(channels, 8, 3, padding=1), norm(8), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 16, 3, padding=1), norm(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(16 * 9, 32), nn.ReLU(), nn.Linear(32, out)),
    )


@torch.no_grad()
def accuracy(model: nn.Module, batch: Batch) -> float:
    model.eval()
    right = (model(batch[0]).argmax(-1) == batch[1]).float().mean().item()
    model.train()
    return right


def pretrained(model: nn.Module, draw: Draw, steps: int = 400, rate: float = 0.1) -> nn.Module:
    """The model with weights that know the task, as from a file: no optimizer takes part, so that no hook sees it."""
    weights = list(model.parameters())
    for _ in range(steps):
        inputs, labels = draw(64)
        slopes = torch.autograd.grad(cross_entropy(model(inputs), labels), weights)
        with torch.no_grad():
            for weight, slope in zip(weights, slopes, strict=True):
                weight -= rate * slope
    learnt("accuracy before", accuracy(model, draw(500)), least=0.9)
    return model


def classify(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    draw: Draw,
    steps: int,
    batch: int = 64,
    schedule: torch.optim.lr_scheduler.LRScheduler | None = None,
    clip: float | None = None,
) -> float:
    """The loop that everybody writes; the accuracy on fresh data in the end."""
    for _ in range(steps):
        inputs, labels = draw(batch)
        optimizer.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        if schedule is not None:
            schedule.step()
    return accuracy(model, draw(500))
