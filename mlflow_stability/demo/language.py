"""A tiny GPT, and a language of eight letters that it learns."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Generator, Tensor, nn
from torch.amp import GradScaler
from torch.nn import functional
from torch.nn.functional import cross_entropy
from torch.optim import AdamW, Optimizer

from mlflow_stability.demo.training_loop import Batch, Task, cosine


class Block(nn.Module):
    """Attention, then a perceptron, each behind a norm and beside a residual path."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value = (
            part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.qkv(self.norm_1(x)).chunk(3, -1)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        transformed: Tensor = self.mlp(self.norm_2(x))
        return x + transformed


class CharGPT(nn.Module):
    """Predicts the next character: by default 96 wide, about a quarter of a million parameters."""

    def __init__(self, characters: int, length: int, width: int = 96, heads: int = 4, blocks: int = 2) -> None:
        super().__init__()
        self.characters, self.places = nn.Embedding(characters, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(blocks)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, characters, bias=False)

    def forward(self, characters: Tensor) -> Tensor:
        x = self.characters(characters) + self.places(torch.arange(characters.shape[1], device=characters.device))
        scores: Tensor = self.head(self.norm(self.blocks(x)))
        return scores


LETTERS, LENGTH, BATCH = 8, 32, 16
STEPS = 440
LEARNING_RATE = 5e-3


@cache
def random_texts(seed: int, texts: int = 256, length: int = 512) -> Tensor:
    """Return texts whose letters depend on the two letters before, and on chance."""
    grammar = (2.0 * torch.randn(LETTERS, LETTERS, LETTERS, generator=Generator().manual_seed(5))).softmax(-1)
    generator = Generator().manual_seed(seed)
    letters = list(torch.randint(LETTERS, (2, texts), generator=generator))
    while len(letters) < length:
        letters.append(torch.multinomial(grammar[letters[-2], letters[-1]], 1, generator=generator)[:, 0])
    return torch.stack(letters, dim=1)


def lines(texts: Tensor, generator: Generator, count: int) -> Batch:
    """Return random pieces of the texts, and the same one letter later."""
    which = torch.randint(len(texts), (count, 1), generator=generator)
    starts = torch.randint(texts.shape[1] - LENGTH, (count, 1), generator=generator)
    rows = texts[which, starts + torch.arange(LENGTH + 1)]
    return rows[:, :-1], rows[:, 1:]


def next_letter(model: nn.Module, batch: Batch) -> Tensor:
    inputs, targets = batch
    return cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


def tiny_gpt() -> CharGPT:
    """Return a model of the language: two blocks, 64 wide."""
    return CharGPT(LETTERS, LENGTH, width=64)


def attention_apart(model: nn.Module) -> Optimizer:
    """Return AdamW with queries, keys and values in a group of their own, the first."""
    named = dict(model.named_parameters())
    attention = [parameter for name, parameter in named.items() if "qkv" in name]
    others = [parameter for name, parameter in named.items() if "qkv" not in name]
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
    """Return a training on the language, made of these parts."""
    torch.manual_seed(seed)
    network = model()
    texts, unseen, test_generator = random_texts(0), random_texts(1), Generator().manual_seed(0)
    return Task(
        network,
        optimizer(network),
        steps,
        draw=lambda generator: lines(texts, generator, BATCH),
        loss=next_letter,
        test=tuple(lines(unseen, test_generator, 64) for _ in range(2)),
        share_of_lr=share_of_lr,
        clip=clip,
        scaler=scaler,
    )


def scheduled_gpt(seed: int) -> Task:
    """Train with warm-up, a cosine and clipping."""
    return language_task(seed, share_of_lr=cosine(STEPS), clip=1.0)


def plain_gpt(seed: int) -> Task:
    """Train with a constant learning rate, without clipping."""
    return language_task(seed)
