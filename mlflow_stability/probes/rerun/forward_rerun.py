"""Runs a forward pass again without changing the training.

Guarantees: gradients, parameters, buffers, inputs, random numbers and attributes are restored afterwards; nothing is
compiled; exceptions of the model go no further. What code of the script writes elsewhere (files, output, global
variables) is not restored. Where anything else could change, nothing is run, and a reason is given.
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
from mlflow_stability.probes.hooks.thread_state import raised_by_script
from mlflow_stability.probes.module_names import unwrapped
from mlflow_stability.probes.rerun.writable_state import WritableState, is_of_torch
from mlflow_stability.probes.rerun.written_tensors import NotRunAgain, TrackedWrites, WrittenTensors

MAX_FAILURES = 2  # in a row; then a model is not run again
_HOOKS = ("_forward_pre_hooks", "_forward_hooks")


class _ThreadState(threading.local):
    reruns = 0


_thread = _ThreadState()


def runs_again() -> bool:
    """Whether this thread runs such a pass now, and not one of the training."""
    return _thread.reruns > 0


@contextlib.contextmanager
def own_pass() -> Iterator[None]:
    """Have `runs_again` tell the probes that what runs inside is no pass of the training."""
    _thread.reruns += 1
    try:
        yield
    finally:
        _thread.reruns -= 1


def run_again(
    model: Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    state: WritableState | None = None,
) -> Any:
    """Run the model without gradients, on copies of its buffers and under the autocast of now; return its output.

    `state` is what the model may write, if that is saved already; raises `NotRunAgain` if it cannot be put back.
    """
    state = state or WritableState(model, args, kwargs, with_hooks=True)
    if state.refusal:
        raise NotRunAgain(state.refusal)
    buffers = {name: buffer.detach().clone() for name, buffer in Module.named_buffers(model)}
    inputs, named_inputs = torch_api.tree_map(
        lambda value: value.detach() if isinstance(value, torch.Tensor) else value, (args, dict(kwargs))
    )
    written = WrittenTensors()
    written.stand_ins(buffers.values(), watched=False)
    device = devices_of(model)[0].type
    enabled, dtype = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    # Weights that are cast without gradients must not be found in the cache by the pass that needs them.
    precision = torch.autocast(device, dtype=dtype, enabled=enabled, cache_enabled=False)
    with kept(state, written), torch.no_grad(), precision, TrackedWrites(written), own_pass():
        return functional_call(model, buffers, inputs, named_inputs)


def devices_of(model: Module) -> list[torch.device]:
    devices = dict.fromkeys(tensor.device for tensor in (*Module.parameters(model), *Module.buffers(model)))
    return list(devices) or [torch.device("cpu")]


@contextlib.contextmanager
def kept(state: WritableState, written: WrittenTensors) -> Iterator[None]:
    """Put back afterwards what is changed inside; a `LightningModule` logs nothing meanwhile."""
    for module in state.lightning_modules:
        vars(module).update(log=_ignore, log_dict=_ignore)
    try:
        yield
    finally:
        try:
            written.restore()
        finally:
            for module in state.lightning_modules:
                del vars(module)["log"], vars(module)["log_dict"]
            written.moved |= state.restore()


def _ignore(*_args: Any, **_kwargs: Any) -> None:
    """Replacement of a method that logs."""


@contextlib.contextmanager
def random_numbers_kept(devices: Iterable[torch.device]) -> Iterator[None]:
    """Put back the shared generators of Python, NumPy and torch afterwards, on the host and on the given devices."""
    accelerators = [device for device in dict.fromkeys(devices) if device.type not in ("cpu", "meta")]
    host_state, python_state = torch.get_rng_state(), random.getstate()
    states = [torch.get_device_module(device).get_rng_state(device) for device in accelerators]
    numpy: Any = sys.modules.get("numpy.random")  # a script that has not loaded it draws nothing from it
    numpy_state = None if numpy is None else numpy.get_state()
    try:
        yield
    finally:
        torch.set_rng_state(host_state)
        for device, state in zip(accelerators, states, strict=True):
            torch.get_device_module(device).set_rng_state(state, device)
        random.setstate(python_state)
        if numpy is not None:
            numpy.set_state(numpy_state)


def is_ours(hook: Any) -> bool:
    return str(getattr(hook, "__module__", "")).startswith("mlflow_stability.")


@contextlib.contextmanager
def hooks_muted(model: Module, which: Callable[[Any], bool] = lambda hook: not is_of_torch(hook)) -> Iterator[None]:
    """Take forward hooks off, by default all but torch's own, and put them back afterwards."""
    tables = [getattr(module, name) for module in Module.modules(model) for name in _HOOKS]
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
            added = {number: hook for number, hook in table.items() if number not in hooks and is_ours(hook)}
            if list(table) != [*hooks, *added]:
                table.clear()
                table.update(hooks | added)  # the probe that added a hook of ours removes it


def mode_of_script() -> str:
    """Return the class of an active torch mode, such as a FLOP counter, that would see the second run; or nothing."""
    modes: list[Any] = [*torch_api.function_mode_stack(), *torch_api.dispatch_mode_stack()]
    kinds = [type(mode) for mode in modes if not isinstance(mode, torch_api.DeviceContext)]
    return next((kind.__name__ for kind in kinds if not kind.__module__.startswith("mlflow_stability.")), "")


class SecondPass:
    def __init__(self) -> None:
        self.reason = ""  # why the last pass was not run; empty if it was
        # Errors of each model's second passes that failed in a row.
        self._failures: weakref.WeakKeyDictionary[Module, list[str]] = weakref.WeakKeyDictionary()

    @contextlib.contextmanager
    def of(
        self, root: Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Iterator[tuple[Module | None, Callable[[], bool]]]:
        """Give the unwrapped model, or None if it must not run again; and a function that runs it.

        The function returns whether the model came through.
        """
        failures = self._failures.setdefault(root, [])
        model = unwrapped(root)
        state: WritableState | None = None
        if len(failures) >= MAX_FAILURES:
            self.reason = f"it failed {len(failures)} times in a row when run again without the compiler"
            self.reason += f" ({failures[-1]})"
        else:
            state = WritableState(model, args, kwargs, with_hooks=False)
            self.reason = _refusal(state)
        if self.reason:
            yield None, lambda: False
            return

        def run() -> bool:
            before = sys.exc_info()[1]
            try:
                run_again(model, args, kwargs, state)
            except (Exception, NotRunAgain) as error:
                script_error = raised_by_script(error, before)
                if script_error is not None:
                    raise script_error from None
                words = str(error).partition("\n")[0][:200]
                failures.append(words if isinstance(error, NotRunAgain) else f"{type(error).__name__}: {words}")
                return False
            failures.clear()
            return True

        # Warnings about uncompiled calls are not for the script; one that makes errors of warnings would end of them.
        # The stance throws no compiled code away: the model's state is the same again when that runs next.
        with (
            warnings.catch_warnings(),
            random_numbers_kept(devices_of(model)),
            hooks_muted(model),
            torch.compiler.set_stance("force_eager"),
        ):
            warnings.simplefilter("ignore")
            yield model, run


def _refusal(state: WritableState) -> str:
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    if distributed and torch.distributed.get_world_size() > 1:
        return "all processes would have to run it"
    mode = mode_of_script()
    if mode:
        return f"{mode} is active and would see it run twice"
    return state.refusal and f"running it again without the compiler might change the training: {state.refusal}"
