"""Names the tracks of a training by what they train, and finds the largest of them.

In: the optimizer that steps first of a track. Out: a name from the script itself: the module's place in the model that
it is part of, else its class, else the variable or attribute that holds it or its optimizer; none where none of these
says anything. Guarantees: decided from what there is before the first step; objects are looked at only where there are
several optimizers, and nothing of the script is called; local variables are not read, for reading them keeps them
alive; what other trainings have left in memory changes no answer.
"""

from __future__ import annotations

import gc
import re
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch.fx import GraphModule
from torch.nn import Module
from torch.optim import Optimizer

from mlflow_stability.probes.objects.model_discovery import outermost, parameters_in, remembered
from mlflow_stability.probes.objects.module_names import plain_name
from mlflow_stability.probes.objects.object_memory import Kind

Asked = Callable[[Optimizer], bool]
MOST_RIVALS = 8
"""As many optimizers beside one of the same training are made for single parameters, or samples."""
LONGEST = 40
"""So many characters of a name are kept."""
SAYS_NOTHING = frozenset({"", "model", "module", "net", "network", "nn", "self", "optimizer", "optim", "opt", "params"})


def name_of(optimizer: Optimizer) -> str:
    """What this optimizer trains, in a word; empty where the script has none for it."""
    modules, optimizers = remembered(Kind.MODULE, Kind.OPTIMIZER)
    return _part_of([optimizer], modules)[0].name if len(optimizers) > 1 else ""


def leads(optimizer: Optimizer, has_stepped: Asked, is_new: Asked) -> bool:
    """Whether no other optimizer that belongs with this one, and has yet to step, trains a larger model.

    `is_new` says of an optimizer whether it was made since the last step of any.
    """
    modules, optimizers = remembered(Kind.MODULE, Kind.OPTIMIZER)
    others = [each for each in optimizers if each is not optimizer and _is_fresh(each, optimizer, has_stepped)]
    if not others:
        return True
    mine, *theirs = _part_of([optimizer, *others], modules)
    period = is_new(optimizer)
    beside = [
        each
        for each, part in zip(others, theirs, strict=True)
        if _is_beside(part, mine, made_together=is_new(each) == period)
    ]
    return len(beside) >= MOST_RIVALS or all(_size(each) <= _size(optimizer) for each in beside)


def _is_fresh(other: Optimizer, optimizer: Optimizer, has_stepped: Asked) -> bool:
    """Whether it has yet to step, and has no gradients now: those would be used in the same step."""
    if has_stepped(other) or (other.state and not optimizer.state):
        return False
    return all(each.grad is None for group in other.param_groups for each in group["params"])


@dataclass(frozen=True, slots=True)
class _Part:
    """What an optimizer trains."""

    root: Module | None
    """The outermost module that has all of its parameters."""
    path: str
    """To the first module in it that has them and no others."""
    names: tuple[str, ...]
    """Those that the script has for it, the best first."""
    holders: frozenset[int]
    """By identity: the objects and namespaces that hold it or its model, and the model where it is a part of that."""

    @property
    def name(self) -> str:
        return next((plain for each in self.names if (plain := _plain(each)) not in SAYS_NOTHING), "")


def _is_beside(part: _Part, other: _Part, made_together: bool) -> bool:
    """Whether both belong to one training, and each has a model, or a part of one, of its own."""
    if part.root is other.root and not (part.path and other.path):
        return False
    if part.holders or other.holders:
        return bool(part.holders & other.holders)
    # Local variables alone hold both. Halves of one training have classes of their own, and no step comes between the
    # making of one and of the other: what an earlier training left in memory was made before it.
    return bool(part.name and other.name) and part.name != other.name and made_together


def _part_of(optimizers: Sequence[Optimizer], modules: Sequence[Module]) -> list[_Part]:
    """What each of them trains, from two looks through memory however many they are."""
    owners = _owners(optimizers, modules)
    held = _named_holders([*optimizers, *(root for root, _ in owners if root is not None)])
    found = []
    for optimizer, (root, path) in zip(optimizers, owners, strict=True):
        of_optimizer, of_root = held.get(id(optimizer), []), held.get(id(root), [])
        names = [path.rpartition(".")[2]]
        if root is not None and not path:
            kind = type(root)
            names += [] if kind.__module__.startswith("torch.") else [kind.__name__]
            names += [name for _, name in of_root]
        names += [re.sub(r"_?(optimi[sz]er|optim|opt)s?_?", "", name, flags=re.I) for _, name in of_optimizer]
        holders = frozenset(id(holder) for holder, _ in (*of_optimizer, *of_root))
        found.append(_Part(root, path, tuple(names), holders | ({id(root)} if root is not None and path else set())))
    return found


def _owners(optimizers: Sequence[Optimizer], modules: Sequence[Module]) -> list[tuple[Module | None, str]]:
    """For each the outermost module that has all of its parameters, and the path to the first that has no others."""
    roots = [(each, _ids(each)) for each in outermost(modules) if not isinstance(each, GraphModule)]
    paths: dict[int, dict[frozenset[int], str]] = {}
    found: list[tuple[Module | None, str]] = []
    for optimizer in optimizers:
        wanted = frozenset(id(each) for group in optimizer.param_groups for each in group["params"])
        root = next((each for each, owned in roots if wanted <= owned), None)
        if root is not None and id(root) not in paths:
            paths[id(root)] = _paths_in(root)
        found.append((root, "" if root is None else paths[id(root)].get(wanted, "")))
    return found


def _paths_in(root: Module) -> dict[frozenset[int], str]:
    """The path to the first module that has exactly these parameters, for all there are."""
    paths: dict[frozenset[int], str] = {}
    for name, each in Module.named_modules(root):
        paths.setdefault(_ids(each), plain_name(name))
    return paths


def _ids(module: Module) -> frozenset[int]:
    return frozenset(id(each) for each in parameters_in(module))


def _size(optimizer: Optimizer) -> int:
    return sum(each.numel() for group in optimizer.param_groups for each in group["params"])


def _named_holders(wanted: Sequence[object]) -> dict[int, list[tuple[object, str]]]:
    """By identity: the attributes and global variables that hold these objects, and whose they are."""
    sought = {id(each): each for each in wanted}
    entries: list[tuple[object, str, int]] = []
    for holder in gc.get_referrers(*sought.values()):
        if isinstance(holder, types.FrameType):
            continue
        names = holder if type(holder) is dict else getattr(holder, "__dict__", None)
        if type(names) is not dict or names is sought:
            continue
        for key, value in list(names.items()):
            if id(value) in sought and isinstance(key, str) and not key.startswith("_"):
                entries.append((holder, key, id(value)))
    instances = _instances_of([holder for holder, _, _ in entries if type(holder) is dict])
    found: dict[int, list[tuple[object, str]]] = {}
    for holder, key, which in entries:
        found.setdefault(which, []).append((instances.get(id(holder), holder), key))
    return found


def _instances_of(namespaces: Sequence[object]) -> dict[int, object]:
    """By a namespace's identity: the object whose it is, for all that are one's."""
    sought = {id(each) for each in namespaces}
    found: dict[int, object] = {}
    for each in gc.get_referrers(*namespaces) if namespaces else ():
        own = id(getattr(each, "__dict__", None))
        if own in sought:
            found.setdefault(own, each)
    return found


def _plain(name: str) -> str:
    """As it may stand in a key: small letters, digits and underscores."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    plain = re.sub(r"[^a-z0-9]+", "_", words.lower()).strip("_")[:LONGEST]
    return "" if plain.isdigit() else plain
