"""Observe the forward passes of training, and open probes inside them when they are due.

Only the outermost module that the script calls is observed, and no call inside a compiled region. A probe is open
during one forward pass of a model that trains and never beyond, even after an exception or Ctrl-C; each fails alone. Of
a model with compiled parts, the same pass is run once more without the compiler, before the real one, where that
changes nothing. Where compiled code turns up in the middle of a pass, probes are closed before it runs, and observe the
next one. Each model counts its own steps: the two halves of a GAN are each measured in their own.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from threading import get_ident
from typing import Any

import torch
from torch.nn import Module
from torch.optim import Optimizer

from mlflow_stability.kinds.reported.setup import NotMeasuredFacts, Unmeasured
from mlflow_stability.probes.forward.compiled_models import (
    CompiledCodeWatch,
    compiled,
    depth_of,
    ran_compiled,
    too_deep,
)
from mlflow_stability.probes.forward.forward_rerun import SecondPass
from mlflow_stability.probes.hooks.module_calls import MODULE_CALLS, RunningPass, running_calls
from mlflow_stability.probes.model_discovery import models_of, unwrapped
from mlflow_stability.probes.performance.step_timing import MOST_MOMENTS, Mark, StepSplit
from mlflow_stability.probes.probe import ForwardProbe, Guard, Probe
from mlflow_stability.probes.step.readback import Block
from mlflow_stability.vocabulary.result import Action, Finding, Remedy, Severity

_BEGAN, _ENDED, _EVALUATED = int(Mark.FORWARD_BEGAN), int(Mark.FORWARD_ENDED), int(Mark.EVALUATED)
MAX_UNCALLED_STEPS = 2  # after this many steps without a call, modules inside are observed instead
MAX_PARTS = 32  # observing each of very many parts would cost too much
MAX_SEARCHES = 8  # a script that makes an optimizer for every sample has no model to follow


class ForwardObserver:
    """Base of observers of forward passes; methods that are not overridden are not called."""

    part = "forward passes"  # the part that is switched off where it fails
    observes = True  # whether `forward_began` is called for the next pass

    def forward_began(self, root: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool | None:
        """Runs right before a forward pass of training; after False, `forward_ended` is not called."""

    def forward_gave(self, outputs: Any) -> None: ...

    def forward_ended(self) -> None: ...

    def forward_failed(self) -> None:
        """Runs instead of that where the forward pass raised an exception."""

    def evaluated(self) -> None:
        """Runs after a forward pass that is no part of training."""

    def gradients_begin(self) -> None: ...

    def gradients_end(self) -> None:
        """Runs after it, failed or not."""


class _Root:
    __slots__ = ("call_began", "call_ended", "call_failed", "look_away", "module")

    def __init__(
        self,
        module: Module,
        began: Callable[[Module, tuple[Any, ...], dict[str, Any]], object],
        ended: Callable[[Module, tuple[Any, ...], Any], object],
        failed: Callable[[Module], object],
    ) -> None:
        self.module = weakref.ref(module)
        self.call_began, self.call_ended, self.call_failed = began, ended, failed
        self.look_away = MODULE_CALLS.observe(module, self)


class ForwardWatch:
    def __init__(self, guard: Guard, observers: Sequence[ForwardObserver], split: StepSplit | None = None) -> None:
        self._split = StepSplit() if split is None else split  # records when passes begin and end, after all observers
        self.guard = guard
        self._began = tuple(
            [(observer, observer.forward_began, _overridden(observer, "forward_ended")) for observer in observers]
        )
        self._to_end: list[Callable[[], None]] = []  # called at the end of the open pass
        self._gave = _by_part("forward_gave", observers)
        self._did_fail = _by_part("forward_failed", observers)
        self._evaluated = [emit for _, emit in _by_part("evaluated", observers)]
        self.gradients_begin = _by_part("gradients_begin", observers)  # called before a backward pass
        self.gradients_end = _by_part("gradients_end", observers)
        self._before = guard("forward passes", self._begins)
        self._after = guard("forward passes", self._ends)
        self._failed = guard("forward passes", self._fails)
        self._known: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._searches = 0
        self._watched: dict[int, _Root] = {}  # by the identity of the module
        self._part_of: dict[int, weakref.ref[Module]] = {}
        """For modules that are observed instead of the model that they belong to: that model."""
        self._uncalled: dict[int, int] = {}
        """Modules that were not called yet, and the number of steps since they were found."""
        self.opened = 0  # identity of the module that is being called, or 0
        self._within = False  # whether it was called again within that call
        self._thread = 0
        self.in_backward = False  # whether a backward pass is running: calls inside it recompute a checkpoint
        self._on_cuda = False

    @property
    def models(self) -> tuple[Module, ...]:
        """The models that train; one whose parts the script calls itself is one model."""
        models: dict[int, Module] = {}
        for key, root in self._watched.items():
            whole = self._part_of.get(key)
            model = root.module() if whole is None else whole()
            if model is not None:
                models.setdefault(id(model), model)
        return tuple(models.values())

    def before_step(self, optimizer: Optimizer) -> None:
        """Find the models of a new optimizer; runs before each optimizer step."""
        self._give_up()
        if optimizer not in self._known:
            self._known.add(optimizer)
            self._thread = get_ident()
            if self._searches < MAX_SEARCHES:
                self._searches += 1
                for root in models_of([optimizer]):
                    self._watch(root)
        elif self._uncalled:
            self._look_deeper()

    def backward_began(self) -> None:
        self.in_backward = True
        if self.opened:
            self._give_up()

    def backward_ended(self) -> None:
        self.in_backward = False

    def remove(self) -> None:
        self._give_up()
        for root in self._watched.values():
            root.look_away()
        self._watched.clear()
        self._uncalled.clear()

    def _watch(self, root: Module) -> None:
        if id(root) in self._watched and self._watched[id(root)].module() is root:
            return
        self._on_cuda |= any(parameter.is_cuda for parameter in Module.parameters(root))
        self._watched[id(root)] = _Root(root, self._before, self._after, self._failed)
        self._uncalled[id(root)] = 0

    def _look_deeper(self) -> None:
        """Lightning and the like call a method of the outermost module, which then calls the model, or its parts."""
        for key, steps in list(self._uncalled.items()):
            self._uncalled[key] = steps + 1
            if steps + 1 < MAX_UNCALLED_STEPS:
                continue
            del self._uncalled[key]
            uncalled = self._watched.pop(key)
            uncalled.look_away()
            root, whole = uncalled.module(), self._part_of.pop(key, None)
            parts = [] if root is None else _parts_of(root)
            if root is None or len(self._watched) + len(parts) > MAX_PARTS:
                continue
            if len(parts) > 1 and whole is None:
                whole = weakref.ref(root)
            for part in parts:
                if id(part) not in self._watched and whole is not None:
                    self._part_of[id(part)] = whole
                self._watch(part)

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
            self.opened = 0  # last: after Ctrl-C before this line, the next call gives up this pass
        elif not self.opened and not self.in_backward:
            for emit in self._evaluated:
                emit()
            self._split.mark(_EVALUATED)
            if len(self._split.moments) >= MOST_MOMENTS:
                self._split.add_up()

    def _give_up(self) -> None:
        """End the open pass as failed: it has not ended, or its end will not be observed."""
        if self.opened:
            for part, emit in self._did_fail:
                try:
                    if part not in self.guard.off:
                        emit()
                except BaseException as error:
                    self.guard.contain(part, error)
            self.opened = 0

    def _fails(self, root: Module) -> None:
        within = self._within and running_calls(self.opened) > 1  # a call within the observed one
        if get_ident() == self._thread and self.opened == id(root) and not within:
            self._give_up()


def _by_part(name: str, observers: Sequence[ForwardObserver]) -> tuple[tuple[str, Callable[..., Any]], ...]:
    """Methods that observers override, each with the part that is switched off where it fails."""
    return tuple(
        [(observer.part, method) for observer in observers if (method := _overridden(observer, name)) is not None]
    )


def _overridden(observer: ForwardObserver, name: str) -> Callable[..., Any] | None:
    """A method of an observer, or None where it does not override it."""
    method: Callable[..., Any] = getattr(observer, name)
    return None if getattr(method, "__func__", None) is getattr(ForwardObserver, name) else method


def _parts_of(root: Module) -> list[Module]:
    """Its child modules with parameters; none where it has parameters of its own and one such child."""
    children = [module for module in root._modules.values() if module is not None]
    owners = [module for module in children if any(True for _ in Module.parameters(module))]
    alone = len(owners) == 1 and any(parameter is not None for parameter in root._parameters.values())
    return [] if alone else list(dict.fromkeys(owners))


UNSUPPORTED = frozenset({"ScriptModule", "DataParallel"})
"""Classes of models that are not measured inside: hooks do not run in them, or in several threads at once."""
MAX_REPORTED = 4  # reasons for measuring no pass that are reported in a recording


class _Model:
    __slots__ = ("capture", "missed", "next_due", "own_step", "root")

    def __init__(self, root: Module, own_step: int, forget: Callable[[Any], object]) -> None:
        self.root = weakref.ref(root, forget)
        self.own_step = own_step  # the number of captures that it has trained
        self.next_due = 0  # no probe is due before this step of the model
        self.capture = -1  # the capture of its last call
        self.missed: tuple[_GuardedProbe, ...] = ()
        """Probes that were closed for compiled code, and observe the next pass instead."""


class ForwardScheduler(ForwardObserver, Probe):
    """Observes forward passes, and runs forward probes in them."""

    part = "forward probes"

    def __init__(
        self,
        guard: Guard,
        probes: Sequence[ForwardProbe],
        first_step: int,
        emit: Callable[[Finding], None] = lambda _: None,
    ) -> None:
        self._guarded_probes = tuple(_GuardedProbe(probe, guard) for probe in probes)
        self._close = guard("closing of forward probes", self._close_all)
        self._compiled_code = CompiledCodeWatch(self._on_compiled)
        self._second_pass = SecondPass()
        self._models: dict[int, _Model] = {}  # by identity
        self.step = first_step  # the step in progress
        self.capture = 0  # the capture in progress
        self.busy = False  # whether a probe may be open or have measurements; else optimizer steps need nothing
        self._open: list[_GuardedProbe] = []
        self._root: weakref.ref[Module] | None = None  # the model of the open probes
        self._alive: RunningPass | None = None  # the pass of the open probes
        self._emit = guard(self.part, emit)
        self._reported: set[str] = set()  # reasons why models are not measured inside
        self._run_second_pass = guard(self.part, self._measure_second_pass)

    def forward_began(self, root: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Open the probes that are due, in the first pass of this model in a capture."""
        if self.busy:
            self._settle()
        model = self._models.get(id(root))
        if model is None:
            model = self._add_model(root)
        if model.capture == self.capture:
            return False
        model.capture = self.capture
        model.own_step += 1
        own_step, missed = model.own_step, model.missed
        if own_step < model.next_due and not missed:
            return False
        model.missed = ()
        due = [probe for probe in self._guarded_probes if probe.due(own_step) or probe in missed]
        model.next_due = min([probe.next_due(own_step) or 0 for probe in self._guarded_probes], default=sys.maxsize)
        if not due or any(kind.__name__ in UNSUPPORTED for kind in type(root).__mro__):
            return False
        if too_deep(root):
            why = f"its modules are nested {depth_of(root)} levels deep, and hooks on them might exceed the recursion "
            why += f"limit of {sys.getrecursionlimit():,} calls; raise it with sys.setrecursionlimit()"
            self._report_unmeasured(root, why)
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
        if self._open:
            self._close(True)

    def forward_failed(self) -> None:
        """The pass raised an exception."""
        if self._open:
            self._close(False)

    def due(self, step: int) -> bool:
        """Begin a capture; it is due where a probe has measurements."""
        self.step, self.capture = step + 1, self.capture + 1
        if not self.busy:
            return False
        self._settle()
        self.busy = any(probe.has_measured for probe in self._guarded_probes)
        return self.busy

    def next_due(self, step: int) -> int:
        """Return the next step; `busy` tells whether it is due."""
        return step + 1

    def blocks(self, _step: int) -> Sequence[Block]:
        blocks: list[Block] = []
        for probe in self._guarded_probes:
            if probe.has_measured:
                probe.has_measured = False
                blocks += probe.blocks() or ()
        return blocks

    def pass_over(self) -> None:
        """Close the probes of an unfinished pass."""
        self._settle()

    def finish(self) -> None:
        self._settle()
        for probe in self._guarded_probes:
            probe.finish()

    def _add_model(self, root: Module) -> _Model:
        key, models = id(root), self._models

        def forget(_: Any) -> None:
            models.pop(key, None)

        models[key] = _Model(root, self.step - 1, forget)
        return models[key]

    def _open_for(self, due_probes: Sequence[_GuardedProbe], root: Module, alive: Callable[[], bool]) -> None:
        for probe in due_probes:
            self._open.append(probe)  # first, so that one that fails half-way is closed with the others
            probe.open(root, self.step, alive)

    def _on_compiled(self, is_compiled: bool) -> None:
        """Close the probes when compiled code runs, or is made or traced, in the middle of the pass."""
        root = None if self._root is None else self._root()
        if root is not None and is_compiled:
            ran_compiled(root)
            self._models[id(root)].missed = tuple(self._open)
        if self._open:
            self._close(False)

    def _close_all(self, whole: bool) -> None:
        self._compiled_code.take_off()
        while self._open:
            probe = self._open[-1]  # in reverse order; one that Ctrl-C keeps open is closed again later
            probe.has_measured |= whole
            probe.close(whole)
            del self._open[-1:]
        if self._alive is not None:
            self._alive.over()

    def _settle(self) -> None:
        """Close what an earlier pass left open."""
        self._compiled_code.take_off()
        if self._open:
            self._close(False)

    def _measure_second_pass(
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
            self._report_unmeasured(root, second.reason)

    def _report_unmeasured(self, root: Module, why: str) -> None:
        if why not in self._reported and len(self._reported) < MAX_REPORTED:
            self._reported.add(why)
            facts = NotMeasuredFacts(Unmeasured.INSIDE, type(unwrapped(root)).__name__, why)
            remedies = (Remedy(Action.NO_ACTION_FOR_UNMEASURED),)
            self._emit(Finding.at(facts, self.step, Severity.INFO, remedies=remedies))


class _GuardedProbe:
    """A forward probe whose errors do not reach the training."""

    __slots__ = ("blocks", "close", "due", "finish", "has_measured", "next_due", "open")

    def __init__(self, probe: ForwardProbe, guard: Guard) -> None:
        self.has_measured = False  # whether it has measurements of this capture
        self.due: Callable[[int], bool | None] = guard(probe.part, probe.due)
        self.next_due: Callable[[int], int | None] = guard(probe.part, probe.next_due)
        self.open: Callable[[Module, int, Callable[[], bool]], Any] = guard(probe.part, probe.open)
        self.close = probe.close  # not guarded: a probe that is switched off must still be closed
        self.blocks: Callable[[], Sequence[Block] | None] = guard(probe.part, probe.blocks)
        self.finish: Callable[[], Any] = guard(probe.part, probe.finish)
