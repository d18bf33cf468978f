"""Entropy and largest logit of each attention head, and attention maps of some layers.

Heads are named `blocks.3.attn.head_0`; further calls of the same module get `.1`, `.2` behind its name. Guarantees: the
forward pass is unchanged; scratch memory is bounded for any sequence length; no device is waited for; one map at a time
is on the device.
"""

from __future__ import annotations

import logging
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import Module

from mlflow_stability.probes.inside.attention_scores import Scores, first_weights, head_numbers
from mlflow_stability.probes.inside.attention_tracer import AttentionTracer
from mlflow_stability.probes.inside.sampled_forward_probe import WatchedModules
from mlflow_stability.probes.model_discovery import unwrapped
from mlflow_stability.probes.probe import Guard, ProbeContext, ProbeFactory, next_sampled_step
from mlflow_stability.probes.step.readback import Block, Parcel
from mlflow_stability.vocabulary.measured.layer_arrays import AttentionMap
from mlflow_stability.vocabulary.measured.signal import Signal
from mlflow_stability.vocabulary.measured.signal_type import SignalType, signals

SIGNALS = signals(
    SignalType(
        "attention_entropy",
        "by head: 0 where a query looks at one key, 1 at all alike; every `attention_every_n_steps`",
        left_out="nan",
    ),
    SignalType("attention_max_logit", "by head: the largest score that was not masked", combined="max", left_out="nan"),
    SignalType(
        "collapsed_heads",
        "share of attention heads with collapsed entropy: below 0.05; a metric, too",
        exported="llm_collapsed_attention_heads",
    ),
    topic="attention",
    interval="forward pass",
)

MAX_DRAWN_HEADS = 32  # at even distances; the mean is over all heads
MAX_DRAWN_LAYERS = 12  # at even distances


@dataclass(slots=True)
class Drawing:
    parcel: Parcel
    heads: tuple[int, ...]
    tokens: tuple[int, int]
    cross: bool
    step: int = 0
    layer: str = ""
    number: int = 0

    def finished(self) -> AttentionMap:
        weights, average, numbers, ahead = self.parcel.opened()
        return AttentionMap(
            step=self.step,
            attempt=0,
            layer=self.layer,
            layer_number=self.number,
            heads=self.heads,
            weights=weights,
            average=average,
            entropy=numbers[0],
            max_logit=numbers[1],
            kind="cross" if self.cross else "self",
            causal=not self.cross and not ahead.any(),
            tokens=self.tokens,
        )


