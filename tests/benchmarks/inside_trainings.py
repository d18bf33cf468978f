"""Trainings whose inside is worth a look: encoders of sparse codes, healthy and ill, layers that die or are pinned.

In: a seed, and a meter that is told of models. Healthy ones learn; of ill ones it stands beside them what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from benchmarks.healthy_oddities import contrastive, generative_pair, variational
from benchmarks.ill_layers import dead_units, dead_units_later
from benchmarks.layer_meter import Meter
from benchmarks.usual_trainings import (
    STEPS,
    Training,
    classifies,
    deep,
    deep_tanh_with_norm,
    descend,
    lstm,
    points,
    post_norm_with_warm_up,
    pre_norm_transformer,
    reads,
    relu_mlp,
    small_cnn,
    to_zero_loss,
)
from torch import Generator, Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adam, AdamW

from mlflow_stability.demo.tasks.language import LETTERS

WORDS = 300


class Encoder(nn.Module):
    """The k largest of many values are on; the gradient takes the way of a sigmoid."""

    def __init__(self, given: int, bits: int, active: int) -> None:
        super().__init__()
        self.values = nn.Linear(given, bits)
        self.log_temperature = nn.Parameter(torch.zeros(()))
        self.active = active

    def forward(self, x: Tensor) -> Tensor:
        values = self.values(x)
        least = values.topk(self.active, -1).values[..., -1:].detach()
        soft = torch.sigmoid((values - least) / self.log_temperature.exp())
        return ((values >= least).to(soft) - soft).detach() + soft


class Autoencoder(nn.Module):
    def __init__(self, bits: int = 512, active: int = 26) -> None:
        super().__init__()
        self.encoder = Encoder(32, bits, active)
        self.decoder = nn.Linear(bits, 32)

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.encoder(x))


class Speaker(nn.Module):
    """Words, perhaps in their context, as sparse codes, and the next one from them."""

    def __init__(self, words: int, context: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(words, 32)
        self.context = nn.GRU(32, 32, batch_first=True) if context else None
        self.encoder = Encoder(32, 256, 16)
        self.head = nn.Linear(256, words)

    def forward(self, given: Tensor) -> Tensor:
        x = self.words(given)
        return self.head(self.encoder(x if self.context is None else self.context(x)[0]))


def rebuilds(model: nn.Module, seed: int) -> Callable[[int], Tensor]:
    dice = Generator().manual_seed(seed + 100)

    def loss_of(_step: int) -> Tensor:
        inputs, _ = points(dice, 128)
        return functional.mse_loss(model(inputs), inputs)

    return loss_of


def sdr_autoencoder(seed: int, meter: Meter, hurt: Callable[[int, Autoencoder], None] | None = None) -> None:
    torch.manual_seed(seed)
    model = Autoencoder()

    @torch.no_grad()
    def after(step: int) -> None:
        if hurt is not None:
            hurt(step, model)

    descend(meter, model, AdamW(model.parameters(), lr=1e-3), rebuilds(model, seed), steps=STEPS, after=after)


def sdr_classifier(seed: int, meter: Meter) -> None:
    torch.manual_seed(seed)
    model = nn.Sequential(Encoder(32, 256, 20), nn.Linear(256, 10))
    descend(meter, model, Adam(model.parameters(), lr=1e-3), classifies(model, points, seed))


def sdr_in_context(seed: int, meter: Meter) -> None:
    torch.manual_seed(seed)
    model = Speaker(LETTERS, context=True)
    descend(meter, model, AdamW(model.parameters(), lr=3e-3), reads(model, seed, 8), steps=800, clip=1.0)


def sdr_of_words(seed: int, meter: Meter) -> None:
    """Every word has one code wherever it stands: a batch has no more codes than words."""
    torch.manual_seed(seed)
    model = Speaker(WORDS, context=False)
    grammar = (3 * torch.randn(WORDS, WORDS, generator=Generator().manual_seed(6))).softmax(-1)
    dice = Generator().manual_seed(seed + 100)

    def loss_of(_step: int) -> Tensor:
        given = torch.randint(WORDS, (8, 32), generator=dice)
        following = torch.multinomial(grammar[given.flatten()], 1, generator=dice)[:, 0]
        return functional.cross_entropy(model(given).flatten(0, 1), following)

    descend(meter, model, AdamW(model.parameters(), lr=3e-3), loss_of, steps=800)


def same_bits(seed: int, meter: Meter) -> None:
    """From step 500 on the same bits win for every input."""

    def hurt(step: int, model: Autoencoder) -> None:
        if step == 500:
            model.encoder.values.bias[:26] += 100.0

    sdr_autoencoder(seed, meter, hurt)


def rich_get_richer(seed: int, meter: Meter) -> None:
    """Bits that win are favoured: boosting with the wrong sign."""

    def hurt(_step: int, model: Autoencoder) -> None:
        inputs, _ = points(Generator().manual_seed(0), 256)
        model.encoder.values.bias += 0.03 * (model.encoder(inputs).mean(0) - 26 / 512).sign()

    sdr_autoencoder(seed, meter, hurt)


def heating(seed: int, meter: Meter) -> None:
    """The temperature grows by half a percent in every step."""
    sdr_autoencoder(seed, meter, lambda step, model: model.encoder.log_temperature.add_(0.005))


def pinned_tanh(seed: int, meter: Meter) -> None:
    """At step 300 the weights of a layer before a tanh grow a hundredfold."""
    torch.manual_seed(seed)
    model = deep(48, 3, nn.Tanh)
    loss = classifies(model, points, seed)

    def loss_of(step: int) -> Tensor:
        if step == 300:
            with torch.no_grad():
                model[4].weight.mul_(100.0)
        return loss(step)

    descend(meter, model, SGD(model.parameters(), lr=0.01), loss_of)


def drifting_sigmoid(seed: int, meter: Meter) -> None:
    """The biases before a sigmoid run away."""
    torch.manual_seed(seed)
    model = deep(48, 1, nn.Sigmoid)

    @torch.no_grad()
    def after(_step: int) -> None:
        model[2].bias.mul_(1.01).add_(model[2].bias.sign(), alpha=0.002)

    descend(meter, model, Adam(model.parameters(), lr=1e-3), classifies(model, points, seed), after=after)


def views_without_contrast(seed: int, meter: Meter) -> None:
    """Two views of an input are drawn together, and nothing keeps inputs apart."""
    torch.manual_seed(seed)
    model = deep(48, 1)
    dice = Generator().manual_seed(seed + 100)

    def loss_of(_step: int) -> Tensor:
        inputs, _ = points(dice)
        one, other = (
            functional.normalize(model(inputs + 0.5 * torch.randn(inputs.shape, generator=dice)), dim=-1)
            for _ in range(2)
        )
        return (one - other).square().sum(-1).mean()

    descend(meter, model, AdamW(model.parameters(), lr=1e-3), loss_of)


HEALTHY: tuple[Training, ...] = (
    small_cnn, relu_mlp, to_zero_loss, deep_tanh_with_norm, lstm, pre_norm_transformer, post_norm_with_warm_up,
    generative_pair, variational, contrastive, sdr_autoencoder, sdr_classifier, sdr_in_context, sdr_of_words,
)  # fmt: skip
ILL: tuple[tuple[Training, str], ...] = (
    (dead_units, "dead_units"),
    (dead_units_later, "dead_units"),
    (drifting_sigmoid, "saturated_activation"),
    (pinned_tanh, "saturated_activation"),
    (same_bits, "sdr_collapse"),
    (rich_get_richer, "sdr_bit_usage"),
    (heating, "sdr_temperature"),
    (views_without_contrast, "representation_collapse"),
)
"""With what is to be said of each."""
