"""Runs a forward pass a second time without changing the training.

In: a model and its arguments; for a compiled model, the module inside it. Out: the result of this run; `reason` where
nothing was run. Guarantees: gradients, parameters, buffers, inputs, random numbers, attributes and variables are
restored afterwards; nothing is compiled; hooks of the script do not run; exceptions of the model go no further. Files
that the script's code writes are not restored.

A mode of the script that would count the operations of the second run (a FLOP counter, say) prevents it.
"""

from __future__ import annotations

import contextlib
import random
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.func import functional_call
from torch.nn import Module
from torch.nn.modules import module as torch_module

from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.probes.hooks.script_errors import raised_by_script
from mlflow_stability.probes.objects.module_names import WRAPPERS
from mlflow_stability.probes.rerun.opaque_types import OURS
from mlflow_stability.probes.rerun.reachable_state import ReachableState
from mlflow_stability.probes.rerun.written_tensors import NotRunAgain, TrackedWrites, WrittenTensors

_HOOKS = ("_forward_pre_hooks", "_forward_hooks")


class _Passes(threading.local):
    again = 0


_passes = _Passes()


def runs_again() -> bool:
    """Whether what runs in this thread now is such a pass, and not one of the training."""
    return _passes.again > 0


def unwrapped(module: Module) -> Module:
    """The model itself, without what was wrapped around it: that one runs without a compiler or collectives."""
    for _ in range(len(WRAPPERS) + 1):
        inner = next((module._modules[name] for name in WRAPPERS if set(module._modules) == {name}), None)
        if inner is None:
            return module
        module = inner
    return module


def run_again(
    model: Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    device_type: str,
    autocast: tuple[bool, torch.dtype],
    state: ReachableState | None = None,
) -> Any:
    """What comes out of the model, without gradients and on copies of its buffers.

    `state` is what it could change, if that was noted already; `NotRunAgain` is raised where it cannot be put back.
    """
    state = state or ReachableState(model, args, kwargs, with_hooks=True)
    if state.refusal:
        raise NotRunAgain(state.refusal)
    stand_ins = {name: each.detach().clone() for name, each in Module.named_buffers(model)}
    given, named = torch_api.tree_map(
        lambda each: each.detach() if isinstance(each, torch.Tensor) else each, (args, dict(kwargs))
    )
    written = WrittenTensors()
    written.stand_ins(stand_ins.values(), watched=False)
    on, dtype = autocast
    # Weights that are cast without gradients must not be found in the cache by the pass that needs them.
    precision = torch.autocast(device_type, dtype=dtype, enabled=on, cache_enabled=False)
    with kept(state, written), torch.no_grad(), precision, TrackedWrites(written), own_pass():
        return functional_call(model, stand_ins, given, named)


@contextlib.contextmanager
def own_pass() -> Iterator[None]:
    """What runs inside is no pass of the training: `runs_again` says so to the probes."""
    _passes.again += 1
    try:
        yield
    finally:
        _passes.again -= 1


@contextlib.contextmanager
def kept(state: ReachableState, written: WrittenTensors) -> Iterator[None]:
    """What is changed inside is afterwards what it was."""
    try:
        yield
    finally:
        try:
            written.restore()
        finally:
            written.moved |= state.restore()


@contextlib.contextmanager
def random_numbers_kept(devices: Iterable[torch.device]) -> Iterator[None]:
    """Whatever is drawn inside, the generators are afterwards where they were: the host's and those of the devices."""
    far = [each for each in dict.fromkeys(devices) if each.type not in ("cpu", "meta")]
    host, python = torch.get_rng_state(), random.getstate()
    states = [torch.get_device_module(each).get_rng_state(each) for each in far]
    numpy: Any = sys.modules.get("numpy.random")  # a script that has not loaded it draws nothing from it
    numpys = None if numpy is None else numpy.get_state()
    try:
        yield
    finally:
        torch.set_rng_state(host)
        for each, state in zip(far, states, strict=True):
            torch.get_device_module(each).set_rng_state(state, each)
        random.setstate(python)
        if numpy is not None:
            numpy.set_state(numpys)


def not_torchs(hook: Any) -> bool:
    """Whether a hook is the script's, or ours."""
    return not str(getattr(hook, "__module__", "")).startswith("torch.")


def is_ours(hook: Any) -> bool:
    """Whether a hook belongs to a recording."""
    return str(getattr(hook, "__module__", "")).startswith("mlflow_stability.")


@contextlib.contextmanager
def hooks_muted(model: Module, which: Callable[[Any], bool] = not_torchs) -> Iterator[None]:
    """Without the forward hooks of the script: what they note down, they would note twice. Torch's own are kept."""
    tables = [getattr(each, name) for each in Module.modules(model) for name in _HOOKS]
    tables += [getattr(torch_module, f"_global{name}") for name in _HOOKS]
    before = [(table, dict(table)) for table in tables]
    try:
        for table, hooks in before:
            for number, hook in hooks.items():
                if which(hook):
                    del table[number]
        yield
    finally:
        for table, hooks in before:
            ours = {number: hook for number, hook in table.items() if number not in hooks and is_ours(hook)}
            if list(table) != [*hooks, *ours]:
                table.clear()
                table.update(hooks | ours)  # ours are taken off by whoever has put them on


def mode_of_script() -> str:
    """The class of a mode that is on; empty: there is none."""
    modes: list[Any] = [*torch_api.function_mode_stack(), *torch_api.dispatch_mode_stack()]
    kinds = [type(each) for each in modes if not isinstance(each, torch_api.DeviceContext)]
    return next((each.__name__ for each in kinds if str(each.__module__).partition(".")[0] != OURS), "")


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
            self.reason = f"it failed {len(failures)} times in a row when run again without the compiler"
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
        return "all processes would have to run it"
    mode = mode_of_script()
    if mode:
        return f"{mode} is active and would see it run twice"
    return state.refusal and f"running it again without the compiler might change the training: {state.refusal}"
