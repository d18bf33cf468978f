"""Measures the routers of mixtures of experts, which it finds itself.

Experts are the members of a `ModuleList` or `ModuleDict` that are built alike, or slices of tensors with three or more
dimensions. A router is beside them, owns a matrix with a row or a column for each expert, and put out a number for each
before the first expert was called. Which experts got a token is taken from how many rows each was called with; else
from the choices that the router put out, or that the experts were given; else from the largest scores, where an
attribute such as `top_k` says how many count; else the share of an expert is its mean probability.

Guarantees: only numbers are kept; modules are searched once for each model, and a model without experts has no hook;
no device is waited for; scratch memory is a few times that of the scores, which are thinned to four million values.
"""

from __future__ import annotations

import math
import re
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Module

from mlflow_stability.probes.hooks.thread_state import is_measurable, untracked
from mlflow_stability.probes.probe import Guard, PassHooks, ProbeFactory, SampledForwardProbe
from mlflow_stability.probes.step.readback import Block, signals_at
from mlflow_stability.probes.tensor_sums import on_device
from mlflow_stability.vocabulary.measured.signal_type import SignalType, signals

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
    name: str  # of the module directly beside the experts: the candidate, or one around it
    module: Module
    around: tuple[Module, ...]  # the modules around it, up to the one beside the experts
    top_k: int  # number of experts of a token, by attributes; 0: unknown


@dataclass(frozen=True, slots=True)
class ExpertGroup:
    count: int
    called: tuple[Module, ...]  # the experts, if each is called alone
    stacked: Module | None  # the module with the tensors of all of them, if it is called
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


SIGNALS = signals(
    SignalType(
        "router_tokens",
        "tokens of the batch, of each router of a mixture of experts; every `layers_every_n_steps`, as those below",
        unit="{token}",
    ),
    SignalType("router_experts", "experts of the router"),
    SignalType("router_active", "to how many experts a token goes"),
    SignalType(
        "router_entropy", "how certain the router is of each token: the mean entropy of its probabilities, 0 to 1"
    ),
    SignalType(
        "router_load_entropy",
        "how even the shares are, as entropy: 0 where one expert gets all, 1 where all get the same; a metric, too",
        every_place=True,
    ),
    SignalType("router_max_share", "largest share of an expert"),
    SignalType(
        "router_max_logit",
        "largest router logit, without the mean of its token's logits; a metric, too",
        every_place=True,
        combined="max",
    ),
    SignalType("router_share", "by expert (`blocks.3.moe.router.expert_0`): its share of the tokens' choices"),
    SignalType("router_dropped", "share of tokens, or of their choices, that no expert takes; where it can be seen"),
    topic="routing",
    interval="forward pass",
)

# Of `describe_router` before the shares of the experts, in its order.
QUANTITIES = tuple(signal.quantity for signal in SIGNALS[:7])
SHARE, DROPPED = "router_share", "router_dropped"
MAX_VALUES = 2**22
COMPARED_AT_ONCE = 2**24  # choices with experts
MAX_ROUNDING = 0.01  # of the sum of probabilities in half precision


