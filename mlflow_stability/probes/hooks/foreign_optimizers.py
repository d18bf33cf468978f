"""Watches the steps of optimizers that are no `torch.optim.Optimizer`: those of Keras on torch, and of fastai.

In: the libraries that the script has loaded. Out: the same two calls, before and after a step, as for torch's own.
Guarantees: no library is imported; one that has changed is left alone, and the part is switched off; a step whose
gradients were taken away is not made.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from torch.optim import Optimizer

from mlflow_stability.probes.hooks.hook_handles import HookHandles
from mlflow_stability.probes.hooks.optimizer_views import VIEWS, OptimizerView
from mlflow_stability.probes.hooks.training_thread import TrainingThread
from mlflow_stability.probes.probe import Guard

PART = "optimizers of other libraries"


class ForeignOptimizers:
    """The views of all foreign optimizers that stepped."""

    def __init__(
        self,
        guard: Guard,
        handles: HookHandles,
        thread: TrainingThread,
        before: Callable[[Optimizer], None],
        after: Callable[[Optimizer], None],
    ) -> None:
        self._handles, self._thread = handles, thread
        self._before, self._after = before, after
        self._views: WeakKeyDictionary[Any, OptimizerView] = WeakKeyDictionary()
        self._watched: set[type[OptimizerView]] = set()
        self.modules = 0
        """How many modules were loaded at the last look."""
        self._begin = guard(PART, self._begun)
        self._take_over = guard(PART, self._taken_over)
        self._end = guard(PART, self._ended)

    def look(self) -> None:
        """Watch what the script has loaded since."""
        self.modules = len(sys.modules)
        for kind in VIEWS:
            owner = getattr(sys.modules.get(kind.MODULE), kind.CLASS, None)
            if kind not in self._watched and hasattr(owner, kind.STEP):
                self._watched.add(kind)
                self._handles.patch(owner, kind.STEP, partial(self._around_step, kind), self._thread)

    def forget(self) -> None:
        """The handles are removed."""
        self._watched.clear()
        self.modules = 0

    def _around_step(
        self, kind: type[OptimizerView], original: Callable[..., Any], theirs: Any, *args: Any, **kwargs: Any
    ) -> Any:
        view: OptimizerView | None = self._begin(kind, theirs, args, kwargs)
        if view is None:
            return original(theirs, *args, **kwargs)
        try:
            self._before(view)
            # Gradients that are there are taken away to skip the step.
            result = original(theirs, *args, **kwargs) if self._take_over(view, theirs) is not False else None
        finally:
            self._end(view, theirs)
        self._after(view)
        return result

    def _begun(
        self, kind: type[OptimizerView], theirs: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> OptimizerView | None:
        view = self._views.get(theirs)
        if view is None:
            view = self._views[theirs] = kind.of(theirs)
        view.begin(theirs, args, kwargs)
        if not view.has_gradients:
            view.end(theirs)
            return None
        return view

    @staticmethod
    def _taken_over(view: OptimizerView, theirs: Any) -> bool:
        """Whether the step is to be made."""
        view.take_over(theirs)
        return view.has_gradients

    @staticmethod
    def _ended(view: OptimizerView, theirs: Any) -> None:
        view.end(theirs)
