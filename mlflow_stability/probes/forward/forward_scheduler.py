"""Open forward probes when they are due, and close them whatever happens.

A probe is open during one forward pass of a model that trains and never beyond, even after an exception or Ctrl-C; each
fails alone. Of a model with compiled parts, the probes observe the same pass run once more without the compiler, before
the real one, where that changes nothing; the reason why a model is not measured inside is reported once. Where compiled
code turns up in the middle of a pass, they are closed before it runs, and observe the next pass of that model.

Each model counts its own steps: the two halves of a GAN are each measured in their own.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from mlflow_stability.kinds.reported.setup import NotMeasuredFacts, Unmeasured
from mlflow_stability.probes.block import Block
from mlflow_stability.probes.forward.compiled_models import (
    CompiledCodeWatch,
    compiled,
    depth_of,
    ran_compiled,
    too_deep,
)
from mlflow_stability.probes.forward.forward_watch import ForwardObserver
from mlflow_stability.probes.gradient_norm import is_split, parameters_of, world_size
from mlflow_stability.probes.hooks.module_calls import RunningPass
from mlflow_stability.probes.model_discovery import parameters_in
from mlflow_stability.probes.module_names import unwrapped
from mlflow_stability.probes.probe import BaseProbe, ForwardProbe, Guard
from mlflow_stability.probes.rerun.forward_rerun import SecondPass
from mlflow_stability.vocabulary.result import Action, Finding, Remedy, Severity

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


class ForwardScheduler(ForwardObserver, BaseProbe):
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
        self.busy = False
        """Whether a probe may be open or have measurements; else optimizer steps need nothing."""
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
            why = (
                f"its modules are nested {depth_of(root)} levels deep, and hooks on them might exceed the "
                "recursion limit of "
            )
            why += f"{sys.getrecursionlimit():,} calls; raise it with sys.setrecursionlimit()"
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
            self._emit(not_measured_inside(type(unwrapped(root)).__name__, why, self.step))


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


def unseen_parts(models: Sequence[Module], optimizers: Sequence[Optimizer], step: int) -> list[Finding]:
    """Return findings at INFO about parameters that cannot be measured, and what to do: at most one for each reason."""
    trained = [
        parameter for optimizer in optimizers for parameter in parameters_of(optimizer) if parameter.requires_grad
    ]
    findings = (_hidden(models, trained, step), _split(trained, step))
    return [finding for finding in findings if finding is not None]


def not_measured_inside(model: str, why: str, step: int) -> Finding:
    """Return the finding that the inside of a model is not measured, and why."""
    facts = NotMeasuredFacts(Unmeasured.INSIDE, model, why)
    remedies = (Remedy(Action.NO_ACTION_FOR_UNMEASURED),)
    return Finding.at(facts, step, Severity.INFO, remedies=remedies)


def _hidden(models: Sequence[Module], trained: Sequence[Tensor], step: int) -> Finding | None:
    """Frozen objects are not among those that Python lists: https://docs.python.org/3/library/gc.html#gc.freeze"""
    owned = {id(parameter) for model in models for parameter in parameters_in(model)}
    hidden = [parameter for parameter in trained if id(parameter) not in owned]
    # Counting walks over all frozen objects: 0.1 s for a million.
    if not hidden or not gc.get_freeze_count():
        return None
    facts = NotMeasuredFacts(Unmeasured.HIDDEN_MODEL, parameters=len(hidden), of_parameters=len(trained))
    remedies = (Remedy(Action.CALL_GC_FREEZE_LATER),)
    return Finding.at(facts, step, Severity.INFO, remedies=remedies)


def _split(trained: Sequence[Tensor], step: int) -> Finding | None:
    split = [parameter for parameter in trained if is_split(parameter)]
    if not split:
        return None
    facts = NotMeasuredFacts(
        Unmeasured.SPLIT_PARAMETERS,
        parameters=len(split),
        of_parameters=len(trained),
        one_process=world_size() == 1,
    )
    remedies = (Remedy(Action.NO_ACTION_FOR_SHARDS),)
    return Finding.at(facts, step, Severity.INFO, remedies=remedies)
