"""Runs the forward pass of a compiled model once more without the compiler, for those who want to look into it.

In: a model and what it is about to be called with. Out: the model inside, and a call that runs it. Promised: nothing of
the training changes by it and nothing is compiled again: random numbers, buffers, inputs, and whatever else the call
could change, are those from before; hooks of the script do not run. Where that cannot be promised nothing is run, and
`reason` says why; what the model raises goes no further than here.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.nn import Module

from mlflow_stability.probes.reachable_state import ReachableState
from mlflow_stability.probes.replay import hooks_muted, random_numbers_kept, run_again, unwrapped
from mlflow_stability.probes.script_errors import raised_by_script
from mlflow_stability.probes.script_modes import mode_of_script
from mlflow_stability.probes.written_tensors import NotRunAgain

MOST_FAILURES = 2
"""A model whose second pass fails so often in a row is not run a second time any more."""


class SecondPass:
    """Second passes of the models of one training."""

    def __init__(self) -> None:
        self.reason = ""
        """Why the last one was not run; empty: it was."""
        self._failures: weakref.WeakKeyDictionary[Module, list[str]] = weakref.WeakKeyDictionary()
        """What the second passes of a model have raised in a row."""

    @contextlib.contextmanager
    def of(
        self, root: Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Iterator[tuple[Module | None, Callable[[], bool]]]:
        """The model inside, None where it is not to be run again; and what runs it and says whether it came through."""
        failures = self._failures.setdefault(root, [])
        if len(failures) >= MOST_FAILURES:
            self.reason = f"it failed {len(failures)} times in a row when it was run once more without the compiler"
            self.reason += f" ({failures[-1]})"
            yield None, lambda: False
            return
        model = unwrapped(root)
        state = ReachableState(model, args, kwargs, with_hooks=False)
        self.reason = _refusal(state)
        if self.reason:
            yield None, lambda: False
            return
        devices = list(dict.fromkeys(each.device for each in (*Module.parameters(model), *Module.buffers(model))))
        kind = (devices or [torch.device("cpu")])[0].type
        autocast = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)

        def run() -> bool:
            before = sys.exc_info()[1]
            try:
                run_again(model, args, kwargs, kind, autocast, state)
            except (Exception, NotRunAgain) as error:
                theirs = raised_by_script(error, before)
                if theirs is not None:
                    raise theirs from None
                given_up = isinstance(error, NotRunAgain)
                first_line = str(error).partition("\n")[0][:200]
                failures.append(first_line if given_up else f"{type(error).__name__}: {first_line}")
                return False
            failures.clear()
            return True

        # What torch says of eager calls is not for the script, and would end one that takes warnings for errors.
        # Compiled code is not thrown away by this: what it was compiled for is again as it was when it runs next.
        with (
            warnings.catch_warnings(),
            random_numbers_kept(devices),
            hooks_muted(model),
            torch.compiler.set_stance("force_eager"),
        ):
            warnings.simplefilter("ignore")
            yield model, run


def _refusal(state: ReachableState) -> str:
    if (
        torch.distributed.is_available()
        and torch.distributed.is_initialized()
        and torch.distributed.get_world_size() > 1
    ):
        return "other processes would have to run it, too"
    mode = mode_of_script()
    if mode:
        return f"{mode}, which is on, would see it run twice"
    return state.refusal and f"running it once more without the compiler might change the training: {state.refusal}"
