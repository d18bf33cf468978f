"""Measures the routers of mixtures of experts, which it finds by itself.

In: the forward pass of a measured step. Out: for each router the quantities of `router_statistics`, the share of each
expert and, where it is known, the share of dropped tokens. Guarantees: only numbers are kept; modules are searched
once for each model, and a model without experts has no hook.

A candidate is a router where it put out a number for each expert before the first expert was called. Which experts got
a token is taken from how many rows each was called with; else from the choices that the router put out, or that the
experts were given; else from the largest scores, where an attribute such as `top_k` says how many count. Where nothing
does, the mixture is soft: the share of an expert is its mean probability.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from mlflow_stability.probes.block import Block
from mlflow_stability.probes.forward.pass_hooks import PassHooks
from mlflow_stability.probes.hooks.untracked_ops import is_measurable, untracked
from mlflow_stability.probes.objects.watched_modules import WatchedModules
from mlflow_stability.probes.probe import Guard, ProbeFactory, next_sampled_step
from mlflow_stability.probes.routing.expert_groups import Candidate, ExpertGroup, expert_groups
from mlflow_stability.probes.routing.router_statistics import (
    DROPPED,
    QUANTITIES,
    SHARE,
    choices_in,
    counts_of,
    describe_router,
    scores_in,
)
from mlflow_stability.probes.tensors.tensor_sums import on_device
from mlflow_stability.vocabulary.measured import Signal

FIRST_LOOK = 10
LOOKS = 2
"""After so many looks at a model only the routers that were found are measured."""
MOST_SHARES = 4096
"""Of so many experts together there is a share each; of more, routers at even distances have them."""
MOST_LOOKED_AT = 8
"""Further back in a tuple nothing is looked for."""


@dataclass(slots=True, eq=False)
class _Seen:
    """What a forward pass showed of one group of experts."""

    group: ExpertGroup
    candidate: Candidate | None = None
    """The one that put out scores first."""
    scores: Tensor | None = None
    counts: Tensor | None = None
    dropped: Tensor | None = None
    rows: dict[int, int] = field(default_factory=dict)
    """How many rows each expert was called with, by identity."""
    began: bool = False
    """Whether an expert was called."""
    over: bool = False
    """Whether the router was called once more: the first call counts."""


@dataclass(frozen=True, slots=True)
class _Measured:
    name: str
    experts: int
    row: Tensor
    dropped: bool
    """Whether the share of dropped tokens stands at the end of the row."""


class RouterProbe:
    """The routers of one training."""

    part = "routers"

    def __init__(self, guard: Guard, every: int = 100, models: Callable[[], Sequence[Module]] | None = None) -> None:
        self.every = every
        """Every how many steps of a model; and once at the tenth."""
        self._guard = guard
        self._places = WatchedModules(models)
        self._groups: weakref.WeakKeyDictionary[Module, list[ExpertGroup]] = weakref.WeakKeyDictionary()
        self._looks: weakref.WeakKeyDictionary[Module, int] = weakref.WeakKeyDictionary()
        self._root: weakref.ref[Module] | None = None
        self._hooks: PassHooks | None = None
        self._alive: Callable[[], bool] = _over
        self._seen: list[_Seen] = []
        self._measured: list[_Measured] = []
        self._layouts: dict[tuple[str, int, bool, bool], tuple[Signal, ...]] = {}

    def due(self, own_step: int) -> bool:
        """Whether to look."""
        return own_step == FIRST_LOOK or own_step % self.every == 0

    def next_due(self, own_step: int) -> int:
        """The next turn that is due."""
        return next_sampled_step(own_step, FIRST_LOOK, self.every)

    def open(self, root: Module, _step: int, alive: Callable[[], bool]) -> None:
        """Watch experts and what may be their routers."""
        groups = self._groups.get(root)
        if groups is None:
            names = {module: name for name, module in self._places.inside(root)}
            groups = self._groups[root] = expert_groups(root, names)
        if not groups:
            return
        self._hooks, self._alive, self._root = PassHooks(), alive, weakref.ref(root)
        self._seen = [_Seen(group) for group in groups]
        for seen in self._seen:
            self._hook(self._hooks, seen)

    def close(self, whole: bool) -> None:
        """Stop watching; `whole`: what was seen counts."""
        if self._hooks is not None:
            self._hooks.remove()
            self._hooks, self._alive = None, _over
        seen, self._seen = self._seen, []
        root = None if self._root is None else self._root()
        self._root = None
        if not whole or root is None:
            return
        # Experts of two layers in turn, as in JetMoe, have one router.
        routers = {each.candidate.module: each for each in reversed(seen) if each.candidate is not None}
        with untracked():
            self._measured += [_measured(each) for each in seen if each in routers.values()]
        looks = self._looks[root] = self._looks.get(root, 0) + 1
        if looks == LOOKS:
            self._groups[root] = [each.group for each in seen if each in routers.values()]

    def blocks(self) -> Sequence[Block]:
        """What was measured, a block for each router."""
        measured, self._measured = self._measured, []
        step = -(-sum(each.experts for each in measured) // MOST_SHARES)
        return [self._block(each, at % step == 0) for at, each in enumerate(measured)]

    def finish(self) -> None:
        """Nothing is on its way; what nobody has asked for is let go."""
        self._measured.clear()

    def _hook(self, hooks: PassHooks, seen: _Seen) -> None:
        def put_out(module: Module, _args: tuple[Any, ...], output: Any) -> None:
            if self._alive():
                with untracked():
                    _take_output(seen, module, output)

        def called(module: Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
            if self._alive():
                with untracked():
                    _take_call(seen, module, args, kwargs)

        put_out, called = self._guard(self.part, put_out), self._guard(self.part, called)
        routers = [module for each in seen.group.candidates for module in (each.module, *each.around)]
        for module in dict.fromkeys(routers):
            hooks.after(module, put_out)
        for module in (*seen.group.called, *([seen.group.stacked] if seen.group.stacked is not None else [])):
            hooks.before(module, called)

    def _block(self, measured: _Measured, with_shares: bool) -> Block:
        key = measured.name, measured.experts, with_shares, measured.dropped
        if key not in self._layouts:
            shares = [Signal(SHARE, f"{measured.name}.expert_{at}") for at in range(measured.experts)]
            last = [Signal(DROPPED, measured.name)] if measured.dropped else []
            few = [Signal(each, measured.name) for each in QUANTITIES]
            self._layouts[key] = (*few, *(shares if with_shares else []), *last)
        row = measured.row
        if not with_shares:
            row = torch.cat((row[: len(QUANTITIES)], row[len(QUANTITIES) + measured.experts :]))
        return Block(self._layouts[key], row)


def _over() -> bool:
    """No pass is going on."""
    return False


def _tensors(given: Any, depth: int = 1) -> Iterator[Tensor]:
    """The tensors in an output or in arguments."""
    if isinstance(given, Tensor):
        if is_measurable(given):
            yield given
    elif depth >= 0 and isinstance(given, (tuple, list, Mapping)):
        parts = given.values() if isinstance(given, Mapping) else given
        for each in islice(parts, MOST_LOOKED_AT):
            yield from _tensors(each, depth - 1)


def _take_output(seen: _Seen, module: Module, output: Any) -> None:
    """A candidate, or what it is in, put something out."""
    if seen.began:
        seen.over |= seen.candidate is not None and module is seen.candidate.module
        return
    count = seen.group.count
    if seen.candidate is None:
        found = next((each for each in seen.group.candidates if each.module is module), None)
        for each in _tensors(output) if found is not None else ():
            scores = scores_in(each, count)
            if scores is not None:
                seen.candidate, seen.scores = found, scores.clone()  # it may be changed in place
                break
    router = seen.candidate
    if router is not None and (module is router.module or module in router.around):
        _take_choices(seen, output)


def _take_choices(seen: _Seen, given: Any) -> None:
    if seen.scores is None or seen.counts is not None:
        return
    for each in _tensors(given):
        found = choices_in(each, seen.group.count, seen.scores.size(0))
        if found is not None:
            seen.counts, seen.dropped = found
            return


def _take_call(seen: _Seen, module: Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """An expert is called, or the module that holds all of them."""
    seen.began = True
    if seen.over:
        return
    if module is seen.group.stacked:
        _take_choices(seen, args)
        _take_choices(seen, kwargs)
        return
    rows = next((each for each in _tensors((args, kwargs)) if each.dim()), None)
    if rows is not None:
        seen.rows[id(module)] = seen.rows.get(id(module), 0) + rows.numel() // max(rows.size(-1), 1)


def _measured(seen: _Seen) -> _Measured:
    scores, router = seen.scores, seen.candidate
    assert scores is not None
    assert router is not None
    tokens, group, counts, dropped = scores.size(0), seen.group, seen.counts, seen.dropped
    rows = [seen.rows.get(id(each), 0) for each in group.called]
    if len(set(rows)) > 1:  # alike: each got all tokens, or a buffer of fixed size
        counts = on_device(rows, scores.device, torch.float32)
        if router.top_k and dropped is None:
            dropped = (1 - counts.sum() / (tokens * router.top_k)).clamp_min(0.0)
    elif counts is None and router.top_k:
        counts = counts_of(scores.topk(router.top_k, 1).indices, group.count)
    row = describe_router(scores, counts, tokens)
    if dropped is not None:
        row = torch.cat((row, dropped.to(row).view(1)))
    return _Measured(router.name, group.count, row, dropped is not None)


PROBES: tuple[ProbeFactory, ...] = (lambda context: RouterProbe(context.guard, context.layers, context.models),)
