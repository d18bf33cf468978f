"""Trainings that break slowly, or quietly: nothing jumps, and in the end less is learnt than should have been.

Each is a function of a seed, as those of the healthy zoo are, and does one thing wrong; beside it are the findings of
which one at least is expected.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Adam, AdamW, Optimizer
from zoo.healthy.data import Draw, dice_of, images, mlp, points

from mlflow_stability.demo.language import lines, next_letter, random_texts, tiny_gpt

STEPS, ONSET = 1500, 500


@dataclass(frozen=True, slots=True)
class SlowFailure:
    """One training, and what is to be found in it."""

    train: Callable[[int], None]
    expected: tuple[str, ...]
    """The kinds of which at least one must be found, live or afterwards."""

    @property
    def name(self) -> str:
        return self.train.__name__


def descend(
    model: nn.Module,
    optimizer: Optimizer,
    draw: Draw,
    steps: int = STEPS,
    batch: int = 64,
    before: Callable[[int], None] = lambda step: None,
    spoiled: Callable[[int, Tensor], Tensor] = lambda step, labels: labels,
    clip: float | None = None,
) -> None:
    for step in range(1, steps + 1):
        before(step)
        inputs, labels = draw(batch)
        optimizer.zero_grad()
        cross_entropy(model(inputs), spoiled(step, labels)).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()


def growing(optimizer: Optimizer, factor: float) -> Callable[[int], None]:
    """The learning rate grows by this factor in every step from the onset on."""

    def before(step: int) -> None:
        if step > ONSET:
            for group in optimizer.param_groups:
                group["lr"] *= factor

    return before


def rate_creeps_up(seed: int) -> None:
    """A schedule with its sign wrong: the learning rate grows by half a percent in every step."""
    model = mlp(layers=3)
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    descend(model, optimizer, points(dice_of(seed), 1.5), before=growing(optimizer, 1.005))


def rate_creeps_up_under_adam(seed: int) -> None:
    """The same with a GPT under AdamW."""
    texts, dice, model = random_texts(0), dice_of(seed), tiny_gpt()
    optimizer = AdamW(model.parameters(), lr=2e-3)
    before = growing(optimizer, 1.02)
    for step in range(1, 301):
        before(step + ONSET - 80)
        optimizer.zero_grad()
        next_letter(model, lines(texts, dice, 8)).backward()
        optimizer.step()


def decay_too_weak(seed: int) -> None:
    """Half the labels wrong, a high rate and next to no weight decay: as the weights grow, what was learnt is lost."""
    dice = dice_of(seed)
    model = mlp(256, 3)

    def wrong(step: int, labels: Tensor) -> Tensor:
        return torch.where(torch.rand(labels.shape, generator=dice) < 0.5, torch.randint_like(labels, 10), labels)

    optimizer = AdamW(model.parameters(), lr=5e-2, weight_decay=1e-6)
    descend(model, optimizer, points(dice), batch=16, spoiled=wrong)


def deep_with_batch_norm(width: int = 64, layers: int = 8) -> nn.Sequential:
    hidden = [item for _ in range(layers) for item in (nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU())]
    return nn.Sequential(nn.Linear(32, width), *hidden, nn.Linear(width, 10))


def evaluation_mode(seed: int) -> None:
    """`model.eval()` before a validation, and never `model.train()` after it."""
    model = deep_with_batch_norm().eval()
    descend(model, SGD(model.parameters(), lr=0.1, momentum=0.9), points(dice_of(seed)))


def evaluation_mode_later(seed: int) -> None:
    """The same after the first validation, when the norms have seen a little."""
    model = deep_with_batch_norm()

    def before(step: int) -> None:
        if step == ONSET:
            model.eval()

    descend(model, SGD(model.parameters(), lr=0.1, momentum=0.9), points(dice_of(seed)), before=before)


def batches_of_two(seed: int) -> None:
    """Batch norm over batches of two rows."""
    model = deep_with_batch_norm(layers=3)
    descend(model, Adam(model.parameters(), lr=1e-3), points(dice_of(seed)), batch=2)


def labels_shuffled(seed: int) -> None:
    """From a step on, labels no longer belong to their inputs."""
    dice = dice_of(seed)
    model = mlp()

    def shuffled(step: int, labels: Tensor) -> Tensor:
        return labels[torch.randperm(len(labels), generator=dice)] if step >= ONSET else labels

    descend(model, AdamW(model.parameters(), lr=1e-3), points(dice), spoiled=shuffled)


def labels_never_belonged(seed: int) -> None:
    """The same from the first step on."""
    dice = dice_of(seed)
    model = mlp()
    shuffled = lambda step, labels: labels[torch.randperm(len(labels), generator=dice)]  # noqa: E731
    descend(model, AdamW(model.parameters(), lr=1e-3), points(dice), spoiled=shuffled)


class Detached(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.detach()


def frozen_layer(seed: int) -> None:
    """A `detach()` in the middle: what lies before it keeps its random weights."""
    model = mlp(64, 4)
    model.insert(4, Detached())
    descend(model, AdamW(model.parameters(), lr=1e-3), points(dice_of(seed)))


def forgotten_layer(seed: int) -> None:
    """A layer that was never handed to the optimizer."""
    model = mlp(64, 4)
    given = [item for name, item in model.named_parameters() if not name.startswith("2.")]
    descend(model, AdamW(given, lr=1e-3), points(dice_of(seed)))


def death_of_rectifiers(seed: int, jump: float = 30.0) -> None:
    """The rate of SGD is far too high from a step on, gradients are clipped: units die, and nothing is learnt again."""
    model = mlp(layers=4)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)

    def before(step: int) -> None:
        if step == ONSET:
            for group in optimizer.param_groups:
                group["lr"] *= jump

    descend(model, optimizer, points(dice_of(seed)), before=before, clip=1.0)


def death_in_convolutions(seed: int) -> None:
    """The same in a network of convolutions, from the beginning."""
    model = nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(144, 32), nn.ReLU(), nn.Linear(32, 10)),
    )
    descend(model, SGD(model.parameters(), lr=0.5, momentum=0.9), images(dice_of(seed)), 600)


SLOW_FAILURES: tuple[SlowFailure, ...] = (
    SlowFailure(rate_creeps_up, ("divergence", "loss_spike", "gradient_explosion")),
    SlowFailure(rate_creeps_up_under_adam, ("divergence",)),
    SlowFailure(decay_too_weak, ("divergence", "plateau")),
    SlowFailure(evaluation_mode, ("evaluation_mode",)),
    SlowFailure(evaluation_mode_later, ("evaluation_mode",)),
    SlowFailure(batches_of_two, ("model_lint",)),
    SlowFailure(labels_shuffled, ("divergence",)),
    SlowFailure(labels_never_belonged, ("plateau",)),
    SlowFailure(frozen_layer, ("dead_layer",)),
    SlowFailure(forgotten_layer, ("model_lint",)),
    SlowFailure(death_of_rectifiers, ("dead_layer", "gradient_vanishing")),
    SlowFailure(death_in_convolutions, ("dead_layer", "gradient_vanishing", "plateau")),
)
