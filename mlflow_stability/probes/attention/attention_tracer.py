"""Finds the attention in one forward pass of a model, however it is written.

In: a forward pass, between `open` and `close`. Out: for each attention its scores and the name of its module, to a
listener. Guarantees: found are `scaled_dot_product_attention`, `nn.MultiheadAttention` and what is made of it, by
whatever path torch takes, `multi_head_attention_forward`, flex attention, and scores that a model puts through a
softmax itself and then multiplies with values. What fails in here is nobody's trouble but ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import Module, functional

from mlflow_stability.probes.attention.attention_mode import AttentionMode
from mlflow_stability.probes.attention.attention_modules import AttentionModules
from mlflow_stability.probes.attention.attention_projection import scores_of_function, scores_of_layer, scores_of_module
from mlflow_stability.probes.attention.attention_scores import Scores, heads_of, scores_of_call, scores_of_softmax
from mlflow_stability.probes.attention.attention_softmax import SOFTMAX, SoftmaxTrail
from mlflow_stability.probes.hooks.untracked_ops import is_measurable, untracked
from mlflow_stability.probes.rerun.forward_rerun import runs_again

_CROSS = ("cross", "encoder_attn", "encdec", "multihead_attn")
"""What modules are called whose queries and keys are of different sequences, of the same length or not."""


class AttentionObserver(Protocol):
    """Who wants to know; called in the middle of the forward pass, aside from it."""

    def measure(self, scores: Scores, cross: bool) -> Any:
        """Make of the scores what is to be kept of them: they are there now and not later."""

    def found(self, measured: Any, name: str) -> None:
        """What was measured is an attention of this module."""


class AttentionTracer:
    """One forward pass."""

    def __init__(
        self,
        root: Module,
        names: Mapping[int, str],
        alive: Callable[[], bool],
        guard: Callable[[Callable[..., Any]], Callable[..., Any]],
        observer: AttentionObserver,
    ) -> None:
        self._listener = observer
        self._trail = SoftmaxTrail()
        self._mode = AttentionMode(guard(self._look), guard(self._answer_flex), alive)
        self._places = AttentionModules(root, names, self._mode, alive, guard(self._hidden), guard)

    def open(self) -> None:
        """Begin."""
        self._places.put_on()
        self._mode.enter()

    def close(self) -> None:
        """Leave nothing behind."""
        self._mode.leave()
        self._places.take_off()

    def _look(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if func is functional.scaled_dot_product_attention:
            query = args[0] if args else kwargs["query"]
            heads = heads_of(self._places.innermost()[:2], len(query)) if query.dim() == 3 else 1
            rounded_to = _autocast_type(query)
            with untracked():
                scores = scores_of_call(heads, rounded_to, *args, **kwargs)
                self._found(scores)
        elif func is functional.multi_head_attention_forward:
            query, key = (args[at] if len(args) > at else kwargs[name] for at, name in enumerate(("query", "key")))
            if is_measurable(query) and is_measurable(key):
                with untracked():
                    self._found(scores_of_function(args, kwargs), cross=query is not key)
        elif func in SOFTMAX:
            with untracked():
                self._trail.begins(args, kwargs, result, self._candidate)
        elif self._trail.waiting and isinstance(result, Tensor):
            with untracked():
                measured = self._trail.went_by(func, args, kwargs, result)
            if measured is not None:
                self._listener.found(measured, self._places.name())

    def _candidate(self, scores: Tensor) -> Any:
        heads = heads_of(self._places.innermost()[:2], len(scores))
        given = scores_of_softmax(heads, scores)
        return self._listener.measure(given, self._is_cross(given))

    def _hidden(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        with untracked():
            if isinstance(module, nn.MultiheadAttention):
                query, key = (args[at] if len(args) > at else kwargs[name] for at, name in enumerate(("query", "key")))
                self._found(scores_of_module(module, args, kwargs), cross=query is not key)
            elif isinstance(module, nn.TransformerEncoderLayer):
                self._found(scores_of_layer(module, args, kwargs), cross=False)

    def _answer_flex(self, args: tuple[Any, ...]) -> Any:
        if not is_measurable(args[0]):
            return None
        from mlflow_stability.probes.attention.attention_flex import output_of_flex, scores_of_flex

        with untracked():
            scores = scores_of_flex(args, _autocast_type(args[0]))
            self._found(scores)
            return output_of_flex(args, scores) if runs_again() else None

    def _found(self, scores: Scores | None, cross: bool | None = None) -> None:
        if scores is None or min(scores.shape) < 1 or scores.shape[-1] < 2:
            return
        measured = self._listener.measure(scores, self._is_cross(scores) if cross is None else cross)
        self._listener.found(measured, self._places.name())

    def _is_cross(self, scores: Scores) -> bool:
        _, _, queries, keys = scores.shape
        name = self._places.name().lower()
        return queries != keys or any(each in name for each in _CROSS)


def _autocast_type(tensor: Tensor) -> torch.dtype | None:
    device = tensor.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
