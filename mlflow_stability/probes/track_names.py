"""Names the tracks of a training by what they train, and finds the largest of them.

In: the optimizer that steps first of a track. Out: a name from the script itself: the module's place in the model that
it is part of, else its class, else the variable or attribute that holds it or its optimizer; none where none of these
says anything. Promised: decided from what there is before the first step; objects are looked at only where there are
several optimizers, and nothing of the script is called; local variables are not read, for reading them keeps them
alive.
"""

from __future__ import annotations

import gc
import re
import types
from collections.abc import Sequence

from torch.fx import GraphModule
from torch.nn import Module
from torch.optim import Optimizer

from mlflow_stability.probes.module_names import plain_name
from mlflow_stability.probes.roots import living, outermost, parameters_in

MOST_RIVALS = 8
"""More optimizers than these are made for single parameters, or samples."""
LONGEST = 40
"""So many characters of a name are kept."""
SAYS_NOTHING = frozenset({"", "model", "module", "net", "network", "nn", "self", "optimizer", "optim", "opt", "params"})


def name_of(optimizer: Optimizer) -> str:
    """What this optimizer trains, in a word; empty where the script has none for it."""
    modules, optimizers = living(Module, Optimizer)
    if len(optimizers) < 2:
        return ""
    root, path = _owner(optimizer, modules)
    names = [path.rpartition(".")[2]]
    if root is not None and not path:
        kind = type(root)
        names += _held_as(root) if kind.__module__.startswith("torch.") else [kind.__name__, *_held_as(root)]
    names += [re.sub(r"_?(optimi[sz]er|optim|opt)s?_?", "", each, flags=re.I) for each in _held_as(optimizer)]
    return next((plain for each in names if (plain := _plain(each)) not in SAYS_NOTHING), "")


def leads(optimizer: Optimizer) -> bool:
    """Whether no other optimizer that belongs with this one, and has yet to step, trains a larger model."""
    modules, optimizers = living(Module, Optimizer)
    if len(optimizers) > MOST_RIVALS:
        return True
    mine = _size(optimizer)
    larger = [each for each in optimizers if each is not optimizer and _size(each) > mine]
    return not any(_is_rival(each, optimizer, modules) for each in larger if _is_fresh(each, optimizer))


def _is_fresh(other: Optimizer, optimizer: Optimizer) -> bool:
    """Whether it has yet to step, and has no gradients now: those would be used in the same step."""
    if other.state and not optimizer.state:
        return False
    return all(each.grad is None for group in other.param_groups for each in group["params"])


def _is_rival(other: Optimizer, optimizer: Optimizer, modules: Sequence[Module]) -> bool:
    """Whether both belong to one training, and each has a model, or a part of one, of its own."""
    (root, path), (its_root, its_path) = _owner(optimizer, modules), _owner(other, modules)
    if root is its_root and not (path and its_path):
        return False
    here, there = _belongings(optimizer, root, path), _belongings(other, its_root, its_path)
    if here or there:
        return bool(here & there)
    # Local variables alone hold both, and nothing more is known: halves of one training have classes of their own.
    return bool(name_of(optimizer) and name_of(other))


def _owner(optimizer: Optimizer, modules: Sequence[Module]) -> tuple[Module | None, str]:
    """The outermost module that has all of its parameters, and the path to the first that has them and no others."""
    wanted = {id(each) for group in optimizer.param_groups for each in group["params"]}
    for root in outermost(modules):
        if isinstance(root, GraphModule) or not wanted <= {id(each) for each in parameters_in(root)}:
            continue
        exactly = (name for name, each in Module.named_modules(root) if _ids(each) == wanted)
        return root, plain_name(next(exactly, ""))
    return None, ""


def _ids(module: Module) -> set[int]:
    return {id(each) for each in parameters_in(module)}


def _size(optimizer: Optimizer) -> int:
    return sum(each.numel() for group in optimizer.param_groups for each in group["params"])


def _belongings(optimizer: Optimizer, root: Module | None, path: str) -> set[int]:
    """By identity: the objects and namespaces that hold it or its model, and the model where it is a part of that."""
    found = {id(holder) for each in (optimizer, root) if each is not None for holder, _ in _named_holders(each)}
    return found | ({id(root)} if root is not None and path else set())


def _held_as(wanted: object) -> list[str]:
    """The names of attributes and global variables that hold an object."""
    return [name for _, name in _named_holders(wanted)]


def _named_holders(wanted: object) -> list[tuple[object, str]]:
    found: list[tuple[object, str]] = []
    for holder in gc.get_referrers(wanted):
        if isinstance(holder, types.FrameType):
            continue
        entries = holder if type(holder) is dict else getattr(holder, "__dict__", None)
        if type(entries) is not dict or type(wanted).__dict__ is entries:
            continue
        for key, value in list(entries.items()):
            if value is wanted and isinstance(key, str) and not key.startswith("_"):
                found.append((_instance_of(holder), key))
    return found


def _instance_of(holder: object) -> object:
    """The object whose namespace this is, where it is one's; else the namespace."""
    if type(holder) is not dict:
        return holder
    owners = (each for each in gc.get_referrers(holder) if getattr(each, "__dict__", None) is holder)
    return next(owners, holder)


def _plain(name: str) -> str:
    """As it may stand in a key: small letters, digits and underscores."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    plain = re.sub(r"[^a-z0-9]+", "_", words.lower()).strip("_")[:LONGEST]
    return "" if plain.isdigit() else plain
