"""False alarms and recall of the judgements about routers of experts, on real trainings of small mixtures.

python tests/benchmarks/routing_detection.py [--seeds 6] [--steps 600] [--every 25]

Healthy are mixtures of six kinds that learn their task; ill are the same with a mistake. Routers are measured by the
probe that a recording has, four times as often as a recording does, and judged as they would be live. What is printed
is what thresholds must bear: how few experts a healthy router uses, the smallest share, and how large its logits are.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from probes.looked_into import unguarded
from torch import Generator, Tensor, nn
from torch.nn import functional
from zoo.healthy.data import points

from mlflow_stability.demo.tasks.language import LETTERS, lines, written
from mlflow_stability.kinds.catalog import named
from mlflow_stability.kinds.panel import Panel
from mlflow_stability.probes.routing.router_probe import RouterProbe
from mlflow_stability.vocabulary import Finding, Signal, StepReading

RULES = ("router_collapse", "dead_expert")
WIDTH, BATCH = 32, 128


@dataclass
class Trained:
    """What one training came to."""

    losses: list[float] = field(default_factory=list)
    events: list[Finding] = field(default_factory=list)
    measurements: int = 0
    fewest: float = 1.0
    """The lowest effective number of experts, as a share of the way from the least possible to all of them."""
    smallest: float = 1.0
    """The smallest share, as a multiple of an even one."""
    largest: float = 0.0
    """The largest router logit."""


class Mixture(nn.Module):
    """Experts beside a gate; the auxiliary loss stands in `balance` after each pass."""

    def __init__(self, experts: int = 8, top_k: int = 2, capacity: float = 0.0, bias: bool = False) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 48), nn.ReLU(), nn.Linear(48, WIDTH)) for _ in range(experts)
        )
        self.top_k, self.capacity = top_k, capacity
        self.register_buffer("bias", torch.zeros(experts) if bias else None)
        self.balance = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, WIDTH)
        logits = self.gate(flat)
        shares = logits.softmax(1)
        if self.top_k == 0:
            return x + sum(shares[:, at, None] * each(flat) for at, each in enumerate(self.experts)).view_as(x)
        chosen = (shares if self.bias is None else shares + self.bias).topk(self.top_k, 1).indices
        load = functional.one_hot(chosen, len(self.experts)).sum((0, 1)) / chosen.numel()
        self.balance = len(self.experts) * (load * shares.mean(0)).sum()
        if self.bias is not None and self.training:
            self.bias += 0.002 * (1 / len(self.experts) - load).sign()
        out = torch.zeros_like(flat)
        most = int(self.capacity * len(flat) * self.top_k / len(self.experts)) if self.capacity else len(flat)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).any(1).nonzero()[:most, 0]
            if len(rows):
                out = out.index_add(0, rows, shares[rows, number, None] * expert(flat[rows]))
        return x + out.view_as(x)


class Classifier(nn.Module):
    def __init__(self, mixture: Mixture, weight: float = 0.1) -> None:
        super().__init__()
        self.mixture, self.head, self.weight = mixture, nn.Linear(WIDTH, 10), weight
        self.dice = Generator()

    def loss(self) -> Tensor:
        inputs, labels = points(self.dice)(BATCH)
        return functional.cross_entropy(self(inputs), labels) + self.weight * self.mixture.balance

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.mixture(inputs))


class Language(nn.Module):
    """A tiny Mixtral of transformers that reads letters."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import MixtralConfig, MixtralForCausalLM

        sizes = {"hidden_size": WIDTH, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
        config = MixtralConfig(
            vocab_size=LETTERS, **sizes, num_key_value_heads=2, max_position_embeddings=64, num_local_experts=4,
            num_experts_per_tok=2, output_router_logits=True, router_aux_loss_coef=0.02,
        )  # fmt: skip
        self.model = MixtralForCausalLM(config)
        self.dice, self.texts = Generator(), written(0)

    def loss(self) -> Tensor:
        letters, _ = lines(self.texts, self.dice, 8)
        return self(letters)

    def forward(self, letters: Tensor) -> Tensor:
        return self.model(letters, labels=letters).loss


HEALTHY: dict[str, Callable[[], nn.Module]] = {
    "two of eight": lambda: Classifier(Mixture()),
    "one of eight, capacity": lambda: Classifier(Mixture(8, 1, capacity=1.25)),
    "two of sixteen": lambda: Classifier(Mixture(16, 2)),
    "balanced by bias": lambda: Classifier(Mixture(8, 2, bias=True), weight=0.0),
    "soft": lambda: Classifier(Mixture(4, 0)),
    "Mixtral": Language,
}


def trained(
    make: Callable[[], nn.Module],
    seed: int,
    steps: int,
    every: int,
    rate: float = 3e-3,
    mistake: Callable[[nn.Module, int], None] | None = None,
) -> Trained:
    torch.manual_seed(seed)
    model = make()
    model.dice.manual_seed(seed + 50)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    probe, panel, said = RouterProbe(unguarded, every), Panel(named(RULES)), Trained()
    for step in range(1, steps + 1):
        if mistake is not None:
            mistake(model, step)
        due = probe.due(step)
        signals, values = [Signal("loss")], []
        if due:
            probe.open(model, step, lambda: True)
        loss = model.loss()
        if due:
            probe.close(True)
            for block in probe.blocks():
                signals += block.signals
                values += torch.as_tensor(block.values).tolist()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        said.losses.append(float(loss.detach()))
        said.events += panel.judge(StepReading(step, tuple(signals), (said.losses[-1], *values)))
        look(said, signals[1:], values)
    return said


def look(said: Trained, signals: Sequence[Signal], values: Sequence[float]) -> None:
    of: dict[str, float] = {}
    for signal, value in zip(signals, values, strict=True):
        of[signal.quantity] = value
        experts = of.get("router_experts", 0.0)
        if signal.quantity == "router_load_entropy":
            least = of["router_active"] if of["router_active"] < experts else 1.0
            said.fewest = min(said.fewest, (experts**value - least) / (experts - least))
            said.measurements += 1
        elif signal.quantity == "router_share":
            said.smallest = min(said.smallest, value * experts)
        elif signal.quantity == "router_max_logit":
            said.largest = max(said.largest, value)


def one_sided(model: nn.Module, step: int) -> None:
    """A load-balancing loss with its sign wrong."""
    if step == 1:
        model.weight = -1.0


@torch.no_grad()
def rich_get_richer(model: nn.Module, step: int) -> None:
    """The bias of one expert grows."""
    if step == 1:
        model.mixture.register_buffer("bias", torch.zeros(8))
    if step > 150:
        model.mixture.bias[5] += 0.01


@torch.no_grad()
def switched_off(model: nn.Module, step: int) -> None:
    """Two experts that no token reaches any more, by a bias that was forgotten."""
    if step == 1:
        model.mixture.register_buffer("bias", torch.zeros(8))
    if step > 150:
        model.mixture.bias[3:5] = -10.0


ILL: dict[str, tuple[str, Callable[[nn.Module, int], None], str]] = {
    "sign wrong": ("one of eight, capacity", one_sided, "router_collapse"),
    "rich get richer": ("one of eight, capacity", rich_get_richer, "router_collapse"),
    "switched off": ("two of eight", switched_off, "dead_expert"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--every", type=int, default=25)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'healthy':24}{'loss':>14}{'measured':>10}{'in use':>8}{'share':>8}{'logit':>7}  said")
    measurements = events = 0
    for kind, make in HEALTHY.items():
        for seed in range(options.seeds):
            each = trained(make, seed, options.steps, options.every)
            measurements, events = measurements + each.measurements, events + len(each.events)
            print(row(kind, each), flush=True)
    print(f"{events} events in {len(HEALTHY) * options.seeds} healthy trainings, {measurements:,} measurements\n")
    for name, (kind, mistake, expected) in ILL.items():
        found = [
            trained(HEALTHY[kind], seed, options.steps, options.every, mistake=mistake) for seed in range(options.seeds)
        ]
        for each in found:
            print(row(name, each), flush=True)
        hits = sum(any(event.kind == expected for event in each.events) for each in found)
        print(f"{name}: {expected} in {hits} of {len(found)}", flush=True)


def row(name: str, each: Trained) -> str:
    course = f"{each.losses[0]:.2f} -> {sum(each.losses[-20:]) / 20:.2f}"
    kinds = ", ".join(f"{event.kind} {event.severity.name} @{event.step}" for event in each.events)
    return (
        f"{name:24}{course:>14}{each.measurements:>10,}{each.fewest:>8.2f}{each.smallest:>8.2f}{each.largest:>7.1f}"
        f"  {kinds}"
    )


if __name__ == "__main__":
    main()
