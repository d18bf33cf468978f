"""A plain GPT with random weights, as small or large as a benchmark wants it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            item.view(batch, length, self.heads, -1).transpose(1, 2) for item in self.qkv(self.norm_1(x)).chunk(3, -1)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm_2(x))


class TinyGPT(nn.Module):
    def __init__(self, layers: int = 6, width: int = 256, heads: int = 8, vocabulary: int = 512, length: int = 128):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        logits = self.head(self.norm(self.blocks(x)))
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def batch_of(size: int = 8, length: int = 128, vocabulary: int = 512) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(vocabulary, (size, length + 1))
    return tokens[:, :-1], tokens[:, 1:]
