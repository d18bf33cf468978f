"""A tiny GPT that learns a language of eight letters: two blocks, 64 wide."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Generator, Tensor, nn
from torch.amp import GradScaler
from torch.nn.functional import cross_entropy
from torch.optim import AdamW, Optimizer

from mlflow_stability.demo.char_gpt import CharGPT
from mlflow_stability.demo.tasks.schedules import cosine
from mlflow_stability.demo.tasks.task import Batch, Task

LETTERS, LENGTH, BATCH = 8, 32, 16
STEPS = 440
LEARNING_RATE = 5e-3


@cache
def written(seed: int, texts: int = 256, length: int = 512) -> Tensor:
    """Texts in which every letter depends on the two before it, and on chance."""
    grammar = (2.0 * torch.randn(LETTERS, LETTERS, LETTERS, generator=Generator().manual_seed(5))).softmax(-1)
    generator = Generator().manual_seed(seed)
    letters = list(torch.randint(LETTERS, (2, texts), generator=generator))
    while len(letters) < length:
        letters.append(torch.multinomial(grammar[letters[-2], letters[-1]], 1, generator=generator)[:, 0])
    return torch.stack(letters, dim=1)


def lines(texts: Tensor, generator: Generator, count: int) -> Batch:
    """Some places in the texts, and the same one letter later."""
    which = torch.randint(len(texts), (count, 1), generator=generator)
    starts = torch.randint(texts.shape[1] - LENGTH, (count, 1), generator=generator)
    rows = texts[which, starts + torch.arange(LENGTH + 1)]
    return rows[:, :-1], rows[:, 1:]


def next_letter(model: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy of the letter that follows."""
    given, following = batch
    return cross_entropy(model(given).flatten(0, 1), following.flatten())


def tiny_gpt() -> CharGPT:
    """A model for it."""
    return CharGPT(LETTERS, LENGTH, width=64)


def attention_apart(model: nn.Module) -> Optimizer:
    """AdamW, with queries, keys and values in a group of their own, which is the first."""
    named = dict(model.named_parameters())
    attention = [each for name, each in named.items() if "qkv" in name]
    others = [each for name, each in named.items() if "qkv" not in name]
    return AdamW([{"params": attention}, {"params": others}], lr=LEARNING_RATE)


def language_task(
    seed: int,
    model: Callable[[], nn.Module] = tiny_gpt,
    optimizer: Callable[[nn.Module], Optimizer] = attention_apart,
    share_of_lr: Callable[[int], float] | None = None,
    clip: float | None = None,
    scaler: GradScaler | None = None,
    steps: int = STEPS,
) -> Task:
    """A model learning the language, made of these parts."""
    torch.manual_seed(seed)
    made = model()
    texts, unseen, test_generator = written(0), written(1), Generator().manual_seed(0)
    return Task(
        made,
        optimizer(made),
        steps,
        draw=lambda generator: lines(texts, generator, BATCH),
        loss=next_letter,
        test=tuple(lines(unseen, test_generator, 64) for _ in range(2)),
        share_of_lr=share_of_lr,
        clip=clip,
        scaler=scaler,
    )


def scheduled_gpt(seed: int) -> Task:
    """With warm-up, a cosine and clipping, as GPTs are trained."""
    return language_task(seed, share_of_lr=cosine(STEPS), clip=1.0)


def plain_gpt(seed: int) -> Task:
    """With one learning rate from the first step to the last, and no clipping."""
    return language_task(seed)