def drawn(scores: Scores, numbers: Tensor, tokens: int, cross: bool) -> Drawing:
    """Begin to copy a map to the host; `numbers` are entropy and largest score of each head."""
    _, heads, queries, keys = scores.shape
    weights = first_weights(scores, tokens)
    step = -(-heads // MAX_DRAWN_HEADS)
    average = weights.mean(0)
    ahead = (average.triu(1) > 0).any().reshape(1)
    kept = weights[::step].to(torch.float16)
    numbers, average = numbers.to(torch.float32), average.to(torch.float32)
    return Drawing(Parcel([kept, average, numbers, ahead]), tuple(range(0, heads, step)), (queries, keys), cross)


def chosen(layers: int) -> frozenset[int]:
    """Return the drawn ones among `layers` layers: the first, the last, and others at even distances."""
    if layers <= MAX_DRAWN_LAYERS:
        return frozenset(range(layers))
    return frozenset(round(at * (layers - 1) / (MAX_DRAWN_LAYERS - 1)) for at in range(MAX_DRAWN_LAYERS))


QUANTITIES = ("attention_entropy", "attention_max_logit")  # of each head
FIRST_STEP = 10  # the first that is measured, as a start to compare with
COLLAPSED = 0.05  # entropy below which a head has collapsed
MAX_HEADS = 4096  # with series; of more, layers at even distances have them
MAX_DRAWN_IN_FIRST_PASS = 128  # layers, while it is unknown how many there will be

_logger = logging.getLogger(__name__)


_Measured = tuple[Tensor, Drawing | None]  # numbers, by number and head; and the map, if it is drawn


class _Layer(NamedTuple):
    root: Module
    name: str
    numbers: Tensor
    drawing: Drawing | None


class AttentionProbe:
    part = "attention"

    def __init__(
        self,
        every: int,
        max_seq_len: int,
        guard: Guard,
        keep: Callable[[AttentionMap], None],
        models: Callable[[], Sequence[Module]] = list,
    ) -> None:
        self.every = every
        self.max_seq_len = max_seq_len  # tokens of a map
        self._guard = partial(guard, self.part)
        self._keep = keep  # takes maps in the order in which they were measured
        self._tracer: AttentionTracer | None = None
        self._root: Module | None = None
        self._step = 0
        self._now: list[_Layer] = []  # seen in the present pass
        self._seen: list[_Layer] = []  # seen in complete passes of this capture
        # Number of layers of each model in its last pass.
        self._counts: weakref.WeakKeyDictionary[Module, int] = weakref.WeakKeyDictionary()
        self._places = WatchedModules(models)
        self._on_their_way: list[Drawing] = []

    def due(self, own_step: int) -> bool:
        self._deliver(wait=False)
        return bool(self.every) and (own_step % self.every == 0 or own_step == FIRST_STEP)

    def next_due(self, own_step: int) -> int:
        if self._on_their_way or not self.every:
            return own_step + 1
        return next_sampled_step(own_step, FIRST_STEP, self.every)

    def open(self, root: Module, step: int, alive: Callable[[], bool]) -> None:
        self._root, self._step, self._now = root, step, []
        names = {id(module): name for name, module in self._places.inside(root)}
        names[id(root)] = type(unwrapped(root)).__name__
        self._tracer = AttentionTracer(root, names, alive, self._guard, self)
        self._tracer.open()

    def close(self, whole: bool) -> None:
        if self._tracer is not None:
            self._tracer.close()  # before it is dropped: after Ctrl-C here it is closed again
        self._tracer = self._root = None
        now, self._now = self._now, []
        if whole:
            self._seen += now
            self._counts.update({layer.root: len(now) for layer in now[:1]})

    def measure(self, scores: Scores, cross: bool) -> _Measured:
        numbers = head_numbers(scores)
        return numbers, drawn(scores, numbers, self.max_seq_len, cross) if self._is_drawn() else None

    def add(self, measured: _Measured, name: str) -> None:
        if self._root is not None:
            self._now.append(_Layer(self._root, name, *measured))

    def blocks(self) -> Sequence[Block]:
        seen, self._seen = self._seen, []
        if not seen:
            return ()
        counts: Counter[str] = Counter()
        names = []
        for layer in seen:  # a name has a number from its second time on
            names.append(f"{layer.name}.{counts[layer.name]}" if counts[layer.name] else layer.name)
            counts[layer.name] += 1
        self._send(seen, names)
        self._deliver(wait=False)
        device = seen[-1].numbers.device
        numbers = [layer.numbers.to(device, torch.float32, non_blocking=True) for layer in seen]
        with torch.no_grad():
            entropies = torch.cat([rows[0] for rows in numbers])
            is_number = ~entropies.isnan()
            share = ((entropies < COLLAPSED) & is_number).sum().to(torch.float32) / is_number.sum()
            kept = _layers_with_series([rows.shape[1] for rows in numbers])
            values = torch.cat([*(numbers[at].flatten() for at in kept), share.reshape(1)])
        if len(kept) < len(seen):
            _logger.info("Attention series by head are recorded for %d of %d layers.", len(kept), len(seen))
        return (Block(_signals(tuple((names[at], numbers[at].shape[1]) for at in kept)), values),)

    def finish(self) -> None:
        self._seen.clear()
        self._deliver(wait=True)

    def _is_drawn(self) -> bool:
        number = len(self._now)
        layers = None if self._root is None else self._counts.get(self._root)
        return number < MAX_DRAWN_IN_FIRST_PASS if layers is None else number in chosen(layers)

    def _send(self, seen: Sequence[_Layer], names: Sequence[str]) -> None:
        numbers: Counter[int] = Counter()
        for layer, name in zip(seen, names, strict=True):
            number, drawing = numbers[id(layer.root)], layer.drawing
            numbers[id(layer.root)] += 1
            if drawing is not None and number in chosen(self._counts.get(layer.root, 0)):
                drawing.step, drawing.layer, drawing.number = self._step, name, number
                self._on_their_way.append(drawing)

    def _deliver(self, *, wait: bool) -> None:
        while self._on_their_way and (wait or self._on_their_way[0].parcel.arrived):
            self._keep(self._on_their_way.pop(0).finished())


@lru_cache(maxsize=4)
def _signals(heads_of_layers: tuple[tuple[str, int], ...]) -> tuple[Signal, ...]:
    places = [(name, quantity, heads) for name, heads in heads_of_layers for quantity in QUANTITIES]
    signals = [Signal(quantity, f"{name}.head_{at}") for name, quantity, heads in places for at in range(heads)]
    return (*signals, Signal("collapsed_heads"))


def _layers_with_series(heads: Sequence[int]) -> list[int]:
    if sum(heads) <= MAX_HEADS:
        return list(range(len(heads)))
    fitting = max(2, MAX_HEADS * len(heads) // sum(heads))
    return sorted({round(at * (len(heads) - 1) / (fitting - 1)) for at in range(fitting)})


def _probe(context: ProbeContext) -> AttentionProbe | None:
    every, max_seq_len = context.settings.attention_every_n_steps, context.settings.attention_max_seq_len
    return AttentionProbe(every, max_seq_len, context.guard, context.keep_attention, context.models) if every else None


PROBES: tuple[ProbeFactory, ...] = (_probe,)
