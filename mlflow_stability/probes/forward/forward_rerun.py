"""Runs a forward pass again without changing the training.

Guarantees: gradients, parameters, buffers, inputs, random numbers and attributes are restored afterwards; nothing is
compiled; exceptions of the model go no further. What code of the script writes elsewhere (files, output, global
variables) is not restored. Where anything else could change, nothing is run, and a reason is given.

Each operation passes through `WrittenTensors.run`, which copies what the operation is about to write to, within a
budget. After `restore` the memory of those tensors and their versions are what they were, whoever holds them, and so
are the generators that were passed to operations. An operation that could not be undone is not carried out.
"""

from __future__ import annotations

import contextlib
import functools
import random
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import Module
from torch.nn.modules import module as torch_module

from mlflow_stability.probes.forward.writable_state import WritableState, is_of_torch
from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.probes.hooks.thread_state import raised_by_script
from mlflow_stability.probes.model_discovery import unwrapped

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
    model: Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], state: WritableState | None = None
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


MAX_BYTES = 256 * 2**20  # of copies in one run
MAX_SECONDS = 10.0  # of one run
# These operations give a tensor other memory, which a copy does not undo.
_MOVING = frozenset({"resize_", "resize_as_", "set_", "_resize_output_"})


class NotRunAgain(BaseException):
    """A run was given up. Not an `Exception`, because a model that catches those would hide it."""


class WrittenTensors:
    def __init__(self, max_seconds: float = MAX_SECONDS, max_bytes: int = MAX_BYTES) -> None:
        torch_api.need("TorchDispatchMode", "DisableTorchDispatch", "unsafe_set_version_counter", "tree_map")
        self._max_seconds = max_seconds
        self._deadline = time.perf_counter() + max_seconds
        self._bytes_left = max_bytes
        self._own_storages: set[int] = set()
        self._watched_storages: set[int] = set()
        self._copies: dict[int, tuple[Tensor, Tensor]] = {}
        self._versions: dict[int, tuple[Tensor, int]] = {}
        self._without_gradient: dict[int, Tensor] = {}
        self._generators: dict[int, tuple[torch.Generator, Tensor]] = {}
        self.moved = False  # the run changed something outside it: another run would begin differently

    def stand_ins(self, tensors: Iterable[Tensor], watched: bool) -> None:
        """Declare tensors that belong to the run. `watched`: a write to one counts as a change of what it replaces."""
        storages = {storage for tensor in tensors if (storage := storage_of(tensor)) is not None}
        self._own_storages |= storages
        if watched:
            self._watched_storages |= storages

    def run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if time.perf_counter() > self._deadline:
            raise NotRunAgain(f"it takes more than {self._max_seconds:.0f} s")
        given = self._tensors_in((*args, *kwargs.values()))
        positions, names = _written_arguments(func)
        if names:
            written = [args[position] for position in positions if position < len(args)]
            written += [value for name, value in kwargs.items() if name in names]
            for tensor in self._tensors_in(written):
                self._save(_name(func), tensor, any(other.requires_grad for other in given))
        result = func(*args, **kwargs)
        given_storages = {storage_of(tensor) for tensor in given}
        self._own_storages |= {
            storage
            for tensor in self._tensors_in((result,))
            if (storage := storage_of(tensor)) is not None and storage not in given_storages
        }
        return result

    def restore(self) -> None:
        with torch_api.DisableTorchDispatch(), torch.no_grad():
            for whole, copy in self._copies.values():
                whole.copy_(copy)
        for tensor in self._without_gradient.values():
            if tensor.grad_fn is not None:
                tensor.detach_()
        for tensor, version in self._versions.values():
            if version_of(tensor) != version:
                setter: Any = torch_api.unsafe_set_version_counter
                try:
                    setter((tensor,), (version,))
                except TypeError:  # before PyTorch 2.7 it took one tensor
                    setter(tensor, version)
        for generator, state in self._generators.values():
            generator.set_state(state)

    def _tensors_in(self, values: Iterable[Any]) -> list[Tensor]:
        tensors: list[Tensor] = []
        for value in values:
            if isinstance(value, Tensor):
                tensors.append(value)
            elif isinstance(value, list | tuple):
                tensors += self._tensors_in(value)
            elif (
                isinstance(value, torch.Generator)
                and id(value) not in self._generators
                and not any(value is shared for shared in (torch.default_generator, *torch.cuda.default_generators))
            ):
                self._generators[id(value)] = value, value.get_state()
                self.moved = True
        return tensors

    def _save(self, operation: str, tensor: Tensor, with_gradient: bool) -> None:
        storage_key = storage_of(tensor)
        if storage_key is None:
            raise NotRunAgain(f"{operation} writes into a {type(tensor).__name__}, which cannot be copied")
        self.moved |= storage_key in self._watched_storages
        if storage_key in self._own_storages:
            return
        if operation in _MOVING:
            raise NotRunAgain(f"{operation} replaces the memory of an existing tensor")
        self.moved = True
        if torch.is_grad_enabled() and (tensor.grad_fn is not None or (tensor._is_view() and with_gradient)):
            raise NotRunAgain(f"{operation} adds an existing tensor to an autograd graph")
        if not tensor.requires_grad:
            self._without_gradient[id(tensor)] = tensor
        if not tensor.is_inference():
            self._versions.setdefault(id(tensor), (tensor, version_of(tensor)))
        if storage_key in self._copies:
            return
        storage = tensor.untyped_storage()
        self._bytes_left -= storage.nbytes()
        if self._bytes_left < 0:
            raise NotRunAgain("it writes into tensors too large to copy")
        with torch_api.DisableTorchDispatch(), torch.no_grad():
            whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
            self._copies[storage_key] = whole, whole.clone()


class TrackedWrites(torch_api.TorchDispatchMode):  # type: ignore[misc]
    """Passes each operation inside it through a `WrittenTensors`."""

    supports_higher_order_operators = True

    def __init__(self, written: WrittenTensors) -> None:
        super().__init__()
        self._written = written

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and loading the compiler would take seconds

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return self._written.run(func, args, kwargs or {})


def storage_of(tensor: Tensor) -> int | None:
    """Return which memory a plain tensor lies in; None for tensors of other kinds."""
    if tensor.layout is not torch.strided or tensor.device.type == "meta":
        return None
    if type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__:
        return None
    number: int = tensor.untyped_storage()._cdata
    return number


def version_of(tensor: Tensor) -> int:
    """Return how often a tensor was written to; torch does not count that in inference mode."""
    return 0 if tensor.is_inference() else tensor._version


@functools.lru_cache(maxsize=1024)
def _written_arguments(func: Any) -> tuple[frozenset[int], frozenset[str]]:
    schema = getattr(func, "_schema", None)
    # Older batch norm operations of torch do not declare that they write to the running statistics.
    statistics = ("running_mean", "running_var") if "batch_norm" in _name(func) else ()
    written = {
        position: argument.name
        for position, argument in enumerate(() if schema is None else schema.arguments)
        if (argument.alias_info is not None and argument.alias_info.is_write) or argument.name in statistics
    }
    return frozenset(written), frozenset(written.values())


def _name(func: Any) -> str:
    return str(getattr(func, "__name__", func)).partition(".")[0]
