"""Observes whether `load_state_dict` changes anything: with other names, or with tensors that are the module's own.

Guarantees: results and exceptions are torch's own; no module, tensor or state dict is kept alive or written to.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, NamedTuple, Protocol

from torch import Tensor
from torch.nn import Module
from torch.nn.parameter import is_lazy
from torch.utils.weak import WeakIdKeyDictionary

from mlflow_stability.kinds.first_look.not_trained import NothingLoaded, NothingLoadedFacts
from mlflow_stability.probes.hooks.guarded_hooks import HookHandles
from mlflow_stability.probes.hooks.thread_state import is_measurable
from mlflow_stability.probes.probe import Guard
from mlflow_stability.vocabulary.result import Finding, Severity

MAX_LOADS = 64  # without effect that are remembered
LOAD_ARGUMENTS = ("self", "state_dict", "strict", "assign")


class OwnStates(Protocol):
    """What is called about modules whose own tensors are loaded into them."""

    def next_step(self) -> int:
        """Return the number of the next step."""

    def own_state_loaded(self, module: Module, *, is_again: bool) -> None:
        """Take a module, and whether that is so again, with no write in between."""


class _Load(NamedTuple):
    """A call that loaded nothing."""

    module: weakref.ref[Module]
    names: frozenset[str]
    facts: NothingLoadedFacts
    writes: int  # to the module's first parameter, after the call


class LoadedStates:
    def __init__(self) -> None:
        self._without_effect: list[_Load] = []
        self._partly_loaded: list[weakref.ref[Module]] = []
        self._taken: MutableMapping[Tensor, int] = WeakIdKeyDictionary()  # steps of state dicts, by their first tensor
        self._writes: MutableMapping[Module, int] = weakref.WeakKeyDictionary()  # after a load of own tensors
        self._listener: weakref.ref[OwnStates] | None = None

    def install(self, handles: HookHandles, guard: Guard) -> None:
        """Observe `Module.state_dict` and `Module.load_state_dict` until the handles are removed."""
        self.__init__()  # type: ignore[misc]
        note, note_taken = guard("loaded states", self._note), guard("loaded states", self._note_taken)

        def around_taking(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            state = original(*args, **kwargs)
            if len(args) == 1 and not kwargs:  # else of a part, or not the values alone
                note_taken(state)
            return state

        def around(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            given = dict(zip(LOAD_ARGUMENTS, args, strict=False)) | kwargs  # `self` by name, in torch itself
            note(given["self"], given.get("state_dict"), result, bool(given.get("assign")))
            return result

        handles.patch(Module, "state_dict", around_taking)
        handles.patch(Module, "load_state_dict", around)

    def listen(self, listener: OwnStates) -> None:
        """Have a listener, which is not kept alive, called about loads of own tensors."""
        self._listener = weakref.ref(listener)

    def _note_taken(self, state: Any) -> None:
        listener, first = self._listening(), _first_tensor(state)
        if first is not None:
            self._taken[first] = 0 if listener is None else listener.next_step()

    def _listening(self) -> OwnStates | None:
        return None if self._listener is None else self._listener()

    def _note_own(self, module: Module, state: Mapping[str, Any]) -> None:
        listener, first = self._listening(), _first_tensor(state)
        taken = None if first is None else self._taken.get(first)
        if listener is None or taken is None or not _is_own(module, state):
            return
        writes, before = _writes(module), self._writes.get(module)
        self._writes[module] = writes
        is_again = before is not None and writes == before + 1  # that of the load itself
        if is_again or taken != listener.next_step():
            listener.own_state_loaded(module, is_again=is_again)

    def _note(self, module: Module, state: Any, result: Any, assigns: bool) -> None:
        unexpected = getattr(result, "unexpected_keys", None)
        if not isinstance(state, Mapping) or not isinstance(unexpected, list) or not state:
            return
        if not assigns:
            self._note_own(module, state)
        names = frozenset(map(str, state))
        own = next((name for name, _ in Module.named_parameters(module)), None)
        if own is not None and names <= set(unexpected):
            # One of several files or entries of one model may be of other modules.
            is_piece = any(part() is module for part in self._partly_loaded)
            if not is_piece and len(self._without_effect) < MAX_LOADS:
                facts = NothingLoadedFacts(type(module).__name__, len(names), str(next(iter(state))), own)
                self._without_effect.append(_Load(weakref.ref(module), names, facts, _writes(module)))
            return
        if result.missing_keys:
            others = [part for part in self._partly_loaded if part() is not None and part() is not module]
            self._partly_loaded = [*others, weakref.ref(module)][-MAX_LOADS:]
        if self._without_effect:  # a script may try several modules, or several names
            self._without_effect = [load for load in self._without_effect if not _is_made_good(load, module, names)]

    def training_begins(self) -> None:
        """Leave out modules that the script has written to by itself since; runs before the first step."""
        self._without_effect = [load for load in self._without_effect if not _is_written(load)]

    def finding(self, step: int) -> Finding | None:
        """Return a finding about a module that is still there, and into which nothing was loaded since; only once."""
        facts = next((load.facts for load in self._without_effect if load.module() is not None), None)
        self._without_effect = []  # a run that follows has loads of its own
        if facts is None:
            return None
        return Finding.at(facts, step, Severity.WARNING, place=facts.module, remedies=NothingLoaded.remedies)


def _first_tensor(state: Any) -> Tensor | None:
    values = state.values() if isinstance(state, Mapping) else ()
    return next((value for value in values if isinstance(value, Tensor)), None)


def _is_own(module: Module, state: Mapping[str, Any]) -> bool:
    """Whether a state dict has all parameters of a module, and no other values than these now have."""
    pairs = [(held, state.get(name)) for name, held in Module.named_parameters(module)]
    return bool(pairs) and all(
        is_measurable(held) and is_measurable(given) and held.data_ptr() == given.data_ptr() for held, given in pairs
    )


def _is_written(load: _Load) -> bool:
    module = load.module()
    return module is None or _writes(module) != load.writes


def _writes(module: Module) -> int:
    """Return how often torch counted a write to the first parameter; -1 where there is none, or it has no counter."""
    first = next(Module.parameters(module), None)
    return -1 if first is None or is_lazy(first) or first.is_inference() else first._version


def _is_made_good(load: _Load, module: Module, names: frozenset[str]) -> bool:
    """Whether a later call loaded the same state, or loaded something into the module, a part of it or its owner."""
    earlier = load.module()
    if earlier is None or names == load.names:
        return True
    return any(part is module for part in Module.modules(earlier)) or any(
        part is earlier for part in Module.modules(module)
    )


LOADED_STATES = LoadedStates()
