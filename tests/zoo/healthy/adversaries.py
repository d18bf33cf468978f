"""Networks that are trained against each other, or against what is made to fool them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, relu
from torch.optim import Adam
from zoo.healthy.data import accuracy, cnn, dice_of, images, learnt

MODES, NOISE = 8, 16


def ring(count: int, dice: Generator) -> Tensor:
    """Points of eight Gaussians in a ring."""
    angle = torch.randint(MODES, (count,), generator=dice) * (2 * torch.pi / MODES)
    return 2 * torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(count, 2, generator=dice)


def network(
    given: int, out: int, slope: float, wrap: Callable[[nn.Linear], nn.Module] = lambda item: item
) -> nn.Module:
    first, second = nn.LeakyReLU(slope), nn.LeakyReLU(slope)
    layers = (wrap(nn.Linear(given, 64)), first, wrap(nn.Linear(64, 64)), second, wrap(nn.Linear(64, out)))
    return nn.Sequential(*layers)


def off_the_ring(generator: nn.Module, dice: Generator) -> float:
    """The share of what it makes that lies nowhere near a mode."""
    with torch.no_grad():
        made = generator(torch.randn(1000, NOISE, generator=dice))
    return ((made.norm(dim=1) - 2).abs() > 0.6).float().mean().item()


def step_of(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def play(
    seed: int,
    of_judge: Callable[[Tensor, Tensor], Tensor],
    of_generator: Callable[[Tensor], Tensor],
    judge: nn.Module,
    rates: tuple[float, float],
    penalty: Callable[[nn.Module, Tensor, Tensor, Generator], Tensor] | None = None,
    rounds: int = 1200,
    judged_first: int = 1,
    blur: float = 0.3,
    betas: tuple[float, float] = (0.5, 0.999),
) -> None:
    """A GAN's loop, with the losses of its kind."""
    dice, generator = dice_of(seed), network(NOISE, 2, 0.0)
    makes, tells = Adam(generator.parameters(), rates[0], betas), Adam(judge.parameters(), rates[1], betas)

    def seen(given: Tensor) -> Tensor:
        return judge(given + blur * torch.randn(given.shape, generator=dice))

    for _ in range(rounds):
        for _ in range(judged_first):
            real, made = ring(128, dice), generator(torch.randn(128, NOISE, generator=dice)).detach()
            loss = of_judge(seen(real), seen(made))
            step_of(tells, loss if penalty is None else loss + penalty(judge, real, made, dice))
        step_of(makes, of_generator(seen(generator(torch.randn(128, NOISE, generator=dice)))))
    learnt("the share off the ring", off_the_ring(generator, dice), most=0.35)


def says(scores: Tensor, real: float) -> Tensor:
    return binary_cross_entropy_with_logits(scores, torch.full_like(scores, real))


def gan_non_saturating(seed: int) -> None:
    play(
        seed,
        lambda real, made: says(real, 1) + says(made, 0),
        lambda made: says(made, 1),
        network(2, 1, 0.2),
        (1e-3, 1e-3),
    )


def gan_stable(seed: int) -> None:
    """With smoothed labels, and a judge that learns more slowly."""
    play(
        seed,
        lambda real, made: (says(real, 0.9) + says(made, 0)) / 2,
        lambda made: says(made, 1),
        network(2, 1, 0.2),
        (1e-3, 1e-3),
        rounds=1500,
    )


def gan_wasserstein(seed: int) -> None:
    """With a gradient penalty and five steps of the critic for one of the generator; losses of either sign."""

    def penalty(critic: nn.Module, real: Tensor, made: Tensor, dice: Generator) -> Tensor:
        share = torch.rand(len(real), 1, generator=dice)
        between = (share * real + (1 - share) * made).requires_grad_()
        (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
        return 1.0 * ((slope.norm(dim=1) - 1) ** 2).mean()

    play(
        seed,
        lambda real, made: made.mean() - real.mean(),
        lambda made: -made.mean(),
        network(2, 1, 0.2),
        (1e-3, 1e-3),
        penalty,
        rounds=500,
        judged_first=5,
        blur=0.0,
        betas=(0.0, 0.9),
    )


def gan_hinge(seed: int) -> None:
    play(
        seed,
        lambda real, made: relu(1 - real).mean() + relu(1 + made).mean(),
        lambda made: -made.mean(),
        network(2, 1, 0.2),
        (1e-3, 1e-3),
        rounds=1500,
    )


def gan_least_squares_on_images(seed: int) -> None:
    """Convolutions with batch norm in both halves."""
    dice = dice_of(seed)
    draw = images(dice, noise=0.1)
    generator = nn.Sequential(
        nn.Linear(NOISE, 16 * 9), nn.Unflatten(1, (16, 3, 3)), nn.BatchNorm2d(16), nn.ReLU(),
        nn.ConvTranspose2d(16, 8, 4, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.ConvTranspose2d(8, 1, 4, 2, 1),
    )  # fmt: skip
    judge = nn.Sequential(
        nn.Conv2d(1, 8, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(8, 16, 4, 2, 1), nn.BatchNorm2d(16), nn.LeakyReLU(0.2),
        nn.Flatten(), nn.Linear(16 * 9, 1),
    )  # fmt: skip
    makes, tells = (Adam(item.parameters(), 5e-4, (0.5, 0.999)) for item in (generator, judge))
    for _ in range(500):
        real, _ = draw(32)
        made = generator(torch.randn(32, NOISE, generator=dice))
        step_of(tells, ((judge(real) - 1) ** 2).mean() / 2 + (judge(made.detach()) ** 2).mean() / 2)
        step_of(makes, ((judge(made) - 1) ** 2).mean() / 2)
    with torch.no_grad():
        spread = generator(torch.randn(200, NOISE, generator=dice)).std().item()
    learnt("the spread of the pictures", spread, least=0.5, most=3.0)


def batches_with_attacks(
    draw: Callable[[int], tuple[Tensor, Tensor]], model: nn.Module, count: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Each batch is moved against the model before the model sees it."""
    for _ in range(count):
        inputs, labels = draw(32)
        moved = inputs.clone().requires_grad_()
        (slope,) = torch.autograd.grad(cross_entropy(model(moved), labels), moved)
        yield inputs + 0.2 * slope.sign(), labels


def adversarial_training(seed: int) -> None:
    draw, model = images(dice_of(seed), noise=0.5), cnn()
    optimizer = Adam(model.parameters(), lr=2e-3)
    for inputs, labels in batches_with_attacks(draw, model, 600):
        step_of(optimizer, cross_entropy(model(inputs), labels))
    learnt("accuracy", accuracy(model, draw(500)), least=0.9)
