"""Opens the probes that look into a forward pass, when they are due, and closes them whatever happens.

In: forward passes of training, from a `ForwardWatch`, and optimizer steps, from a survey. Out: what the probes
measured, as the blocks of that capture. Guarantees: a probe is open during one forward pass of a model that trains and
never beyond, not after an exception and not after Ctrl-C; each fails alone; what is compiled is not touched. Of a model
of which anything is, the probes look at the same pass run once more without the compiler, before the real one, where
that can change nothing; why a model is not looked into is told once. Where compiled code turns up in the middle of a
pass, they step back before it runs, and have their look at the next pass of that model.

Each model counts its own turns: of the two halves of a GAN each is looked at in its own.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.nn import Module

from mlflow_stability.probes.block import Block
from mlflow_stability.probes.forward.compiled_models import (
    CompiledCodeWatch,
    compiled,
    depth_of,
    ran_compiled,
    too_deep,
)
from mlflow_stability.probes.forward.forward_watch import ForwardObserver
from mlflow_stability.probes.forward.unmeasured_parts import not_looked_into
from mlflow_stability.probes.hooks.module_calls import RunningPass
from mlflow_stability.probes.objects.module_names import unwrapped
from mlflow_stability.probes.probe import BaseProbe, ForwardProbe, Guard
from mlflow_stability.probes.rerun.forward_rerun import SecondPass
from mlflow_stability.vocabulary.result import Finding

UNFIT = frozenset({"ScriptModule", "DataParallel"})
"""Classes of models that are left alone: hooks do not run in them, or in several threads at once."""


MOST_TOLD = 4
"""So many reasons for looking into no pass are told in a recording."""


class _Model:
    """What is known of a model."""

    __slots__ = ("capture", "missed", "next_due", "own_step", "root")

    def __init__(self, root: Module, own_step: int, forget: Callable[[Any], object]) -> None:
        self.root = weakref.ref(root, forget)
        self.own_step = own_step
        """How many captures it has trained."""
        self.next_due = 0
        """Before this turn nobody wants to look."""
        self.capture = -1
        """In which capture it was called last."""
        self.missed: tuple[_GuardedProbe, ...] = ()
        """Who had to step back, and looks at the next pass instead."""


class ForwardScheduler(ForwardObserver, BaseProbe):
    """A listener to forward passes, and a probe of a survey, that leads forward probes."""

    part = "forward probes"

    def __init__(
        self,
        guard: Guard,
        probes: Sequence[ForwardProbe],
        first_step: int,
        emit: Callable[[Finding], None] = lambda _: None,
    ) -> None:
        self._guarded_probes = tuple(_GuardedProbe(each, guard) for each in probes)
        self._close = guard("closing of forward probes", self._close_all)
        self._compiled_code = CompiledCodeWatch(self._on_compiled)
        self._second_pass = SecondPass()
        self._models: dict[int, _Model] = {}
        """By identity."""
        self.step = first_step
        """The step in progress."""
        self.capture = 0
        """The capture in progress."""
        self.busy = False
        """Whether there may be anything to be taken off or to be asked for: else optimizer steps are of no interest."""
        self._open: list[_GuardedProbe] = []
        self._root: weakref.ref[Module] | None = None
        """The model they look into."""
        self._alive: RunningPass | None = None
        """Of the pass that is being looked into."""
        self._emit = guard(self.part, emit)
        self._told: set[str] = set()
        """Why models are not looked into, as it was told."""
        self._run_second_pass = guard(self.part, self._look_at_second_pass)

    def forward_began(self, root: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Look into this pass, if it is the first one of its model in a capture in which somebody wants to."""
        if self.busy:
            self._settle()
        model = self._models.get(id(root))
        if model is None:
            model = self._met(root)
        if model.capture == self.capture:
            return False
        model.capture = self.capture
        model.own_step += 1
        own_step, missed = model.own_step, model.missed
        if own_step < model.next_due and not missed:
            return False
        model.missed = ()
        due = [each for each in self._guarded_probes if each.due(own_step) or each in missed]
        model.next_due = min([each.next_due(own_step) or 0 for each in self._guarded_probes], default=sys.maxsize)
        if not due or any(kind.__name__ in UNFIT for kind in type(root).__mro__):
            return False
        if too_deep(root):
            why = (
                f"its modules are nested {depth_of(root)} levels deep, and hooks on them might exceed the "
                "recursion limit of "
            )
            why += f"{sys.getrecursionlimit():,} calls; raise it with sys.setrecursionlimit()"
            self._not_looked_into(root, why)
            return False
        self.busy = True
        if compiled(root) != "no":
            self._run_second_pass(due, root, args, kwargs)
        else:
            self._alive = RunningPass(root)
            self._root = weakref.ref(root)
            self._compiled_code.put_on()
            self._open_for(due, root, self._alive)
        return True

    def forward_ended(self) -> None:
        """The pass is over."""
        if self._open:
            self._close(True)

    def forward_failed(self) -> None:
        """The pass raised an exception."""
        if self._open:
            self._close(False)

    def due(self, step: int) -> bool:
        """The first optimizer step of a capture: what was measured in it is asked for in any case."""
        self.step, self.capture = step + 1, self.capture + 1
        if not self.busy:
            return False
        self._settle()
        self.busy = any(each.looked for each in self._guarded_probes)
        return self.busy

    def next_due(self, step: int) -> int:
        """A survey goes by `busy`."""
        return step + 1

    def blocks(self, _step: int) -> Sequence[Block]:
        """What was measured."""
        found: list[Block] = []
        for each in self._guarded_probes:
            if each.looked:
                each.looked = False
                found += each.blocks() or ()
        return found

    def pass_over(self) -> None:
        """No pass is going on any more: we look away for a while."""
        self._settle()

    def finish(self) -> None:
        """The recording ends."""
        self._settle()
        for each in self._guarded_probes:
            each.finish()

    def _met(self, root: Module) -> _Model:
        """A model is called for the first time."""
        key, models = id(root), self._models

        def forget(_: Any) -> None:
            models.pop(key, None)

        models[key] = _Model(root, self.step - 1, forget)
        return models[key]

    def _open_for(self, due_probes: Sequence[_GuardedProbe], root: Module, alive: Callable[[], bool]) -> None:
        for each in due_probes:
            self._open.append(each)  # first, so that one that fails half-way is closed with the others
            each.open(root, self.step, alive)

    def _on_compiled(self, is_compiled: bool) -> None:
        """Something compiled runs, or is made or traced, in the middle of the pass: not with us in it."""
        root = None if self._root is None else self._root()
        if root is not None and is_compiled:
            ran_compiled(root)
            self._models[id(root)].missed = tuple(self._open)
        if self._open:
            self._close(False)

    def _close_all(self, whole: bool) -> None:
        self._compiled_code.take_off()
        while self._open:
            guarded = self._open[-1]  # as with brackets; one that Ctrl-C keeps open is closed again later
            guarded.looked |= whole
            guarded.close(whole)
            del self._open[-1:]
        if self._alive is not None:
            self._alive.over()

    def _settle(self) -> None:
        """Nothing of an earlier pass is left."""
        self._compiled_code.take_off()
        if self._open:
            self._close(False)

    def _look_at_second_pass(
        self, due_probes: Sequence[_GuardedProbe], root: Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        second, whole = self._second_pass, False
        try:
            with second.of(root, args, kwargs) as (model, run):
                if model is not None:
                    self._open_for(due_probes, model, lambda: True)
                    whole = run()
        finally:
            self._close(whole)
        if second.reason:
            self._not_looked_into(root, second.reason)

    def _not_looked_into(self, root: Module, why: str) -> None:
        if why not in self._told and len(self._told) < MOST_TOLD:
            self._told.add(why)
            self._emit(not_looked_into(type(unwrapped(root)).__name__, why, self.step))


class _GuardedProbe:
    """A forward probe, made harmless."""

    __slots__ = ("blocks", "close", "due", "finish", "looked", "next_due", "open")

    def __init__(self, probe: ForwardProbe, guard: Guard) -> None:
        self.looked = False
        """Whether there is something to ask it for."""
        self.due: Callable[[int], bool | None] = guard(probe.part, probe.due)
        self.next_due: Callable[[int], int | None] = guard(probe.part, probe.next_due)
        self.open: Callable[[Module, int, Callable[[], bool]], Any] = guard(probe.part, probe.open)
        self.close = probe.close  # not under its own part: one that is switched off must still be closed
        self.blocks: Callable[[], Sequence[Block] | None] = guard(probe.part, probe.blocks)
        self.finish: Callable[[], Any] = guard(probe.part, probe.finish)
