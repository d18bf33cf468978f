"""Labels of pictures by layer: the titles of quantities, and the names beside rows.

A few layers all have their names; many have the names of their blocks, and of too many blocks every n-th is named.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

_MIN_BLOCKS = 8  # names are shortened to the depth at which there are at least this many blocks
_TITLES = {
    "grad_norm": "Gradient norm by layer",
    "update_ratio": "Update ratio by layer",
    "param_norm": "Parameter norm by layer",
    "attention_entropy": "Attention entropy by head",
}


def quantity_title(quantity: str) -> str:
    """Return the title of a picture that compares two runs: ``Gradient norm by layer``."""
    return _TITLES.get(quantity, quantity)


@dataclass(frozen=True, slots=True)
class LayerLabel:
    """A name beside some rows."""

    name: str
    first: int
    last: int

    @property
    def middle(self) -> float:
        return (self.first + self.last) / 2


def labels_of(layers: tuple[str, ...], most: int) -> tuple[str, list[LayerLabel]]:
    """Return the common beginning of all names, and at most `most` labels without it."""
    common = _common(layers)
    names = [name[len(common) :] for name in layers]
    if len(names) <= most:
        return common, [LayerLabel(name, row, row) for row, name in enumerate(names)]
    blocks = _blocks(names)
    every = -(-len(blocks) // most)
    return common, _apart(blocks[::every], len(names) / most)


def _common(layers: tuple[str, ...]) -> str:
    """The first parts that all names share, with the dot behind them."""
    if len(layers) < 2:
        return ""
    parts = [name.split(".") for name in layers]
    depth = 0
    while all(len(path) > depth + 1 and path[depth] == parts[0][depth] for path in parts):
        depth += 1
    return "".join(f"{part}." for part in parts[0][:depth])


def _blocks(names: list[str]) -> list[LayerLabel]:
    """Neighbours whose names begin with the same parts, as many parts as give enough blocks."""
    deepest = max(name.count(".") for name in names) + 1
    blocks: list[LayerLabel] = []
    for depth in range(1, deepest + 1):
        blocks, row = [], 0
        for name, group in groupby(".".join(layer.split(".")[:depth]) for layer in names):
            count = len(list(group))
            blocks.append(LayerLabel(name, row, row + count - 1))
            row += count
        if len(blocks) >= _MIN_BLOCKS:
            break
    return blocks


def _apart(blocks: list[LayerLabel], rows: float) -> list[LayerLabel]:
    """Blocks that are at least this many rows from each other; larger ones take precedence."""
    kept: list[LayerLabel] = []
    for block in sorted(blocks, key=lambda block: block.first - block.last):
        if all(abs(block.middle - other.middle) >= rows for other in kept):
            kept.append(block)
    return sorted(kept, key=lambda block: block.first)
