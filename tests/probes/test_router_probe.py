from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from probes.looked_into import Row, looked_into, unguarded
from torch import Tensor, nn
from zoo.healthy.networks import Experts

from mlflow_stability.probes.hooks.module_calls import MODULE_CALLS
from mlflow_stability.probes.inside.router_probe import RouterProbe

TOKENS = 50


def look(model: nn.Module, *args: Tensor, probe: RouterProbe | None = None) -> Row:
    return looked_into(probe or RouterProbe(unguarded), model, *args)[1]


def entropy(shares: list[float]) -> float:
    """Of shares, as a share of the highest possible, by hand."""
    return -sum(share * math.log(share) for share in shares if share) / math.log(len(shares))


class Mixture(nn.Module):
    """One of four experts for each token, as many tokens as there is room for."""

    def __init__(self, gate: nn.Module, room: int = TOKENS, top_k: int = 1) -> None:
        super().__init__()
        self.gate = gate
        self.experts = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))
        self.room, self.top_k = room, top_k

    def forward(self, x: Tensor) -> Tensor:
        chosen = self.gate(x).topk(self.top_k, -1).indices
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).any(-1).nonzero()[: self.room, 0]
            if len(rows):
                out = out.index_add(0, rows, expert(x[rows]))
        return x + out


def tokens() -> Tensor:
    return torch.randn(TOKENS, 6, generator=torch.Generator().manual_seed(3))


def test_the_numbers_of_a_small_mixture_are_those_of_the_arithmetic_by_hand() -> None:
    torch.manual_seed(0)
    model, x = Mixture(nn.Linear(6, 4)), tokens()
    row = look(model, x)
    rows = model.gate(x).tolist()
    counts, certain, largest = [0] * 4, 0.0, 0.0
    for logits in rows:
        counts[logits.index(max(logits))] += 1
        powers = [math.exp(logit) for logit in logits]
        certain += entropy([power / sum(powers) for power in powers])
        largest = max(largest, *(abs(logit - sum(logits) / 4) for logit in logits))
    shares = [count / TOKENS for count in counts]
    assert min(counts) < max(counts)
    assert row["router_tokens@gate"] == TOKENS
    assert row["router_experts@gate"] == 4
    assert row["router_active@gate"] == 1
    assert [row[f"router_share@gate.expert_{at}"] for at in range(4)] == pytest.approx(shares)
    assert row["router_max_share@gate"] == pytest.approx(max(shares))
    assert row["router_load_entropy@gate"] == pytest.approx(entropy(shares), rel=1e-5)
    assert row["router_entropy@gate"] == pytest.approx(certain / TOKENS, rel=1e-5)
    assert row["router_max_logit@gate"] == pytest.approx(largest, rel=1e-5)
    assert row["router_dropped@gate"] == 0


def test_probabilities_give_the_numbers_of_the_logits_that_they_are_made_from() -> None:
    torch.manual_seed(0)
    gate, x = nn.Linear(6, 4), tokens()
    plain, soft = look(Mixture(gate), x), look(Mixture(nn.Sequential(gate, nn.Softmax(-1))), x)
    assert soft == pytest.approx(plain, rel=1e-4)


def test_tokens_for_which_an_expert_has_no_room_are_dropped() -> None:
    torch.manual_seed(0)
    gate, x = nn.Linear(6, 4), tokens()
    counts = gate(x).argmax(-1).bincount(minlength=4)
    row = look(Mixture(gate, room=8), x)
    kept = counts.clamp_max(8)
    assert row["router_dropped@gate"] == pytest.approx(1 - float(kept.sum()) / TOKENS)
    assert row["router_share@gate.expert_0"] == pytest.approx(float(kept[0] / kept.sum()))


def test_how_many_experts_a_token_goes_to_is_seen_where_no_attribute_says_it() -> None:
    torch.manual_seed(0)
    row = look(Experts(), torch.randn(64, 32))
    assert row["router_active@gate"] == 2
    assert sum(value for name, value in row.items() if name.startswith("router_share")) == pytest.approx(1)


class Soft(nn.Module):
    """All experts for each token, by weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3), nn.Softmax(-1))
        self.experts = nn.ModuleDict({name: nn.Linear(6, 6) for name in "abc"})
        self.router = self.weights

    def forward(self, x: Tensor) -> Tensor:
        weights = self.router(x)
        return sum(weights[:, at, None] * function(x) for at, function in enumerate(self.experts.values()))


def test_of_a_soft_mixture_the_mean_weight_is_the_share() -> None:
    torch.manual_seed(0)
    model, x = Soft(), tokens()
    model.weights, router = nn.Identity(), model.router
    row = look(model, x)
    assert [row[f"router_share@router.expert_{at}"] for at in range(3)] == pytest.approx(router(x).mean(0).tolist())
    assert row["router_active@router"] == row["router_experts@router"] == 3


class Deep(nn.Module):
    """As many blocks as classes, and a head behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x).relu()
        return self.head(x)


class Narrow(nn.Module):
    """As many blocks as they are wide, and an input layer before them."""

    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Linear(9, 4)
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.start(x)
        for block in self.blocks:
            x = block(x)
        return x


@pytest.mark.parametrize(
    ("make", "given"),
    [
        (Deep, torch.randn(20, 6)),
        (Narrow, torch.randn(20, 9)),
        (lambda: nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 4)), torch.randn(20, 6)),
    ],
    ids=["head", "input", "sequential"],
)
def test_a_layer_beside_equal_blocks_is_no_router(make: Callable[[], nn.Module], given: Tensor) -> None:
    probe, model = RouterProbe(unguarded), make()
    for _ in range(3):
        assert look(model, given, probe=probe) == {}


def test_after_two_looks_only_routers_and_experts_are_watched_and_none_by_a_closed_probe() -> None:
    model, probe, given = Experts(), RouterProbe(unguarded), torch.randn(64, 32)
    rows = [look(model, given, probe=probe) for _ in range(4)]
    assert all(row == rows[0] for row in rows)
    probe.open(model, 100, lambda: True)
    watched = {name.partition(".")[0] for name, item in model.named_modules() if id(item) in MODULE_CALLS}
    assert watched == {"gate", "experts"}
    probe.close(False)
    assert not any(id(module) in MODULE_CALLS for module in model.modules())
    assert probe.blocks() == []


def test_a_router_in_half_precision_is_measured_in_single() -> None:
    torch.manual_seed(0)
    model = Mixture(nn.Linear(6, 4)).to(torch.bfloat16)
    with torch.no_grad():
        model.gate.weight.mul_(1e4)
    row = look(model, tokens().to(torch.bfloat16))
    assert row["router_entropy@gate"] == pytest.approx(0, abs=1e-3)
    assert row["router_max_logit@gate"] > 1e3
