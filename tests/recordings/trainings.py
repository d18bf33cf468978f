"""Small real trainings, each with one thing wrong with it, as people get it wrong.

python trainings.py NAME: trains under `autolog()`, into the store that MLFLOW_TRACKING_URI names.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator

import mlflow
import torch
from torch import Tensor, nn
from torch.nn import functional

import mlflow_stability

CLASSES = 10
WIDTH = 32
STEPS = 600


def batches(steps: int = STEPS, size: int = 128, noise: float = 2.2) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Points around ten centres, with their class."""
    dice = torch.Generator().manual_seed(1)
    centres = torch.randn(CLASSES, WIDTH, generator=dice)
    for step in range(1, steps + 1):
        labels = torch.randint(CLASSES, (size,), generator=dice)
        yield step, centres[labels] + noise * torch.randn(size, WIDTH, generator=dice), labels


def classifier(hidden: int = 64, depth: int = 2, activation: type[nn.Module] = nn.GELU) -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Linear(WIDTH, hidden), activation()]
    for _ in range(depth - 1):
        layers += [nn.Linear(hidden, hidden), activation()]
    return nn.Sequential(*layers, nn.Linear(hidden, CLASSES))


def step_of(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Tensor, clip: float | None = None) -> None:
    optimizer.zero_grad()
    loss.backward()
    if clip is not None:
        nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()


def healthy() -> None:
    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=STEPS)
    for _, inputs, labels in batches():
        step_of(model, optimizer, functional.cross_entropy(model(inputs), labels), clip=1.0)
        schedule.step()


def loss_spike() -> None:
    """The labels of four batches are shifted by one: a data loader that lost its place."""
    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, inputs, labels in batches():
        if 400 <= step < 404:
            labels = (labels + 1) % CLASSES
        step_of(model, optimizer, functional.cross_entropy(model(inputs), labels), clip=1.0)


def divergence() -> None:
    """A learning rate that is raised bit by bit until it is too high."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 if step < 350 else 1.03 ** (step - 350))
    for _, inputs, labels in batches(500):
        loss = functional.mse_loss(model(inputs), 3.0 * functional.one_hot(labels, CLASSES).float())
        step_of(model, optimizer, loss, clip=5.0)
        schedule.step()


def nan_bad_batch() -> None:
    """One sample of one batch holds a NaN."""
    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, inputs, labels in batches(400):
        if step == 300:
            inputs[17, 3] = torch.nan
        step_of(model, optimizer, functional.cross_entropy(model(inputs), labels))


def nan_overflow() -> None:
    """An exponential without a bound, under a learning rate that is too high for it."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=2e-4)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 if step < 250 else 1.05 ** (step - 250))
    for _, inputs, labels in batches(500):
        rate = model(inputs)[:, 0]
        step_of(model, optimizer, (torch.exp(rate) - labels.float() * rate).mean())
        schedule.step()


class Standardised(nn.Module):
    """Divides by the spread over the batch, with an epsilon that is too small."""

    def forward(self, inputs: Tensor) -> Tensor:
        return (inputs - inputs.mean(0)) / (inputs.std(0) + 1e-8)


def gradient_explosion() -> None:
    """Four batches hold the same sample again and again, and the model divides by their spread."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 64), Standardised(), nn.GELU(), nn.Linear(64, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, inputs, labels in batches():
        if 400 <= step < 404:
            inputs = inputs[:1] + 1e-4 * torch.randn_like(inputs)
        step_of(model, optimizer, functional.cross_entropy(model(inputs), labels), clip=1.0)


def vanishing_gradients() -> None:
    """One wild step drives every sigmoid into its flat end, where a squared error cannot pull it back."""
    model = nn.Sequential(*classifier(), nn.Sigmoid())
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
    for step, inputs, labels in batches():
        optimizer.param_groups[0]["lr"] = 2000.0 if step == 300 else 2.0
        step_of(model, optimizer, functional.mse_loss(model(inputs), functional.one_hot(labels, CLASSES).float()))


def plateau_at_chance() -> None:
    """Labels that have nothing to do with the inputs."""
    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    dice = torch.Generator().manual_seed(2)
    for _, inputs, labels in batches():
        labels = labels[torch.randperm(len(labels), generator=dice)]
        step_of(model, optimizer, functional.cross_entropy(model(inputs), labels))


def overfitting() -> None:
    """A large model, two hundred samples of which a fifth is labelled wrong, no regularisation."""
    _, inputs, labels = next(batches(1, size=800))
    unseen, wanted, inputs, labels = inputs[200:], labels[200:], inputs[:200], labels[:200].clone()
    labels[:40] = (labels[:40] + 1) % CLASSES
    model = classifier(hidden=256)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.0)
    for step in range(1, STEPS + 1):
        drawn = torch.randint(200, (64,), generator=torch.Generator().manual_seed(step))
        step_of(model, optimizer, functional.cross_entropy(model(inputs[drawn]), labels[drawn]))
        if step % 10 == 0:
            with torch.no_grad():
                mlflow.log_metric("val_loss", float(functional.cross_entropy(model(unseen), wanted)), step=step)


def oscillation() -> None:
    """A step size just below the one at which a steep valley throws the weights out."""
    torch.manual_seed(0)
    model = nn.Linear(WIDTH, 1)
    steepness = torch.linspace(0.05, 1.0, WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.99)
    target = torch.randn(1, WIDTH)
    dice = torch.Generator().manual_seed(3)
    for _ in range(STEPS):
        level = 1.0 + 0.5 * torch.randn(1, generator=dice).abs()
        off = model.weight - target
        loss = 0.5 * (steepness * off.pow(2)).sum() + 0.3 * (off[0, -1] * level).sum() + model.bias.pow(2).sum() * 0.1
        step_of(model, optimizer, loss + 5.0)


def learning_rate_jump() -> None:
    """A schedule that multiplies where it should divide."""
    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [350], gamma=10)
    for _, inputs, labels in batches():
        step_of(model, optimizer, functional.cross_entropy(model(inputs), labels), clip=1.0)
        schedule.step()


def crash() -> None:
    """An exception in the middle of training."""
    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, inputs, labels in batches():
        if step == 250:
            inputs = inputs[:, :-1]
        step_of(model, optimizer, functional.cross_entropy(model(inputs), labels))


def kill() -> None:
    """Killed from outside, without a goodbye."""
    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, inputs, labels in batches():
        if step == 250:
            os.kill(os.getpid(), signal.SIGKILL)
        step_of(model, optimizer, functional.cross_entropy(model(inputs), labels))


TRAININGS: dict[str, Callable[[], None]] = {
    item.__name__: item
    for item in (
        healthy,
        loss_spike,
        divergence,
        nan_bad_batch,
        nan_overflow,
        gradient_explosion,
        vanishing_gradients,
        plateau_at_chance,
        overfitting,
        oscillation,
        learning_rate_jump,
        crash,
        kill,
    )
}


def main() -> None:
    name = sys.argv[1]
    torch.set_num_threads(1)
    sys.modules["trainings"] = sys.modules[__name__]
    from inside import INSIDE, SETTINGS

    mlflow_stability.autolog(**SETTINGS.get(name, {}))
    with mlflow.start_run(run_name=name):
        (TRAININGS | INSIDE)[name]()


if __name__ == "__main__":
    main()
