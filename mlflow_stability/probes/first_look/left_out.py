"""Finds parameters that no step changes: in no optimizer, not registered, or without a gradient.

No value is read from a device: only whether a tensor has a gradient, and how often torch counted a write to it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor, nn
from torch.nn import Module
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from mlflow_stability.kinds.first_look.not_trained import (
    NEVER_STEPPED,
    NO_GRADIENT_AT_ALL,
    Holder,
    NoGradient,
    NoGradientFacts,
    NotFrozen,
    NotFrozenFacts,
    NotOptimized,
    NotOptimizedFacts,
    Reached,
    UnregisteredFacts,
    UnregisteredModule,
)
from mlflow_stability.probes.gradient_norm import parameters_of
from mlflow_stability.probes.hooks.module_calls import MODULE_CALLS
from mlflow_stability.probes.model_discovery import models_of, owners_of_parameters, plain_name, state_of
from mlflow_stability.vocabulary.result import Finding, Severity

OPTIMIZED, NO_GRADIENT = NotOptimized().held, NoGradient()
IDLE_STEP = 100  # first step at which an optimizer without a step is reported: others may begin later
MAX_NAMES = 3
MAX_GRAPH = 4096  # nodes of the graph of a loss
MAX_MADE_OF = 4  # operations between a parameter and an attribute that is made of it
_OF_TORCH = frozenset(vars(Module()))
# Kind of holder, attribute, key in it, and the tensor.
_Hidden: TypeAlias = tuple[Holder, str, str, Tensor]
_HOLDERS: Mapping[type, Holder] = {list: Holder.LIST, tuple: Holder.TUPLE, dict: Holder.DICT}


class LeftOut:
    """Parameters that were in no optimizer at the last look.

    `trained` has the parameters of optimizers that stepped, those of earlier trainings too: what is left out later, as
    the layers below a new head, is frozen on purpose.
    """

    def __init__(self, trained: MutableMapping[Tensor, bool] | None = None) -> None:
        self._trained = WeakIdKeyDictionary() if trained is None else trained
        self._looked_at: dict[int, tuple[_Version, _Version | None]] = {}
        """What was left out at the last look, by identity: a tensor and its gradient."""
        self._had_gradient: set[int] = set()
        # Version counters of parameters at the first look at them.
        self._first_versions: dict[int, int] = {}
        self._has_loss, self._reached = False, Reached.UNKNOWN
        self._unused: dict[int, Callable[[], None]] = {}  # modules that are watched for a call, by identity

    @property
    def may_be_known(self) -> bool:
        """Whether a loss may show why the optimizers have no gradient at all."""
        return bool(self._first_versions) and not self._had_gradient and self._reached is Reached.UNKNOWN

    @property
    def is_known(self) -> bool:
        return self._reached is not Reached.UNKNOWN

    def note_loss(self, loss: Tensor) -> None:
        self._has_loss, self._reached = True, _reached(loss, self._first_versions)

    def note_gradients(self, optimizer: Optimizer) -> None:
        for held in parameters_of(optimizer):
            self._trained[held] = True
            self._first_versions.setdefault(id(held), held._version)
            if held.grad is not None:
                self._had_gradient.add(id(held))

    def look(
        self,
        models: Sequence[Module],
        optimizers: Sequence[Optimizer],
        step: int,
        living: Callable[[], Sequence[Optimizer]],
        several: bool = False,
    ) -> list[Finding]:
        """Return what was left out both now and at the last look, and got a gradient in between but no other value.

        `living` returns optimizers that did not step yet as well; it is called only if something is left out, or a step
        has `several` losses, as that of a GAN.
        """
        unregistered, forgotten = _left_out(models, optimizers)
        idle: list[tuple[Optimizer, list[Tensor]]] = []
        if forgotten or any(unregistered) or several:
            unregistered, forgotten = _left_out(models, every := (*optimizers, *living()))
            idle = [(other, held) for other in every if (held := self._waiting(other))]
        forgotten = [(name, tensor) for name, tensor in forgotten if tensor not in self._trained]
        candidates = [*(held[3] for hidden in unregistered for held in hidden), *(tensor for _, tensor in forgotten)]
        candidates += [tensor for _, held in idle for tensor in held]
        same = {id(tensor) for tensor in candidates if self._is_left(tensor)}
        cleared = {id(tensor) for tensor in candidates if self._was_cleared(tensor)}
        self._looked_at = {
            id(held): (_version_of(held), None if held.grad is None else _version_of(held.grad)) for held in candidates
        }
        findings = [_finding_of([held for held in hidden if id(held[3]) in same], step) for hidden in unregistered]
        missing = [tensor for _, tensor in forgotten if id(tensor) in same]
        if missing:
            facts = _facts_of(missing, models)
            findings.append(Finding.at(facts, step, Severity.WARNING, remedies=NotOptimized.remedies))
        for other, held in idle:
            if step >= IDLE_STEP and same & cleared >= set(map(id, held)):
                facts = _facts_of(held, [*models, *models_of([other])], type(other).__name__)
                findings.append(Finding.at(facts, step, Severity.INFO, remedies=NEVER_STEPPED))
        return [finding for finding in findings if finding is not None]

    def watch_calls(self, models: Sequence[Module]) -> None:
        """Watch modules whose own parameters had no gradient until now, up to their first call."""
        for module in (module for model in models for module in Module.modules(model)):
            own = [tensor for tensor in module._parameters.values() if tensor is not None and tensor.requires_grad]
            if own and id(module) not in self._unused and not any(id(tensor) in self._had_gradient for tensor in own):
                self._unused[id(module)] = MODULE_CALLS.watch(module, self._called)

    def _called(self, module: Module, _args: object, _kwargs: object) -> None:
        end = self._unused.pop(id(module), None)
        if end is not None:
            end()

    def close(self) -> None:
        while self._unused:
            self._unused.popitem()[1]()

    def without_gradient(
        self,
        models: Sequence[Module],
        optimizers: Sequence[Optimizer],
        step: int,
        steps: int,
        *,
        only_all: bool = False,
    ) -> Finding | None:
        """Return a finding if a large part of these optimizers' parameters had no gradient in `steps` steps, nor state.

        `only_all`: only if that holds for all of them.
        """
        held = [
            (optimizer, tensor)
            for optimizer in optimizers
            for tensor in parameters_of(optimizer)
            if tensor.requires_grad and not is_lazy(tensor)
        ]
        never = [
            tensor
            for optimizer, tensor in held
            if tensor.grad is None and id(tensor) not in self._had_gradient and not state_of(optimizer).get(tensor)
        ]
        share = _values(never) / max(1, _values(tensor for _, tensor in held))
        is_idle = len(never) == len(held)
        if only_all and not is_idle:
            return None
        if share < NO_GRADIENT.mentioned or (
            is_idle and any(self._first_versions.get(id(t)) != t._version for t in never)
        ):
            return None  # what changes without a gradient is trained in another way
        names, reached = _modules_of(never, models), self._reached
        if is_idle and not (self._has_loss or models):
            return None  # no training: a schedule is tried on an optimizer of its own
        uncalled = {
            id(tensor)
            for model in models
            for module in Module.modules(model)
            if id(module) in self._unused
            for tensor in module._parameters.values()
        }
        called = any(id(tensor) not in uncalled for tensor in never)
        facts = NoGradientFacts(len(never), share, names, steps, reached if is_idle else Reached.UNKNOWN, called)
        remedies = NO_GRADIENT_AT_ALL[reached] if is_idle else NoGradient.remedies
        severity = (
            Severity.WARNING if share >= (NO_GRADIENT.share if called else NO_GRADIENT.uncalled) else Severity.INFO
        )
        return Finding.at(facts, step, severity, remedies=remedies)

    def _waiting(self, optimizer: Optimizer) -> list[Tensor]:
        """Return the parameters of an optimizer that have gradients, if no step of any has changed one of them."""
        held = [] if state_of(optimizer) else [held for held in parameters_of(optimizer) if held.grad is not None]
        return [] if any(tensor in self._trained for tensor in held) else held

    def _was_cleared(self, held: Tensor) -> bool:
        _, of_gradient = self._looked_at.get(id(held), (None, None))
        return of_gradient is not None and of_gradient.tensor() is not held.grad

    def _is_left(self, held: Tensor) -> bool:
        version, of_gradient = self._looked_at.get(id(held), (None, None))
        # A gradient that stays as it was is left over from an earlier training.
        return version is not None and version.is_of(held) and not (of_gradient and of_gradient.is_of(held.grad))


class _Version(NamedTuple):
    tensor: weakref.ref[Tensor]
    number: int  # counted by torch, at each write to the tensor

    def is_of(self, tensor: Tensor | None) -> bool:
        return tensor is not None and self.tensor() is tensor and self.number == tensor._version


def _version_of(tensor: Tensor) -> _Version:
    return _Version(weakref.ref(tensor), tensor._version)


# Which parameters the graph of a loss ends at; unknown for graphs that are too large to look at.
def _reached(loss: Tensor, held: Container[int]) -> Reached:
    waiting, seen, reached = [loss.grad_fn], set(), Reached.NONE
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if len(seen) > MAX_GRAPH:
            return Reached.UNKNOWN
        leaf = getattr(node, "variable", None)
        if leaf is not None and id(leaf) in held:
            return Reached.THEM
        reached = Reached.OTHERS if isinstance(leaf, nn.Parameter) else reached
        waiting += [following for following, _ in node.next_functions]
    return reached


def _left_out(
    models: Sequence[Module], optimizers: Sequence[Optimizer]
) -> tuple[list[list[_Hidden]], list[tuple[str, Tensor]]]:
    trained = {id(held) for optimizer in optimizers for held in parameters_of(optimizer)}
    forgotten = [pair for model in models for pair in _not_optimized(model, trained)]
    return [_unregistered(model, trained) for model in models], forgotten


# Parameters with a gradient that are in no optimizer, where optimizers hold most of the model.
def _not_optimized(model: Module, trained: set[int]) -> list[tuple[str, Tensor]]:
    named = [(name, tensor) for name, tensor in Module.named_parameters(model) if tensor.requires_grad]
    named = [(name, tensor) for name, tensor in named if not is_lazy(tensor)]
    held = _values(tensor for _, tensor in named if id(tensor) in trained)
    if held < OPTIMIZED * _values(tensor for _, tensor in named):
        return []
    evaluates = {
        id(tensor)
        for module in Module.modules(model)
        if model.training and not module.training
        for tensor in module._parameters.values()
    }
    return [
        (name, tensor)
        for name, tensor in named
        if id(tensor) not in trained and tensor.grad is not None and id(tensor) not in evaluates
    ]


def _facts_of(tensors: Sequence[Tensor], models: Sequence[Module], optimizer: str = "") -> NotOptimizedFacts:
    every = (tensor for model in models for tensor in Module.parameters(model) if tensor.requires_grad)
    names = _modules_of(tensors, models)
    return NotOptimizedFacts(len(tensors), _values(tensors) / max(1, _values(every)), names, optimizer)


# Tensors with a gradient that modules hold in lists, dicts or attributes.
def _unregistered(model: Module, trained: set[int]) -> list[_Hidden]:
    registered = {id(tensor) for tensor in Module.parameters(model)} | trained
    hidden: list[_Hidden] = []
    for path, module in Module.named_modules(model):
        for name, value in vars(module).items():
            if name in _OF_TORCH:
                continue
            where = plain_name(f"{path}.{name}" if path else name)
            for holder, key, tensor in _held(value):
                if id(tensor) not in registered and tensor.is_leaf and tensor.grad is not None:
                    registered.add(id(tensor))
                    hidden.append((holder, where, key, tensor))
    return hidden


def _held(value: Any) -> Iterator[tuple[Holder, str, Tensor]]:
    holder = _HOLDERS.get(type(value))
    if holder is None:
        if isinstance(value, Tensor) and not isinstance(value, nn.Parameter) and value.requires_grad:
            yield Holder.ATTRIBUTE, "", _leaf_of(value)
        return
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, held in pairs:
        if isinstance(held, Module):
            yield from ((holder, str(key), tensor) for tensor in Module.parameters(held) if not is_lazy(tensor))
        elif isinstance(held, Tensor) and held.requires_grad:
            yield holder, str(key), held


def _leaf_of(tensor: Tensor) -> Tensor:
    """Return the parameter that a tensor is a view or a multiple of, else the tensor itself."""
    node: Any = tensor.grad_fn
    for _ in range(MAX_MADE_OF):
        inputs = () if node is None else [following for following, _ in node.next_functions if following is not None]
        if len(inputs) != 1:
            break
        node = inputs[0]
        if isinstance(leaf := getattr(node, "variable", None), nn.Parameter):
            return leaf
    return tensor


def _finding_of(hidden: Sequence[_Hidden], step: int) -> Finding | None:
    by_name: dict[str, list[_Hidden]] = {}
    for held in hidden:
        by_name.setdefault(held[1], []).append(held)
    if not by_name:
        return None
    name, most = max(by_name.items(), key=lambda pair: _values(held[3] for held in pair[1]))
    values = _values(held[3] for held in most)
    facts = UnregisteredFacts(most[0][0], name, most[0][2], most[-1][2], len(most), values)
    return Finding.at(facts, step, Severity.WARNING, place=name, remedies=UnregisteredModule.remedies)


def _values(tensors: Iterable[Tensor]) -> int:
    return sum(0 if is_lazy(tensor) else tensor.numel() for tensor in tensors)


def _modules_of(tensors: Sequence[Tensor], models: Sequence[Module]) -> tuple[str, ...]:
    owners = owners_of_parameters(models)
    names = dict.fromkeys(owner for tensor in tensors if (owner := owners.get(id(tensor))) is not None)
    return tuple(names)[:MAX_NAMES]


MISSPELT = ("require_grad", "requires_grads", "required_grad", "requires_gradient")


def not_frozen(models: Sequence[Module], optimizers: Sequence[Optimizer], step: int) -> Finding | None:
    """Return a finding about an attribute that looks as if it froze parameters, which are trained."""
    trained = {id(held) for optimizer in optimizers for held in parameters_of(optimizer) if held.grad is not None}
    for path, module in (pair for model in models for pair in Module.named_modules(model)):
        named: list[tuple[str, str, Iterable[Tensor]]] = []
        if vars(module).get("requires_grad") is False and not _knows_requires_grad(type(module)):
            named.append((path, "requires_grad", Module.parameters(module)))
        for name, tensor in module._parameters.items():
            wrong = (attribute for attribute in MISSPELT if getattr(tensor, attribute, None) is False)
            named += [
                (f"{path}.{name}" if path else name, attribute, [tensor]) for attribute in wrong if tensor is not None
            ]
        for place, attribute, tensors in named:
            count = sum(id(tensor) in trained for tensor in tensors)
            if count:
                facts = NotFrozenFacts(plain_name(place) or type(module).__name__, attribute, count)
                return Finding.at(facts, step, Severity.WARNING, place=facts.name, remedies=NotFrozen.remedies)
    return None


def _knows_requires_grad(cls: type) -> bool:
    """Whether a method of a module's class uses the name, so that it may mean something there."""
    own = cls.__mro__[: cls.__mro__.index(Module)]
    codes = (getattr(method, "__code__", None) for base in own for method in vars(base).values())
    return any("requires_grad" in code.co_names for code in codes if code is not None)
