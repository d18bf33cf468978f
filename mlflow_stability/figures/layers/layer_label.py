"""Which names stand beside the rows of many layers.

In: the layers' names in order, and how many labels there is room for. Out: labels with their rows. Guarantees: few
layers all have their names; many have the names of the blocks they are in, and of too many blocks every so many is
named.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

_LEAST = 8
"""How many blocks there should be at least before blocks are named instead of layers."""


@dataclass(frozen=True, slots=True)
class LayerLabel:
    """A name beside some rows."""

    name: str
    first: int
    last: int

    @property
    def middle(self) -> float:
        """Where it stands."""
        return (self.first + self.last) / 2


def labels_of(layers: tuple[str, ...], most: int) -> tuple[str, list[LayerLabel]]:
    """What all names begin with, and the labels without it."""
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
    while all(len(each) > depth + 1 and each[depth] == parts[0][depth] for each in parts):
        depth += 1
    return "".join(f"{part}." for part in parts[0][:depth])


def _blocks(names: list[str]) -> list[LayerLabel]:
    """Neighbours whose names begin alike, as deep as is needed for a few of them."""
    deepest = max(name.count(".") for name in names) + 1
    found: list[LayerLabel] = []
    for depth in range(1, deepest + 1):
        found, row = [], 0
        for name, group in groupby(".".join(each.split(".")[:depth]) for each in names):
            count = len(list(group))
            found.append(LayerLabel(name, row, row + count - 1))
            row += count
        if len(found) >= _LEAST:
            break
    return found


def _apart(blocks: list[LayerLabel], rows: float) -> list[LayerLabel]:
    """Those that are at least so many rows from each other, the larger ones first."""
    kept: list[LayerLabel] = []
    for block in sorted(blocks, key=lambda one: one.first - one.last):
        if all(abs(block.middle - other.middle) >= rows for other in kept):
            kept.append(block)
    return sorted(kept, key=lambda one: one.first)
