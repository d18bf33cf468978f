"""Hears when the model that a script trains is called, and when it is done.

In: optimizers before their steps. Out: calls to listeners around each forward pass that is part of training.
Guarantees: nothing is put on any module; only the outermost module that the script calls is watched, and no call
inside a compiled region.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any

import torch
from torch.nn import Module
from torch.optim import Optimizer

from mlflow_stability.probes.hooks.module_calls import MODULE_CALLS, WatchedCalls, running_calls
from mlflow_stability.probes.objects.model_discovery import models_of
from mlflow_stability.probes.performance.step_timing import MOST_MOMENTS, Mark, StepSplit
from mlflow_stability.probes.probe import Guard

_BEGAN, _ENDED, _EVALUATED = int(Mark.FORWARD_BEGAN), int(Mark.FORWARD_ENDED), int(Mark.EVALUATED)
PATIENCE = 2
"""After so many steps without a call, the script is taken to call not this module but those inside it."""
MOST_PARTS = 32
"""A script that calls each of very many parts itself would pay for the watch of each."""
MOST_SEARCHES = 8
"""A script that makes an optimizer for every sample has no model that could be followed."""


class ForwardObserver:
    """Who wants to know; what a listener leaves as it is here is not called."""

    part = "forward passes"
    """What is switched off where it fails."""
    observes = True
    """Whether it is to be told of the beginning of the next pass."""

    def forward_began(self, root: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool | None:
        """Runs right before a forward pass of training; False: its end need not be told."""

    def forward_gave(self, outputs: Any) -> None:
        """Runs right after it, with what came out."""

    def forward_ended(self) -> None:
        """Runs after that."""

    def forward_failed(self) -> None:
        """Runs instead of that where the forward pass raised an exception."""

    def evaluated(self) -> None:
        """Runs after a forward pass that is no part of training."""

    def gradients_begin(self) -> None:
        """Runs before a backward pass."""

    def gradients_end(self) -> None:
        """Runs after it, failed or not."""


class _Root:
    """A module that is watched: the observer of its calls."""

    __slots__ = ("call_began", "call_ended", "call_failed", "module", "watched")

    def __init__(
        self,
        module: Module,
        began: Callable[[Module, tuple[Any, ...], dict[str, Any]], object],
        ended: Callable[[Module, tuple[Any, ...], Any], object],
        failed: Callable[[Module], object],
    ) -> None:
        self.module = weakref.ref(module)
        self.call_began, self.call_ended, self.call_failed = began, ended, failed
        self.watched: WatchedCalls = MODULE_CALLS.observe(module, self)


class ForwardWatch:
    """The models of one training."""

    def __init__(self, guard: Guard, observers: Sequence[ForwardObserver], split: StepSplit | None = None) -> None:
        self._split = StepSplit() if split is None else split
        """Takes down when passes begin and end, when all others know."""
        self.guard = guard
        self._began = tuple([(each, each.forward_began, _taken(each, "forward_ended")) for each in observers])
        self._to_end: list[Callable[[], None]] = []
        """Who is to be told of the end of the pass that is open."""
        self._gave = _by_part("forward_gave", observers)
        self._did_fail = _by_part("forward_failed", observers)
        self._evaluated = _overriding("evaluated", observers)
        self.gradients_begin = _by_part("gradients_begin", observers)
        """Who is to be told of the beginning of a backward pass."""
        self.gradients_end = _by_part("gradients_end", observers)
        self._before = guard("forward passes", self._begins)
        self._after = guard("forward passes", self._ends)
        self._failed = guard("forward passes", self._fails)
        self._known: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._searches = 0
        self._watched: dict[int, _Root] = {}
        """By the identity of the module."""
        self._part_of: dict[int, weakref.ref[Module]] = {}
        """Of modules that are watched in the place of the model that they belong to: that model."""
        self._uncalled: dict[int, int] = {}
        """Modules that were not called yet, and how many steps ago they were met."""
        self.opened = 0
        """The module that is being called; zero: none is."""
        self._within = False
        """Whether it was called once more within that call."""
        self._thread = 0
        self.in_backward = False
        """Whether a backward pass is going on: what is called inside it is run again for a checkpoint."""
        self._on_cuda = False

    @property
    def models(self) -> tuple[Module, ...]:
        """The models that train; one whose parts the script calls itself is one model."""
        found: dict[int, Module] = {}
        for key, root in self._watched.items():
            whole = self._part_of.get(key)
            model = root.module() if whole is None else whole()
            if model is not None:
                found.setdefault(id(model), model)
        return tuple(found.values())

    def before_step(self, optimizer: Optimizer) -> None:
        """Runs before each optimizer step: look for the models of an optimizer that is new."""
        self._give_up()
        if optimizer not in self._known:
            self._known.add(optimizer)
            self._thread = get_ident()
            if self._searches < MOST_SEARCHES:
                self._searches += 1
                for root in models_of([optimizer]):
                    self._watch(root)
        elif self._uncalled:
            self._look_deeper()

    def backward_began(self) -> None:
        """Runs before a backward pass: what is called inside it is run again for a checkpoint."""
        self.in_backward = True
        if self.opened:
            self._give_up()

    def backward_ended(self) -> None:
        """Runs after it."""
        self.in_backward = False

    def remove(self) -> None:
        """Watch no module any more."""
        self._give_up()
        for root in self._watched.values():
            root.watched.remove()
        self._watched.clear()
        self._uncalled.clear()

    def _watch(self, root: Module) -> None:
        if id(root) in self._watched and self._watched[id(root)].module() is root:
            return
        self._on_cuda |= any(each.is_cuda for each in Module.parameters(root))
        self._watched[id(root)] = _Root(root, self._before, self._after, self._failed)
        self._uncalled[id(root)] = 0

    def _look_deeper(self) -> None:
        """Lightning and the like call a method of the outermost module, which then calls the model, or its parts."""
        for key, steps in list(self._uncalled.items()):
            self._uncalled[key] = steps + 1
            if steps + 1 < PATIENCE:
                continue
            del self._uncalled[key]
            uncalled = self._watched.pop(key)
            uncalled.watched.remove()
            root, whole = uncalled.module(), self._part_of.pop(key, None)
            parts = [] if root is None else _those_inside(root)
            if root is None or len(self._watched) + len(parts) > MOST_PARTS:
                continue
            if len(parts) > 1 and whole is None:
                whole = weakref.ref(root)
            for each in parts:
                if id(each) not in self._watched and whole is not None:
                    self._part_of[id(each)] = whole
                self._watch(each)

    def _begins(self, root: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if get_ident() != self._thread:
            return
        if self.opened:
            again = self.opened == id(root)
            if running_calls(self.opened) > again:
                self._within |= again
                return
            self._give_up()
        if (
            not root.training
            or not torch.is_grad_enabled()
            or self.in_backward
            or (self._on_cuda and torch.cuda.is_current_stream_capturing())
        ):
            return
        self.opened, self._within = id(root), False
        if self._uncalled:
            self._uncalled.pop(id(root), None)
        to_end, guard = self._to_end, self.guard
        to_end.clear()
        for observer, began, ended in self._began:
            if not observer.observes or observer.part in guard.off:
                continue
            try:
                if began(root, args, kwargs) is not False and ended is not None:
                    to_end.append(ended)
            except BaseException as error:
                guard.contain(observer.part, error)
        split = self._split
        if split.also is None:
            split.moments.append((_BEGAN, split.now()))
        else:
            split.mark(_BEGAN)

    def _ends(self, root: Module, _args: tuple[Any, ...], outputs: Any) -> None:
        if get_ident() != self._thread:
            return
        if self.opened == id(root) and not (self._within and running_calls(self.opened) > 1):
            for part, take in self._gave:
                try:
                    if part not in self.guard.off:
                        take(outputs)
                except BaseException as error:
                    self.guard.contain(part, error)
            for emit in self._to_end:
                emit()
            split = self._split
            if split.also is None:
                split.moments.append((_ENDED, split.now()))
            else:
                split.mark(_ENDED)
            if len(split.moments) >= MOST_MOMENTS:
                split.add_up()
            self.opened = 0  # after the rest: where Ctrl-C comes before, the next call has them give it up
        elif not self.opened and not self.in_backward:
            for emit in self._evaluated:
                emit()
            self._split.mark(_EVALUATED)
            if len(self._split.moments) >= MOST_MOMENTS:
                self._split.add_up()

    def _give_up(self) -> None:
        """The pass that is open has not ended as it should, or will not be heard to end."""
        if self.opened:
            for part, emit in self._did_fail:
                try:
                    if part not in self.guard.off:
                        emit()
                except BaseException as error:
                    self.guard.contain(part, error)
            self.opened = 0

    def _fails(self, root: Module) -> None:
        within = self._within and running_calls(self.opened) > 1  # it is a call within the one that was heard
        if get_ident() == self._thread and self.opened == id(root) and not within:
            self._give_up()


def _overriding(name: str, observers: Sequence[ForwardObserver]) -> tuple[Callable[..., Any], ...]:
    """What the listeners take."""
    return tuple([taken for each in observers if (taken := _taken(each, name)) is not None])


def _by_part(name: str, observers: Sequence[ForwardObserver]) -> tuple[tuple[str, Callable[..., Any]], ...]:
    """The same, each with the part that is switched off where it fails."""
    return tuple([(each.part, taken) for each in observers if (taken := _taken(each, name)) is not None])


def _taken(observer: ForwardObserver, name: str) -> Callable[..., Any] | None:
    """How a listener is told something; None where it does not want to be."""
    found: Callable[..., Any] = getattr(observer, name)
    return None if getattr(found, "__func__", None) is getattr(ForwardObserver, name) else found


def _those_inside(root: Module) -> list[Module]:
    """The modules right inside it that have parameters; none where it has parameters of its own and one of them."""
    inside = [each for each in root._modules.values() if each is not None]
    owners = [each for each in inside if any(True for _ in Module.parameters(each))]
    alone = len(owners) == 1 and any(each is not None for each in root._parameters.values())
    return [] if alone else list(dict.fromkeys(owners))
