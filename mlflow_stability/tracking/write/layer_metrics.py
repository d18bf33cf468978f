"""Chooses which signals of layers become metrics: none, one for each block of the model, or all.

In: the signals of a reading. Out: signals, each with the values that make it. Guarantees: without being asked, a layer
never becomes a metric, for a model of a thousand layers would fill a store with what the full record holds anyway. What
is measured seldom has a few charts: of attention the mean entropy of the heads of each layer; of sparse codes five
numbers for at most four modules; of activations the mean and the largest share of dead and of saturated units; of each
router of experts the evenness of its shares and its largest logit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from mlflow_stability.tracking.keys import is_group
from mlflow_stability.vocabulary.measured import Combined, Signal, type_of

UNNUMBERED = "unnumbered"
"""What the layers of a module are called together that stand in none of its numbered blocks."""
ENTROPY = "attention_entropy"
UNIQUE = "sdr_unique_ratio"
CODES = (UNIQUE, "sdr_active_bits", "sdr_bit_usage", "sdr_duty_entropy", "sdr_temperature")
"""What is drawn of a module that puts out sparse codes."""
MOST_MODULES = 4
"""Of so many modules with codes; of more, at even distances."""
_COMBINE: dict[Combined, Callable[[Sequence[float]], float]] = {
    "mean": lambda values: sum(values) / len(values),
    "norm": lambda values: math.sqrt(sum(each * each for each in values)),
    "min": min,
    "max": max,
}
_HEAD = re.compile(r"(?P<layer>.+)\.head_\d+")
LayerMetrics = Literal["", "blocks", "parameters"]


@dataclass(frozen=True, slots=True)
class Chosen:
    """A signal for a metric, and where its values stand in the reading."""

    signal: Signal
    positions: tuple[int, ...]
    inputs: int | None = None
    """Where the share of inputs that differ stands: so many codes can differ at most."""
    combined: Combined = "mean"
    """What several values become together."""

    def value(self, values: Sequence[float]) -> float:
        """One value for all of them."""
        if self.inputs is not None and values[self.inputs] > 0:
            return min(values[self.positions[0]] / values[self.inputs], 1.0)
        if len(self.positions) == 1:
            return values[self.positions[0]]
        return _COMBINE[self.combined]([values[position] for position in self.positions])


def chosen_signals(signals: Sequence[Signal], layers: LayerMetrics) -> tuple[Chosen, ...]:
    """What becomes a metric: everything of the whole model, and of its layers what was asked for."""
    found: list[Chosen] = []
    blocks: dict[Signal, list[int]] = {}
    coded = _drawn_modules(signals)
    inputs = {signal.place: position for position, signal in enumerate(signals) if signal.quantity == "sdr_input_ratio"}
    summarised: dict[str, list[int]] = {}
    for position, signal in enumerate(signals):
        whole = not signal.place or is_group(signal.place)
        known = type_of(signal.quantity)
        if known is not None and known.summary and not whole:
            summarised.setdefault(signal.quantity, []).append(position)
        if whole or layers == "parameters" or (known is not None and known.every_place):
            found.append(Chosen(signal, (position,)))
        elif signal.quantity in CODES and signal.place in coded:
            found.append(Chosen(signal, (position,), inputs.get(signal.place) if signal.quantity == UNIQUE else None))
        elif signal.quantity == ENTROPY and (layer := layer_of(signal.place)):
            blocks.setdefault(Signal(ENTROPY, layer), []).append(position)
        elif layers == "blocks":
            blocks.setdefault(Signal(signal.quantity, block_of(signal.place)), []).append(position)
    for quantity, positions in summarised.items():
        known = type_of(quantity)
        ends = () if known is None else known.summary
        found += [Chosen(Signal(f"{quantity}_{end}"), tuple(positions), combined=end) for end in ends]
    for signal, positions in blocks.items():
        known = type_of(signal.quantity)
        found.append(Chosen(signal, tuple(positions), combined="mean" if known is None else known.combined))
    return tuple(found)


def _drawn_modules(signals: Sequence[Signal]) -> frozenset[str]:
    """The modules with sparse codes that have charts."""
    modules = [each.place for each in signals if each.quantity == UNIQUE and each.place]
    count = min(len(modules), MOST_MODULES)
    return frozenset(modules[round(at * (len(modules) - 1) / max(1, count - 1))] for at in range(count))


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
