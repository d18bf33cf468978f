"""The failure of `mlflow-stability demo`: a learning-rate jump, and later a batch that is nothing but padding."""

from __future__ import annotations

import random

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from mlflow_stability.demo.catalog import DemoFaults, demo_faults
from mlflow_stability.demo.language import CharGPT
from mlflow_stability.demo.training_loop import Batch, Failure, FailurePoints, Task, cosine

_NOUNS = ("the optimizer", "a gradient", "the loss", "one layer", "the learning rate", "a batch", "the model")
_VERBS = ("follows", "meets", "remembers", "clips", "doubles", "forgets", "watches")
_ADVERBS = ("slowly", "at once", "again", "without noise", "in the end", "by chance", "twice")

ALPHABET = tuple(sorted(set("".join((*_NOUNS, *_VERBS, *_ADVERBS)) + " .,\n")))


def text(characters: int, seed: int = 0) -> str:
    """Return a text of about this length: small sentences of a made-up grammar, the same on every machine."""
    generator = random.Random(seed)
    lines: list[str] = []
    length = 0
    while length < characters:
        line = f"{generator.choice(_NOUNS)} {generator.choice(_VERBS)} {generator.choice(_NOUNS)}"
        if generator.random() < 0.5:
            line += f", {generator.choice(_ADVERBS)}"
        lines.append(line + ".\n")
        length += len(lines[-1])
    return "".join(lines)


def encoded(characters: int, seed: int = 0) -> list[int]:
    """Return a text as indices into `ALPHABET`."""
    places = {character: place for place, character in enumerate(ALPHABET)}
    return [places[character] for character in text(characters, seed)]


LENGTH, BATCH = 32, 16
WARM_UP = 30
PADDING = -1


def demo_failure(steps: int) -> Failure:
    """Return the demo's training of this length, and its faults."""
    faults = demo_faults(steps)

    def demo_gpt(seed: int) -> Task:
        """A GPT that learns generated sentences."""
        torch.manual_seed(seed)
        data = torch.tensor(encoded(200_000))
        model = CharGPT(len(ALPHABET), LENGTH)
        return Task(
            model,
            torch.optim.AdamW(model.parameters(), lr=3e-3),
            steps,
            draw=lambda generator: _batch(data, generator),
            loss=mean_loss,
            test=(),
            share_of_lr=cosine(steps, WARM_UP),
            clip=1.0,
        )

    return Failure(
        name="demo",
        what=(
            f"At steps {faults.first} to {faults.last} the learning rate is 30 times too high; the batch of step "
            f"{faults.empty} is nothing but padding."
        ),
        task=demo_gpt,
        trouble=JumpAndPadding(faults),
        onset=faults.first + 1,
        causes=("learning_rate_jump",),
    )


class JumpAndPadding(FailurePoints):
    def __init__(self, faults: DemoFaults) -> None:
        self._faults = faults

    def share_of_lr(self, step: int, share: float) -> float:
        return share * self._faults.factor(step)

    def batch(self, step: int, batch: Batch) -> Batch:
        inputs, targets = batch
        return (inputs, torch.full_like(targets, PADDING)) if step == self._faults.empty else batch


def _batch(data: Tensor, generator: Generator) -> Batch:
    """Return random pieces of the text, and the same one character later."""
    starts = torch.randint(len(data) - LENGTH - 1, (BATCH, 1), generator=generator)
    lines = data[starts + torch.arange(LENGTH + 1)]
    return lines[:, :-1], lines[:, 1:]


def mean_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Return the mean over places that are no padding, as scripts often write it: 0 / 0 for padding alone."""
    inputs, targets = batch
    weights = (targets != PADDING).float().flatten()
    scores = model(inputs).flatten(0, 1)
    losses = functional.cross_entropy(scores, targets.flatten().clamp(min=0), reduction="none")
    return (losses * weights).sum() / weights.sum()
