"""Entropy and largest logit of each attention head, and attention maps of some layers.

Heads are named `blocks.3.attn.head_0`; further calls of the same module get `.1`, `.2` behind its name. Attention is
found in whatever way it is written, except what torch may fuse in modules in evaluation mode. No hook is on a module
itself, because torch leaves its fused paths where it finds one. Guarantees: each call of torch's functions is made
once, and its result is returned untouched, except that a flex attention is answered here in a pass that is run for us
alone; scratch memory is bounded for any sequence length; no device is waited for; one map at a time is on the device.
Nothing is left on torch's stack of modes after a pass; where another thread closes, the mode does nothing from then on,
and is removed as soon as code of ours runs in its own thread again.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import Module, functional
from torch.nn.modules import module as torch_module
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from mlflow_stability.probes.forward.forward_rerun import runs_again
from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.probes.hooks.thread_state import (
    FUNCTION_STACK,
    OwnMode,
    function_modes,
    is_measurable,
    remove_mode,
    untracked,
)
from mlflow_stability.probes.inside.attention_scores import (
    Scores,
    first_weights,
    head_numbers,
    heads_of,
    scores_of_call,
    scores_of_softmax,
)
from mlflow_stability.probes.inside.attention_sources import (
    SOFTMAX,
    SoftmaxTrail,
    output_of_flex,
    scores_of_flex,
    scores_of_function,
)
from mlflow_stability.probes.model_discovery import unwrapped
from mlflow_stability.probes.probe import (
    FIRST_STEP,
    Guard,
    ProbeContext,
    ProbeFactory,
    WatchedModules,
    next_sampled_step,
)
from mlflow_stability.probes.step.readback import Block, Parcel
from mlflow_stability.vocabulary.measured.layer_arrays import AttentionMap
from mlflow_stability.vocabulary.measured.signal import Signal
from mlflow_stability.vocabulary.measured.signal_type import SignalType, signals


class AttentionMode(OwnMode):
    """Mode that observes torch's functions during one forward pass."""

    def __init__(self, look: Callable[..., Any], answer: Callable[..., Any], alive: Callable[[], bool]) -> None:
        super().__init__()
        self.on = False
        self._look = look  # called with function, args, kwargs and result
        self._answer = answer  # returns the output of a flex attention, or None to have it computed
        self._alive = alive

    def enter(self) -> None:
        torch_api.need(*FUNCTION_STACK)
        self.on = True
        torch_api.push_on_torch_function_stack(self)

    def leave(self) -> None:
        """End, wherever on the stack of modes this one is, and forget the pass; may be called twice."""
        self.on = False
        self._look = self._answer = _ignore
        self._alive = _over
        remove_mode(self)

    def wanted(self) -> bool:
        return self.on and self._alive()

    def step_aside(self) -> bool:
        """Leave the stack for a moment; return False if a mode of the script is on top."""
        stack = function_modes()
        if not self.on or not stack or stack[-1] is not self:
            return False
        remove_mode(self)
        return True

    def come_back(self) -> None:
        if self.on and not any(mode is self for mode in function_modes()):
            torch_api.push_on_torch_function_stack(self)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = {} if kwargs is None else kwargs
        if torch.compiler.is_compiling() or not self.on:
            return func(*args, **kwargs)
        if type(func).__name__ == "FlexAttentionHOP":
            output = self._answer(args)
            return func(*args, **kwargs) if output is None else output
        result = func(*args, **kwargs)
        self._look(func, args, kwargs, result)
        return result


def _ignore(*_args: Any) -> None:
    """Replace a function after the pass."""


def _over() -> bool:
    return False


# Modules that take a fused path in evaluation, unless there are modes or hooks.
FUSED = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)


