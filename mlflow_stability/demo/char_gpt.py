"""A GPT small enough for a CPU: two blocks, 96 wide, about a quarter of a million parameters."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Block(nn.Module):
    """Attention, then a perceptron, each behind a norm and beside a residual path."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Mix what came before each place into it."""
        batch, length, width = x.shape
        query, key, value = (
            each.view(batch, length, self.heads, -1).transpose(1, 2) for each in self.qkv(self.norm_1(x)).chunk(3, -1)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        transformed: Tensor = self.mlp(self.norm_2(x))
        return x + transformed


class CharGPT(nn.Module):
    """Says which character comes next."""

    def __init__(self, characters: int, length: int, width: int = 96, heads: int = 4, blocks: int = 2) -> None:
        super().__init__()
        self.characters, self.places = nn.Embedding(characters, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(blocks)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, characters, bias=False)

    def forward(self, given: Tensor) -> Tensor:
        """The scores of every character, for the place behind each."""
        x = self.characters(given) + self.places(torch.arange(given.shape[1], device=given.device))
        scores: Tensor = self.head(self.norm(self.blocks(x)))
        return scores