def describe_router(scores: Tensor, counts: Tensor | None, tokens: int) -> Tensor:
    """Return quantities and shares; `counts` is how often each expert was chosen, None for a soft mixture."""
    wide = scores[:: -(-scores.numel() // MAX_VALUES)].to(torch.float32)
    sums = wide.sum(1)
    are_probabilities = (wide >= 0).all() & ((sums - 1).abs() < MAX_ROUNDING).all()
    tiny = torch.finfo(torch.float32).tiny
    logs = torch.where(are_probabilities, wide.clamp_min(tiny).log(), wide.log_softmax(1))
    shown = torch.where(are_probabilities, logs, wide)
    probabilities = logs.exp()
    experts = wide.size(1)
    entropy = -(probabilities * logs).sum(1).mean() / math.log(experts)
    # A softmax does not see what all logits of a token have in common.
    largest = (shown - shown.mean(1, keepdim=True)).abs().amax()
    if counts is None:
        shares, active = probabilities.mean(0), torch.full_like(entropy, float(experts))
    else:
        counts = counts.to(torch.float32)
        shares, active = counts / counts.sum().clamp_min(1.0), counts.sum() / tokens
    load = -torch.special.xlogy(shares, shares).sum() / math.log(experts)
    sizes = torch.full_like(entropy, float(tokens)), torch.full_like(entropy, float(experts))
    few = (*sizes, active, entropy, load, shares.amax(), largest)
    return torch.cat((torch.stack(few), shares))


def counts_of(choices: Tensor, experts: int) -> Tensor:
    """Return how often each expert is named; other numbers mean that a choice was dropped."""
    named = torch.arange(experts, device=choices.device, dtype=choices.dtype)
    rows = torch.split(choices.reshape(-1, 1), max(COMPARED_AT_ONCE // experts, 1))
    return torch.stack([(row == named).sum(0) for row in rows]).sum(0)


def scores_in(output: Tensor, experts: int) -> Tensor | None:
    """Return a row for each token, or None if an output has no number for each expert."""
    if output.dim() < 2 or output.size(-1) != experts or not output.is_floating_point():
        return None
    rows = output.reshape(-1, experts)
    return rows if rows.size(0) >= 2 else None


def choices_in(given: Tensor, experts: int, tokens: int) -> tuple[Tensor, Tensor | None] | None:
    """Return how often each expert is chosen and the share of dropped tokens, or None if there are no choices.

    A row of whole numbers for each token either names the experts or has a one for each chosen expert. Only the second
    shows that a token was dropped: its row is zero.
    """
    if given.is_floating_point() or given.dtype is torch.bool or given.numel() % tokens or given.dim() < 1:
        return None
    width = given.numel() // tokens
    if given.dim() >= 2 and given.size(-1) == experts and width == experts:
        rows = given.reshape(tokens, experts) != 0
        return rows.sum(0), 1 - rows.any(1).sum() / tokens
    if 1 <= width < experts and (width == 1 or given.size(-1) == width):
        return counts_of(given, experts), None
    return None


SEARCHED_PASSES = 2  # of a model; later only the routers that were found are measured
MAX_SHARES = 4096  # experts with a share; of more, routers at even distances have shares
MAX_OUTPUTS = 8  # items of a tuple that are searched


@dataclass(slots=True, eq=False)
class _Seen:
    group: ExpertGroup
    candidate: Candidate | None = None  # the first that put out scores
    scores: Tensor | None = None
    counts: Tensor | None = None
    dropped: Tensor | None = None
    rows: dict[int, int] = field(default_factory=dict)  # rows that each expert was called with, by identity
    began: bool = False  # an expert was called
    over: bool = False  # the router was called again: the first call counts


@dataclass(frozen=True, slots=True)
class _Measured:
    name: str
    experts: int
    row: Tensor
    dropped: bool  # the last number is the share of dropped tokens


class RouterProbe(SampledForwardProbe):
    part = "routers"

    def __init__(self, guard: Guard, every: int = 100, models: Callable[[], Sequence[Module]] = list) -> None:
        super().__init__(guard, every, models)
        self._groups: weakref.WeakKeyDictionary[Module, list[ExpertGroup]] = weakref.WeakKeyDictionary()
        self._passes: weakref.WeakKeyDictionary[Module, int] = weakref.WeakKeyDictionary()
        self._root: weakref.ref[Module] | None = None
        self._seen: list[_Seen] = []
        self._measured: list[_Measured] = []

    def open(self, root: Module, _step: int, alive: Callable[[], bool]) -> None:
        groups = self._groups.get(root)
        if groups is None:
            names = {module: name for name, module in self._modules.inside(root)}
            groups = self._groups[root] = expert_groups(root, names)
        if not groups:
            return
        hooks = self.observe(alive)
        self._root = weakref.ref(root)
        self._seen = [_Seen(group) for group in groups]
        for seen in self._seen:
            _observe(seen, hooks)

    def close(self, whole: bool) -> None:
        self.stop()
        groups, self._seen = self._seen, []
        root = None if self._root is None else self._root()
        self._root = None
        if not whole or root is None:
            return
        # Experts of two layers in turn, as in JetMoe, have one router.
        routers = {seen.candidate.module: seen for seen in reversed(groups) if seen.candidate is not None}
        with_router = [seen for seen in groups if seen in routers.values()]
        with untracked():
            self._measured += [_measure(seen) for seen in with_router]
        passes = self._passes[root] = self._passes.get(root, 0) + 1
        if passes == SEARCHED_PASSES:
            self._groups[root] = [seen.group for seen in with_router]

    def blocks(self) -> Sequence[Block]:
        measured, self._measured = self._measured, []
        step = -(-sum(router.experts for router in measured) // MAX_SHARES)
        return [_block(router, at % step == 0) for at, router in enumerate(measured)]

    def finish(self) -> None:
        self._measured.clear()


def _observe(seen: _Seen, hooks: PassHooks) -> None:
    def put_out(module: Module, _args: tuple[Any, ...], output: Any) -> None:
        with untracked():
            # Of a candidate, or a module around it.
            if seen.began:
                seen.over |= seen.candidate is not None and module is seen.candidate.module
                return
            count = seen.group.count
            if seen.candidate is None:
                candidate = next((other for other in seen.group.candidates if other.module is module), None)
                for tensor in _tensors(output) if candidate is not None else ():
                    scores = scores_in(tensor, count)
                    if scores is not None:
                        seen.candidate, seen.scores = candidate, scores.clone()  # it may be changed in place
                        break
            router = seen.candidate
            if router is not None and (module is router.module or module in router.around):
                _take_choices(seen, output)

    def called(module: Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        with untracked():
            # Of an expert, or the module that holds all of them.
            seen.began = True
            if seen.over:
                return
            if module is seen.group.stacked:
                _take_choices(seen, args)
                _take_choices(seen, kwargs)
                return
            rows = next((tensor for tensor in _tensors((args, kwargs)) if tensor.dim()), None)
            if rows is not None:
                seen.rows[id(module)] = seen.rows.get(id(module), 0) + rows.numel() // max(rows.size(-1), 1)

    routers = [module for candidate in seen.group.candidates for module in (candidate.module, *candidate.around)]
    for module in dict.fromkeys(routers):
        hooks.after(module, put_out)
    for module in (*seen.group.called, *([seen.group.stacked] if seen.group.stacked is not None else [])):
        hooks.before(module, called)


def _block(router: _Measured, with_shares: bool) -> Block:
    shares = signals_at((SHARE,), *(f"{router.name}.expert_{at}" for at in range(router.experts)))
    dropped = signals_at((DROPPED,), router.name) if router.dropped else ()
    row = router.row
    if not with_shares:
        shares, row = (), torch.cat((row[: len(QUANTITIES)], row[len(QUANTITIES) + router.experts :]))
    return Block((*signals_at(QUANTITIES, router.name), *shares, *dropped), row)


def _tensors(given: Any, depth: int = 1) -> Iterator[Tensor]:
    if isinstance(given, Tensor):
        if is_measurable(given):
            yield given
    elif depth >= 0 and isinstance(given, (tuple, list, Mapping)):
        parts = given.values() if isinstance(given, Mapping) else given
        for part in islice(parts, MAX_OUTPUTS):
            yield from _tensors(part, depth - 1)


def _take_choices(seen: _Seen, given: Any) -> None:
    if seen.scores is None or seen.counts is not None:
        return
    for tensor in _tensors(given):
        choices = choices_in(tensor, seen.group.count, seen.scores.size(0))
        if choices is not None:
            seen.counts, seen.dropped = choices
            return


def _measure(seen: _Seen) -> _Measured:
    scores, router = seen.scores, seen.candidate
    assert scores is not None
    assert router is not None
    tokens, group, counts, dropped = scores.size(0), seen.group, seen.counts, seen.dropped
    rows = [seen.rows.get(id(expert), 0) for expert in group.called]
    if len(set(rows)) > 1:  # else each got all tokens, or a buffer of fixed size
        counts = on_device(rows, scores.device, torch.float32)
        if router.top_k and dropped is None:
            dropped = (1 - counts.sum() / (tokens * router.top_k)).clamp_min(0.0)
    elif counts is None and router.top_k:
        counts = counts_of(scores.topk(router.top_k, 1).indices, group.count)
    row = describe_router(scores, counts, tokens)
    if dropped is not None:
        row = torch.cat((row, dropped.to(row).view(1)))
    return _Measured(router.name, group.count, row, dropped is not None)


PROBES: tuple[ProbeFactory, ...] = (lambda context: RouterProbe(context.guard, context.layers, context.models),)