class AttentionModules:
    """The modules that are called in one forward pass."""

    def __init__(
        self,
        root: Module,
        names: Mapping[int, str],
        mode: AttentionMode,
        alive: Callable[[], bool],
        guard: Callable[[Callable[..., Any]], Callable[..., Any]],
    ) -> None:
        self._alive = alive
        self._mode = mode  # steps aside for modules that may take a fused path
        self._names = names  # of the modules of the model, by identity
        self._stack: list[Module] = [root]
        self._thread = threading.get_ident()
        self._hiding: Module | None = None  # module for which the mode stepped aside
        self._hooks = self._ours(guard(self._enters)), self._ours(guard(self._leaves))

    def put_on(self) -> None:
        register_module_forward_pre_hook(self._hooks[0])
        register_module_forward_hook(self._hooks[1], always_call=True)

    def take_off(self) -> None:
        """End and forget the pass; may be called twice."""
        for table in (torch_module._global_forward_pre_hooks, torch_module._global_forward_hooks):
            # By the hook and not by a handle, which Ctrl-C may have prevented from being stored.
            for key in [key for key, hook in table.items() if any(hook is own for own in self._hooks)]:
                torch_module._global_forward_hooks_always_called.pop(key, None)
                table.pop(key, None)  # last: the other is found by it
        self._alive = _over
        self._stack.clear()

    def innermost(self) -> list[Module]:
        """Return the modules that are being called, the innermost first."""
        return self._stack[::-1]

    def name(self) -> str:
        """Return the name of the innermost module of the model."""
        return next((self._names[id(module)] for module in reversed(self._stack) if id(module) in self._names), "")

    def _ours(self, body: Callable[..., Any]) -> Callable[..., None]:
        def hook(*args: Any) -> None:
            if not torch.compiler.is_compiling() and threading.get_ident() == self._thread:
                body(*args)

        return hook

    def _enters(self, module: Module, _args: Any) -> None:
        if not self._alive():
            self._mode.leave()  # left behind by Ctrl-C
            return
        self._stack.append(module)
        if self._hiding is None and isinstance(module, FUSED) and not module.training:
            self._hiding = module if self._mode.step_aside() else None

    def _leaves(self, module: Module, *_: Any) -> None:
        if not self._alive() or not any(running is module for running in self._stack):
            return
        while self._stack[-1] is not module:
            self._stack.pop()  # ended by an exception
        self._stack.pop()
        if module is self._hiding:
            self._hiding = None
            self._mode.come_back()


# Parts of the names of modules whose queries and keys are of different sequences.
_CROSS = ("cross", "encoder_attn", "encdec", "multihead_attn")


class AttentionTracer:
    def __init__(
        self,
        root: Module,
        names: Mapping[int, str],
        alive: Callable[[], bool],
        guard: Callable[[Callable[..., Any]], Callable[..., Any]],
        observer: AttentionProbe,
    ) -> None:
        self._observer = observer
        self._trail = SoftmaxTrail()
        self._mode = AttentionMode(guard(self._look), guard(self._answer_flex), alive)
        self._places = AttentionModules(root, names, self._mode, alive, guard)

    def open(self) -> None:
        self._places.put_on()
        self._mode.enter()

    def close(self) -> None:
        self._mode.leave()
        self._places.take_off()

    def _look(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if func is functional.scaled_dot_product_attention:
            query = args[0] if args else kwargs["query"]
            heads = heads_of(self._places.innermost()[:2], len(query)) if query.dim() == 3 else 1
            rounded_to = _autocast_type(query)
            with untracked():
                scores = scores_of_call(heads, rounded_to, *args, **kwargs)
                self._measure(scores)
        elif func is functional.multi_head_attention_forward:
            query, key = (args[at] if len(args) > at else kwargs[name] for at, name in enumerate(("query", "key")))
            if is_measurable(query) and is_measurable(key):
                with untracked():
                    self._measure(scores_of_function(args, kwargs), cross=query is not key)
        elif func in SOFTMAX:
            with untracked():
                self._trail.begin(args, kwargs, result, self._candidate)
        elif self._trail.waiting and isinstance(result, Tensor):
            with untracked():
                measured = self._trail.follow(func, args, kwargs, result)
            if measured is not None:
                self._observer.add(measured, self._places.name())

    def _candidate(self, scores: Tensor) -> Any:
        heads = heads_of(self._places.innermost()[:2], len(scores))
        script_scores = scores_of_softmax(heads, scores)
        return self._observer.measure(script_scores, self._is_cross(script_scores))

    def _answer_flex(self, args: tuple[Any, ...]) -> Any:
        if not is_measurable(args[0]):
            return None
        with untracked():
            scores = scores_of_flex(args, _autocast_type(args[0]))
            self._measure(scores)
            return output_of_flex(args, scores) if runs_again() else None

    def _measure(self, scores: Scores | None, cross: bool | None = None) -> None:
        if scores is None or min(scores.shape) < 1 or scores.shape[-1] < 2:
            return
        measured = self._observer.measure(scores, self._is_cross(scores) if cross is None else cross)
        self._observer.add(measured, self._places.name())

    def _is_cross(self, scores: Scores) -> bool:
        _, _, queries, keys = scores.shape
        name = self._places.name().lower()
        return queries != keys or any(part in name for part in _CROSS)


def _autocast_type(tensor: Tensor) -> torch.dtype | None:
    device = tensor.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


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
        """Runs in the middle of the pass; the scores exist only during the call."""
        numbers = head_numbers(scores)
        return numbers, drawn(scores, numbers, self.max_seq_len, cross) if self._is_drawn() else None

    def add(self, measured: _Measured, name: str) -> None:
        """Record what was measured as an attention of this module."""
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
