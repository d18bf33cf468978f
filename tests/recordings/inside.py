"""Small real trainings with something wrong inside the model, and one that the autopilot rolls back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from trainings import CLASSES, WIDTH, batches, classifier, step_of

from mlflow_stability import Options

LETTERS = 24
LENGTH = 24


def rescue() -> None:
    """For twenty steps the learning rate is thirty times too high; the training is rolled back and goes on."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step, inputs, labels in batches():
        optimizer.param_groups[0]["lr"] = 1.5 if 300 <= step < 320 else 0.05
        loss = functional.mse_loss(model(inputs), 3.0 * functional.one_hot(labels, CLASSES).float())
        step_of(model, optimizer, loss)


def dead_units() -> None:
    """One step with a learning rate far too high leaves most rectifiers of a layer behind, never to fire again."""
    model = classifier(hidden=96, activation=nn.ReLU)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step, inputs, labels in batches():
        if step == 250:
            with torch.no_grad():  # as after an update that went wrong
                model[2].bias[:80] -= 60.0
        step_of(model, optimizer, functional.cross_entropy(model(inputs), labels))


class Reader(nn.Module):
    """A transformer of one layer that says which letter comes next."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(LETTERS, width), nn.Embedding(LENGTH, width)
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.head = nn.Linear(width, LETTERS)

    def forward(self, given: Tensor) -> Tensor:
        x = self.letters(given) + self.places(torch.arange(given.shape[1]))
        mask = nn.Transformer.generate_square_subsequent_mask(given.shape[1])
        values = self.norm(x)
        return self.head(x + self.attention(values, values, values, attn_mask=mask, need_weights=False)[0])


def attention_collapse() -> None:
    """From step 200 on queries and keys grow by five per cent a step: scores without a bound, and one key takes all."""
    torch.manual_seed(0)
    dice = torch.Generator().manual_seed(1)
    grammar = (2.0 * torch.randn(LETTERS, LETTERS, generator=dice)).softmax(-1)
    model = Reader()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(1, 401):
        letters = [torch.randint(LETTERS, (32, 1), generator=dice)]
        for _ in range(LENGTH):
            letters.append(torch.multinomial(grammar[letters[-1][:, 0]], 1, generator=dice))
        text = torch.cat(letters, 1)
        loss = functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        step_of(model, optimizer, loss, clip=1.0)
        if 200 <= step < 320:
            with torch.no_grad():
                model.attention.in_proj_weight[: 2 * 32].mul_(1.05)


class Encoder(nn.Module):
    """Sparse binary codes: the largest values are on, and the gradient takes the way of a sigmoid."""

    def __init__(self, bits: int = 512, active: int = 26) -> None:
        super().__init__()
        self.values = nn.Linear(WIDTH, bits)
        self.register_buffer("temperature", torch.ones(()))
        self.active = active

    def forward(self, x: Tensor) -> Tensor:
        values = self.values(x)
        least = values.topk(self.active, -1).values[..., -1:].detach()
        soft = torch.sigmoid((values - least) / self.temperature)
        return ((values >= least).to(soft) - soft).detach() + soft


def sdr_collapse() -> None:
    """From step 250 on the same bits win for every input."""
    torch.manual_seed(0)
    model = nn.Sequential()
    model.add_module("encoder", Encoder())
    model.add_module("decoder", nn.Linear(512, WIDTH))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, inputs, _ in batches():
        if step == 250:
            with torch.no_grad():
                model.encoder.values.bias[:26] += 100.0
        step_of(model, optimizer, functional.mse_loss(model(inputs), inputs))


INSIDE = {item.__name__: item for item in (rescue, dead_units, attention_collapse, sdr_collapse)}
SETTINGS: dict[str, dict[str, Any]] = {
    "rescue": {"rollback": True},
    "dead_units": {"layers_every_n_steps": 20},
    "attention_collapse": {"attention_every_n_steps": 20},
    "sdr_collapse": {"options": Options(sdr_check_interval=10)},
}
"""What such a training asks of `autolog()`, so that a short one shows what a long one does."""
