"""Finds groups of experts in a model, and the modules that may be their router.

Experts are the members of a `ModuleList` or `ModuleDict` that are built alike, or slices of tensors with three or more
dimensions, as in transformers since version 5. A candidate is beside them and owns a matrix with a row or a column for
each expert; the other side of the matrix is as wide as what experts take, unless its name says that it is a router.
Only shapes, classes and names are read; whether a candidate is the router shows in a forward pass alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import nn
from torch.nn import Module

MIN_EXPERTS, MAX_EXPERTS = 2, 4096
MAX_LEVELS_UP = 2  # in which a router is looked for
_LISTS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)  # beyond them are other layers
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_EXPERTS = re.compile(r"expert|moe|mixture", re.IGNORECASE)
_ROUTER = re.compile(r"gat(?:e|ing)|rout", re.IGNORECASE)
# Attributes with the number of experts of a token.
_TOP_K = (
    *("top_k", "topk", "k", "moe_top_k", "moe_topk", "moe_k", "num_experts_per_tok", "num_experts_per_token"),
    *("num_selected_experts", "experts_per_token", "n_activated_experts", "num_activated_experts"),
)


@dataclass(frozen=True, slots=True)
class Candidate:
    name: str
    """Of the module directly beside the experts: the candidate, or one around it."""
    module: Module
    around: tuple[Module, ...]
    """The modules around it, up to the one beside the experts."""
    top_k: int
    """Number of experts of a token, by attributes; 0: unknown."""


@dataclass(frozen=True, slots=True)
class ExpertGroup:
    count: int
    called: tuple[Module, ...]
    """The experts, if each is called alone."""
    stacked: Module | None
    """The module with the tensors of all of them, if it is called."""
    candidates: tuple[Candidate, ...]


def expert_groups(root: Module, names: Mapping[Module, str]) -> list[ExpertGroup]:
    parents = {child: module for module in Module.modules(root) for child in module._modules.values() if child}
    groups = []
    for module in Module.modules(root):
        experts = tuple(_alike(module))
        if experts:
            widths = _sizes(experts[0])
            group = _group(len(experts), widths, module, experts, names, parents)
        else:
            count, widths = _stacked(module, names.get(module, ""))
            group = _group(count, widths, module, (), names, parents) if count else None
        if group is not None:
            groups.append(group)
    return groups


def _alike(module: Module) -> Iterator[Module]:
    if not isinstance(module, (nn.ModuleList, nn.ModuleDict)):
        return
    members = [
        member
        for member in module._modules.values()
        if member is not None and any(True for _ in Module.parameters(member))
    ]
    shapes = {(type(member), tuple(weight.shape for weight in Module.parameters(member))) for member in members}
    if MIN_EXPERTS <= len(members) <= MAX_EXPERTS and len(shapes) == 1 and _sizes(members[0]):
        yield from members


def _sizes(module: Module) -> frozenset[int]:
    return frozenset(
        size for parameter in Module.parameters(module) if parameter.dim() >= 2 for size in parameter.shape
    )


def _stacked(module: Module, name: str) -> tuple[int, frozenset[int]]:
    tensors = {key: weight for key, weight in module._parameters.items() if weight is not None and weight.dim() >= 3}
    counts = {tensor.size(0) for tensor in tensors.values()}
    if len(counts) != 1 or isinstance(module, _CONVOLUTIONS):
        return 0, frozenset()
    count = counts.pop()
    name_of_experts = _EXPERTS.search(" ".join((name, type(module).__name__, *tensors, *vars(module))))
    if name_of_experts is None or not MIN_EXPERTS <= count <= MAX_EXPERTS:
        return 0, frozenset()
    return count, frozenset(size for tensor in tensors.values() for size in tensor.shape[1:])


def _group(
    count: int,
    widths: frozenset[int],
    holder: Module,
    experts: tuple[Module, ...],
    names: Mapping[Module, str],
    parents: Mapping[Module, Module],
) -> ExpertGroup | None:
    inside, owner = holder, parents.get(holder) if experts else holder
    for _ in range(MAX_LEVELS_UP + 1):
        if owner is None or isinstance(owner, _LISTS):
            return None
        candidates = [
            candidate
            for beside in owner._modules.values()
            if beside is not None and beside is not inside
            for candidate in _candidates(beside, owner, count, widths, names)
        ]
        if candidates:
            return ExpertGroup(count, experts, None if experts or owner is holder else holder, tuple(candidates))
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
        called = " ".join((title, *(type(inner).__name__ for inner in deeper))).rpartition(".")[2]
        for weight in module._parameters.values():
            if weight is not None and weight.dim() == 2 and count in weight.shape:
                other = weight.size(1) if weight.size(0) == count else weight.size(0)
                if other in widths or _ROUTER.search(called):
                    yield Candidate(title, module, around, _top_k((*reversed(deeper), owner), count))
                    break
        stack += [(child, deeper) for child in reversed(module._modules.values()) if child is not None]


def _top_k(chain: tuple[Module, ...], count: int) -> int:
    for module in chain:
        for name in _TOP_K:
            value = vars(module).get(name)
            if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= count:
                return value
    return 0
