"""Chooses which signals of layers become metrics: none, one for each block of the model, or all.

In: the signals of a reading. Out: signals, each with the values that make it. Guarantees: without being asked, a layer
never becomes a metric, for a model of a thousand layers would fill a store with what the full record holds anyway; but
of attention, which is measured seldom, each layer has the mean entropy of its heads.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mlflow_stability.tracking.keys import is_group
from mlflow_stability.vocabulary.measured.signal import Signal

UNNUMBERED = "unnumbered"
"""What the layers of a module are called together that stand in none of its numbered blocks."""
ENTROPY = "attention_entropy"
_HEAD = re.compile(r"(?P<layer>.+)\.head_\d+")
LayerMetrics = Literal["", "blocks", "parameters"]


@dataclass(frozen=True, slots=True)
class Chosen:
    """A signal for a metric, and where its values stand in the reading."""

    signal: Signal
    positions: tuple[int, ...]

    def value(self, values: Sequence[float]) -> float:
        """One value for all of them: norms add as norms do; the largest, the least; of anything else the mean."""
        if len(self.positions) == 1:
            return values[self.positions[0]]
        found = [values[position] for position in self.positions]
        if self.signal.quantity.endswith(("_max", "_max_logit")):
            return max(found)
        if self.signal.quantity.endswith("_min"):
            return min(found)
        if self.signal.quantity.endswith("_norm"):
            return math.sqrt(sum(each * each for each in found))
        return sum(found) / len(found)


def chosen_signals(signals: Sequence[Signal], layers: LayerMetrics) -> tuple[Chosen, ...]:
    """What becomes a metric: everything of the whole model, and of its layers what was asked for."""
    found: list[Chosen] = []
    blocks: dict[Signal, list[int]] = {}
    for position, signal in enumerate(signals):
        if not signal.place or is_group(signal.place) or layers == "parameters":
            found.append(Chosen(signal, (position,)))
        elif signal.quantity == ENTROPY and (layer := layer_of(signal.place)):
            blocks.setdefault(Signal(ENTROPY, layer), []).append(position)
        elif layers == "blocks":
            blocks.setdefault(Signal(signal.quantity, block_of(signal.place)), []).append(position)
    return (*found, *(Chosen(signal, tuple(positions)) for signal, positions in blocks.items()))


def layer_of(head: str) -> str:
    """The layer of an attention head: ``blocks.3.attn`` for ``blocks.3.attn.head_0``; empty for what is none."""
    found = _HEAD.fullmatch(head)
    return found["layer"] if found else ""


def block_of(place: str) -> str:
    """The block that a layer belongs to: ``transformer.h.3`` for ``transformer.h.3.attn.proj``.

    What stands in no numbered block is put together: ``transformer.unnumbered`` for ``transformer.wte``. It is not
    called ``transformer``, for that would read as if it were all of it.
    """
    words = place.split(".")
    numbered = next((number for number, word in enumerate(words) if word.isdigit()), None)
    if numbered is not None:
        return ".".join(words[: numbered + 1])
    return place if len(words) == 1 else f"{words[0]}.{UNNUMBERED}"
