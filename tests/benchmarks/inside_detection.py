"""False alarms and recall of the judgements about attention, on real trainings of small transformers.

python tests/benchmarks/inside_detection.py [--seeds 3] [--steps 600] [--every 25]

Healthy are transformers of seven kinds that learn their task; ill are the same with a mistake. Attention is measured by
the probe that a recording has, more often than a recording does, and judged as it would be live. What is printed of
heads is what thresholds must bear: how narrow healthy heads become, and how large their scores.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from probes.looked_into import unguarded
from torch import Generator, Tensor, nn
from torch.nn import functional

from mlflow_stability.demo.tasks.language import LETTERS, written
from mlflow_stability.kinds.catalog import named
from mlflow_stability.kinds.panel import Panel
from mlflow_stability.probes.attention.attention_probe import AttentionProbe
from mlflow_stability.vocabulary import Finding, Signal, StepReading

WIDTH, HEADS, LENGTH, BATCH = 32, 4, 24, 16
RULES = ("attention_collapse", "attention_logit_growth")
WRITTEN = written(0)
Draw = Callable[[Generator], tuple[Tensor, Tensor]]


@dataclass
class Trained:
    """What one training came to."""

    losses: list[float] = field(default_factory=list)
    events: list[Finding] = field(default_factory=list)
    points: int = 0
    narrowest: float = 1.0
    """The lowest mean over half of a layer's heads."""
    narrow_head: float = 1.0
    largest: float = 0.0
    growth: float = 0.0


class Block(nn.Module):
    def __init__(self, causal: bool, crossed: bool = False) -> None:
        super().__init__()
        self.causal = causal
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2 + crossed))
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.cross = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True) if crossed else None
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        parts = self.qkv(self.norms[0](x)).chunk(3, -1)
        query, key, value = (each.unflatten(2, (HEADS, -1)).transpose(1, 2) for each in parts)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        if self.cross is not None:
            x = x + self.cross(self.norms[2](x), memory, memory, need_weights=False)[0]
        return x + self.mlp(self.norms[1](x))


class Transformer(nn.Module):
    def __init__(self, inputs: int, outputs: int, causal: bool, layers: int = 3) -> None:
        super().__init__()
        self.tokens = nn.Embedding(inputs, WIDTH) if inputs else nn.Linear(12, WIDTH)
        self.places = nn.Parameter(0.02 * torch.randn(2 * LENGTH + 1, WIDTH))
        self.blocks = nn.ModuleList(Block(causal) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        x = self.tokens(inputs) + self.places[: inputs.shape[1]]
        for each in self.blocks:
            x = each(x)
        return self.head(self.norm(x))


class Translator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(12, WIDTH)
        self.places = nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH))
        self.encoder = nn.ModuleList(Block(False) for _ in range(2))
        self.decoder = nn.ModuleList(Block(True, crossed=True) for _ in range(2))
        self.head = nn.Linear(WIDTH, 12)

    def forward(self, source: Tensor) -> Tensor:
        x = self.tokens(source) + self.places
        for each in self.encoder:
            x = each(x)
        y = self.tokens(functional.pad(source.flip(1)[:, :-1], (1, 0))) + self.places
        for each in self.decoder:
            y = each(y, x)
        return self.head(y)


def text(dice: Generator) -> tuple[Tensor, Tensor]:
    texts = WRITTEN
    rows = torch.randint(len(texts), (BATCH, 1), generator=dice)
    begins = torch.randint(texts.shape[1] - LENGTH - 1, (BATCH, 1), generator=dice)
    found = texts[rows, begins + torch.arange(LENGTH + 1)]
    return found[:, :-1], found[:, 1:]


