"""Finds experts that stand beside each other in a model, and the modules that may be their router.

In: the modules of a model with their names. Out: groups of experts, each with candidates in the order of the model.
Guarantees: only shapes, classes and names are read; whether a candidate is the router shows in a forward pass alone.

Experts are the members of a `ModuleList` or `ModuleDict` that are built alike, or slices of tensors with three or more
dimensions, as in transformers since version 5. A candidate stands beside them and owns a matrix with a row or a column
for each expert; the other side of the matrix is as wide as what experts take, unless its name says that it is a router.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import nn
from torch.nn import Module

FEWEST, MOST = 2, 4096
"""Experts of a group."""
LEVELS = 2
"""How many levels above its nearest place a router is looked for."""
_LISTS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
"""What stands above them belongs to other layers."""
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_EXPERTS = re.compile(r"expert|moe|mixture", re.IGNORECASE)
_ROUTER = re.compile(r"gat(?:e|ing)|rout", re.IGNORECASE)
_TOP_K = (
    *("top_k", "topk", "k", "moe_top_k", "moe_topk", "moe_k", "num_experts_per_tok", "num_experts_per_token"),
    *("num_selected_experts", "experts_per_token", "n_activated_experts", "num_activated_experts"),
)
"""Attributes that say how many experts a token goes to."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A module that may be a router."""

    name: str
    """Of what stands directly beside the experts: the module itself, or one that it is in."""
    module: Module
    around: tuple[Module, ...]
    """The modules that it is in, up to the one beside the experts."""
    top_k: int
    """How many experts a token goes to, as attributes say; 0: none does."""


@dataclass(frozen=True, slots=True)
class ExpertGroup:
    """Experts of one layer."""

    count: int
    called: tuple[Module, ...]
    """The experts, where each is called alone."""
    stacked: Module | None
    """The module that holds all of them in its tensors, where it is called."""
    candidates: tuple[Candidate, ...]


def expert_groups(root: Module, names: Mapping[Module, str]) -> list[ExpertGroup]:
    """The groups in a model that have a candidate."""
    parents = {child: module for module in Module.modules(root) for child in module._modules.values() if child}
    found = []
    for module in Module.modules(root):
        experts = tuple(_alike(module))
        if experts:
            widths = _sizes(experts[0])
            group = _group(len(experts), widths, module, experts, names, parents)
        else:
            count, widths = _stacked(module, names.get(module, ""))
            group = _group(count, widths, module, (), names, parents) if count else None
        if group is not None:
            found.append(group)
    return found


def _alike(module: Module) -> Iterator[Module]:
    """The members of a list that are built alike and have weights."""
    if not isinstance(module, (nn.ModuleList, nn.ModuleDict)):
        return
    members = [
        each for each in module._modules.values() if each is not None and any(True for _ in Module.parameters(each))
    ]
    shapes = {(type(each), tuple(weight.shape for weight in Module.parameters(each))) for each in members}
    if FEWEST <= len(members) <= MOST and len(shapes) == 1 and _sizes(members[0]):
        yield from members


def _sizes(module: Module) -> frozenset[int]:
    """The sizes of its matrices: what it takes and gives is as wide as one of them."""
    return frozenset(size for each in Module.parameters(module) if each.dim() >= 2 for size in each.shape)


def _stacked(module: Module, name: str) -> tuple[int, frozenset[int]]:
    """How many experts the tensors of a module hold, and their sizes; 0: it holds none."""
    tensors = {key: each for key, each in module._parameters.items() if each is not None and each.dim() >= 3}
    counts = {each.size(0) for each in tensors.values()}
    if len(counts) != 1 or isinstance(module, _CONVOLUTIONS):
        return 0, frozenset()
    count = counts.pop()
    said = _EXPERTS.search(" ".join((name, type(module).__name__, *tensors, *vars(module))))
    if said is None or not FEWEST <= count <= MOST:
        return 0, frozenset()
    return count, frozenset(size for each in tensors.values() for size in each.shape[1:])


def _group(
    count: int,
    widths: frozenset[int],
    holder: Module,
    experts: tuple[Module, ...],
    names: Mapping[Module, str],
    parents: Mapping[Module, Module],
) -> ExpertGroup | None:
    inside, owner = holder, parents.get(holder) if experts else holder
    for _ in range(LEVELS + 1):
        if owner is None or isinstance(owner, _LISTS):
            return None
        found = [
            each
            for beside in owner._modules.values()
            if beside is not None and beside is not inside
            for each in _candidates(beside, owner, count, widths, names)
        ]
        if found:
            return ExpertGroup(count, experts, None if experts or owner is holder else holder, tuple(found))
        inside, owner = owner, parents.get(owner)
    return None


def _candidates(
    beside: Module, owner: Module, count: int, widths: frozenset[int], names: Mapping[Module, str]
) -> Iterator[Candidate]:
    title = names.get(beside)
    if title is None or any(True for _ in _alike(beside)):
        return
    stack: list[tuple[Module, tuple[Module, ...]]] = [(beside, ())]
    while stack:
        module, around = stack.pop()
        deeper = (*around, module)
        called = " ".join((title, *(type(each).__name__ for each in deeper))).rpartition(".")[2]
        for weight in module._parameters.values():
            if weight is not None and weight.dim() == 2 and count in weight.shape:
                other = weight.size(1) if weight.size(0) == count else weight.size(0)
                if other in widths or _ROUTER.search(called):
                    yield Candidate(title, module, around, _top_k((*reversed(deeper), owner), count))
                    break
        stack += [(each, deeper) for each in reversed(module._modules.values()) if each is not None]


def _top_k(chain: tuple[Module, ...], count: int) -> int:
    """The first attribute that says it, from the candidate outwards."""
    for module in chain:
        for name in _TOP_K:
            value = vars(module).get(name)
            if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= count:
                return value
    return 0
