"""The numbers of one router in one forward pass: where tokens go, how certain it is, how large its logits are.

In: what a router put out for each token, a number for each expert, and which experts were chosen where that is known.
Out: one number for each quantity, and the share of each expert. Guarantees: nothing is waited for; no random number;
scratch memory is a few times that of the scores, which are thinned to four million values.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mlflow_stability.vocabulary.measured import SignalType

SIGNALS = (
    SignalType(
        "router_tokens",
        "tokens of the batch, of each router of a mixture of experts; every `layers_every_n_steps`, as those below",
        "routing",
        unit="{token}",
        interval="forward pass",
    ),
    SignalType("router_experts", "experts of the router", "routing", interval="forward pass"),
    SignalType("router_active", "to how many experts a token goes", "routing", interval="forward pass"),
    SignalType(
        "router_entropy",
        "how certain the router is of each token: the mean entropy of its probabilities, 0 to 1",
        "routing",
        interval="forward pass",
    ),
    SignalType(
        "router_load_entropy",
        "how even the shares are, as entropy: 0 where one expert gets all, 1 where all get the same; a metric, too",
        "routing",
        every_place=True,
        interval="forward pass",
    ),
    SignalType("router_max_share", "largest share of an expert", "routing", interval="forward pass"),
    SignalType(
        "router_max_logit",
        "largest router logit, without the mean of its token's logits; a metric, too",
        "routing",
        every_place=True,
        combined="max",
        interval="forward pass",
    ),
    SignalType(
        "router_share",
        "by expert (`blocks.3.moe.router.expert_0`): its share of the tokens' choices",
        "routing",
        interval="forward pass",
    ),
    SignalType(
        "router_dropped",
        "share of tokens, or of their choices, that no expert takes; where it can be seen",
        "routing",
        interval="forward pass",
    ),
)

QUANTITIES = tuple(each.quantity for each in SIGNALS[:7])
"""What `describe_router` gives before the shares of the experts, in its order."""
SHARE, DROPPED = "router_share", "router_dropped"
MOST_VALUES = 2**22
AT_ONCE = 2**24
"""So many comparisons of a choice with an expert are made at a time."""
NEAR_ONE = 0.01
"""How far the sum of a row of probabilities in half precision may be from one."""


def describe_router(scores: Tensor, counts: Tensor | None, tokens: int) -> Tensor:
    """The quantities and the shares; `counts`: how often each expert was chosen, None for a soft mixture."""
    wide = scores[:: -(-scores.numel() // MOST_VALUES)].to(torch.float32)
    sums = wide.sum(1)
    given = (wide >= 0).all() & ((sums - 1).abs() < NEAR_ONE).all()
    tiny = torch.finfo(torch.float32).tiny
    logs = torch.where(given, wide.clamp_min(tiny).log(), wide.log_softmax(1))
    shown = torch.where(given, logs, wide)
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
    """How often each expert is named in whole numbers; other numbers mean that a choice was dropped."""
    named = torch.arange(experts, device=choices.device, dtype=choices.dtype)
    rows = torch.split(choices.reshape(-1, 1), max(AT_ONCE // experts, 1))
    return torch.stack([(each == named).sum(0) for each in rows]).sum(0)


def scores_in(output: Tensor, experts: int) -> Tensor | None:
    """A row for each token, where an output has a number for each expert."""
    if output.dim() < 2 or output.size(-1) != experts or not output.is_floating_point():
        return None
    rows = output.reshape(-1, experts)
    return rows if rows.size(0) >= 2 else None


def choices_in(given: Tensor, experts: int, tokens: int) -> tuple[Tensor, Tensor | None] | None:
    """How often each expert is chosen, and the share of dropped tokens; None where this is no list of choices.

    A row of whole numbers for each token either names the experts or has a one for each chosen expert. Only the second
    shows that a token was dropped: nothing is left in its row.
    """
    if given.is_floating_point() or given.dtype is torch.bool or given.numel() % tokens or given.dim() < 1:
        return None
    each = given.numel() // tokens
    if given.dim() >= 2 and given.size(-1) == experts and each == experts:
        rows = given.reshape(tokens, experts) != 0
        return rows.sum(0), 1 - rows.any(1).sum() / tokens
    if 1 <= each < experts and (each == 1 or given.size(-1) == each):
        return counts_of(given, experts), None
    return None