def repeats(dice: Generator) -> tuple[Tensor, Tensor]:
    half = torch.randint(1, 16, (BATCH, LENGTH // 2), generator=dice)
    whole = torch.cat((half, half, half[:, :1]), 1)
    return whole[:, :-1], whole[:, 1:]


def reverses(dice: Generator) -> tuple[Tensor, Tensor]:
    source = torch.randint(12, (BATCH, LENGTH), generator=dice)
    return source, source.flip(1)


def fills_in(dice: Generator) -> tuple[Tensor, Tensor]:
    letters, _ = text(dice)
    hidden = torch.rand(letters.shape, generator=dice) < 0.15
    return letters.masked_fill(hidden, LETTERS), torch.where(hidden, letters, -100)


def sums(dice: Generator) -> tuple[Tensor, Tensor]:
    numbers = torch.randint(10, (BATCH, LENGTH), generator=dice)
    return numbers, numbers.cumsum(1) % 10


def patches(dice: Generator) -> tuple[Tensor, Tensor]:
    patterns = torch.randn(10, LENGTH, 12, generator=Generator().manual_seed(3))
    labels = torch.randint(10, (BATCH,), generator=dice)
    return patterns[labels] + 1.5 * torch.randn(BATCH, LENGTH, 12, generator=dice), labels[:, None].expand(-1, LENGTH)


def sorts(dice: Generator) -> tuple[Tensor, Tensor]:
    numbers = torch.randint(12, (BATCH, LENGTH), generator=dice)
    return numbers, numbers.sort(1).values


HEALTHY: dict[str, tuple[Callable[[], nn.Module], Draw]] = {
    "language": (lambda: Transformer(LETTERS, LETTERS, causal=True), text),
    "repetition": (lambda: Transformer(16, 16, causal=True), repeats),
    "translation": (Translator, reverses),
    "masked letters": (lambda: Transformer(LETTERS + 1, LETTERS, causal=False), fills_in),
    "running sums": (lambda: Transformer(10, 10, causal=True), sums),
    "patches": (lambda: Transformer(0, 10, causal=False), patches),
    "sorting": (lambda: Transformer(12, 12, causal=False), sorts),
}


def trained(
    kind: str,
    seed: int,
    steps: int,
    every: int,
    rate: float = 3e-3,
    mistake: Callable[[nn.Module, int], float] | None = None,
) -> Trained:
    """A training with warm-up and clipping; `mistake` gives what the learning rate is multiplied with at a step."""
    torch.manual_seed(seed)
    dice = Generator().manual_seed(seed + 50)
    make, draw = HEALTHY[kind]
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    probe = AttentionProbe(every, 1, unguarded, lambda _map: None)
    panel, said = Panel(named(RULES)), Trained()
    starts: dict[str, float] = {}
    for step in range(1, steps + 1):
        inputs, targets = draw(dice)
        optimizer.param_groups[0]["lr"] = rate * min(1.0, step / 50) * (mistake(model, step) if mistake else 1.0)
        signals, values = [Signal("loss")], []
        due = probe.due(step)
        if due:
            probe.open(model, step, lambda: True)
        logits = model(inputs)
        if due:
            probe.close(True)
            for block in probe.blocks():
                signals += block.signals
                values += torch.as_tensor(block.values).tolist()
        loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        said.losses.append(float(loss.detach()))
        values = [said.losses[-1], *values]
        said.events += panel.judge(StepReading(step, tuple(signals), tuple(values)))
        look(said, starts, zip(signals, values, strict=True))
    return said


def look(said: Trained, starts: dict[str, float], found: Iterator[tuple[Signal, float]]) -> None:
    layers: dict[str, list[float]] = {}
    for signal, value in found:
        if signal.quantity == "attention_entropy":
            layers.setdefault(signal.place.rpartition(".")[0], []).append(value)
            said.points += 1
        elif signal.quantity == "attention_max_logit":
            said.largest = max(said.largest, value)
            said.growth = max(said.growth, value / max(starts.setdefault(signal.place, value), 1e-6))
    for heads in layers.values():
        said.narrow_head = min(said.narrow_head, *heads)
        said.narrowest = min(said.narrowest, sorted(heads)[len(heads) // 2 - 1])


def fast_for_a_while(_model: nn.Module, step: int) -> float:
    return 100.0 if 201 <= step <= 220 else 1.0


def sharp_queries(model: nn.Module, step: int) -> float:
    """The weights of the queries grow by a twentieth a step, as where they are not held back."""
    if 200 < step <= 320:
        with torch.no_grad():
            for each in model.modules():
                if isinstance(each, Block):
                    each.qkv.weight[: 2 * WIDTH] *= 1.03
    return 1.0


def much_too_fast(_model: nn.Module, step: int) -> float:
    return 30.0 if step > 100 else 1.0


ILL = {"fast for a while": fast_for_a_while, "sharp queries": sharp_queries, "much too fast": much_too_fast}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--every", type=int, default=25)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'healthy':18}{'loss':>14}{'values':>9}{'narrow head':>13}{'half':>7}{'logit':>7}{'growth':>8}  said")
    points = events = 0
    for kind in HEALTHY:
        for seed in range(options.seeds):
            each = trained(kind, seed, options.steps, options.every)
            points, events = points + each.points, events + len(each.events)
            course = f"{each.losses[0]:.2f} -> {sum(each.losses[-20:]) / 20:.2f}"
            kinds = ", ".join(f"{event.kind}@{event.step}" for event in each.events)
            print(
                f"{kind:18}{course:>14}{each.points:>9,}{each.narrow_head:>13.3f}{each.narrowest:>7.3f}"
                f"{each.largest:>7.1f}{each.growth:>8.1f}  {kinds}",
                flush=True,
            )
    print(f"{events} events in {len(HEALTHY) * options.seeds} healthy trainings, {points:,} values of heads\n")
    for name, mistake in ILL.items():
        for kind in ("language", "masked letters", "sorting"):
            found = [
                trained(kind, seed, options.steps, options.every, mistake=mistake) for seed in range(options.seeds)
            ]
            hits = [sum(any(event.kind == rule for event in each.events) for each in found) for rule in RULES]
            largest = max(each.largest for each in found)
            said = ", ".join(f"{rule} {hit} of {len(found)}" for rule, hit in zip(RULES, hits, strict=True))
            narrowest = min(each.narrowest for each in found)
            print(f"{name:18}{kind:18}{said}; scores to {largest:.0f}, half of a layer at {narrowest:.3f}", flush=True)


if __name__ == "__main__":
    main()
