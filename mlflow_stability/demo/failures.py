"""Failures of the learning rate, of model, data and script."""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import mse_loss
from torch.optim import Adam, AdamW

from mlflow_stability.demo.language import LENGTH, LETTERS, language_task, plain_gpt, scheduled_gpt, tiny_gpt
from mlflow_stability.demo.tables import (
    COLUMNS,
    classes,
    classification,
    deep_classification,
    regression_with_momentum,
    test_batches,
)
from mlflow_stability.demo.training_loop import Batch, Failure, FailurePoints, Task, cosine

FIRST, LAST = 261, 280
POST_NORM_STEPS, WARM_UP = 200, 100
WIDTH, LAYERS = 32, 8
AUTOENCODER_STEPS, COLLAPSE_STEP = 400, 200
BITS, ACTIVE_BITS = 512, 26
EXPONENT_BIT = 1 << 30


class OtherRate(FailurePoints):
    """Multiplies the learning rate by a factor, from one step to another."""

    def __init__(self, factor: float, first: int = 1, last: float = math.inf) -> None:
        self._factor, self._first, self._last = factor, first, last

    def share_of_lr(self, step: int, share: float) -> float:
        return self._factor * share if self._first <= step <= self._last else share


class SetAtTheBeginning(FailurePoints):
    """Sets the learning rate at the first step."""

    def __init__(self, rate: float) -> None:
        self._rate = rate

    def before(self, step: int, task: Task) -> None:
        if step == 1:
            for group in task.optimizer.param_groups:
                group["lr"] = self._rate


class PostNormTransformer(nn.Module):
    """A deep transformer with its norms behind the residuals, which needs a warm-up."""

    def __init__(self) -> None:
        super().__init__()
        self.characters, self.places = nn.Embedding(LETTERS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=False)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, LETTERS)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH))

    def forward(self, inputs: Tensor) -> Tensor:
        x = self.characters(inputs) + self.places(torch.arange(inputs.shape[1]))
        scores: Tensor = self.head(self.layers(x, mask=self.mask, is_causal=True))
        return scores


def post_norm_transformer(seed: int) -> Task:
    """Train with a warm-up of half of the training."""
    return language_task(
        seed,
        PostNormTransformer,
        lambda model: Adam(model.parameters(), lr=1e-2),
        share_of_lr=cosine(POST_NORM_STEPS, WARM_UP),
        steps=POST_NORM_STEPS,
    )


class NoWarmUp(FailurePoints):
    def share_of_lr(self, step: int, share: float) -> float:
        return max(share, 1.0) if step <= WARM_UP else share


JUMP = Failure(
    name="learning rate x30",
    what="The schedule gives thirty times the learning rate for twenty steps.",
    task=scheduled_gpt,
    trouble=OtherRate(30, FIRST, LAST),
    onset=FIRST + 1,
    causes=("learning_rate_jump",),
)
TOO_HIGH = Failure(
    name="GPT: lr 1.0 from 0",
    what="The learning rate of AdamW is 1.0 from the first step.",
    task=plain_gpt,
    trouble=SetAtTheBeginning(1.0),
    onset=2,
    causes=("learning_rate_too_high",),
)
TOO_LOW = Failure(
    name="learning rate x1e-7",
    what="The learning rate is a ten-millionth of the usual one: the loss stays where it began.",
    task=classification,
    trouble=OtherRate(1e-7),
    onset=2,
    causes=("learning_rate_too_low",),
)
NO_WARM_UP = Failure(
    name="missing warm-up",
    what="The full learning rate from the first step on: the post-norm transformer falls to guessing frequencies.",
    task=post_norm_transformer,
    trouble=NoWarmUp(),
    onset=2,
    causes=("no_warm_up", "learning_rate_too_high"),
)


class FlippedBit(FailurePoints):
    """Flips a bit in the exponent of one weight."""

    def before(self, step: int, task: Task) -> None:
        if step == FIRST:
            weight = task.model.get_parameter("blocks.0.mlp.0.weight").data
            weight.view(torch.int32)[3, 5] ^= EXPONENT_BIT


class TooStrongForAWhile(FailurePoints):
    """Multiplies the weight decay by 10,000 for 20 steps."""

    def before(self, step: int, task: Task) -> None:
        if step in (FIRST, LAST + 1):
            for group in task.optimizer.param_groups:
                group["weight_decay"] *= 1e4 if step == FIRST else 1e-4


class ScaledInitialisation(FailurePoints):
    def __init__(self, factor: float) -> None:
        self._factor = factor

    def before(self, step: int, task: Task) -> None:
        if step == 1:
            with torch.no_grad():
                for module in task.model.modules():
                    if isinstance(module, nn.Linear):
                        module.weight *= self._factor


BIT_FLIP = Failure(
    name="bit flip",
    what="A bit in the exponent of one weight flips, and the weight is about 1e37.",
    task=scheduled_gpt,
    trouble=FlippedBit(),
    onset=FIRST,
    causes=("damaged_weights", "hardware"),
)
WEIGHT_DECAY = Failure(
    name="weight decay gone wrong",
    what="Weight decay is 100 for twenty steps: the weights shrink to a few per cent.",
    task=scheduled_gpt,
    trouble=TooStrongForAWhile(),
    onset=FIRST + 1,
    causes=("weight_decay",),
)
SMALL_INITIALISATION = Failure(
    name="initialisation x0.01",
    what="All initial weights are a hundredth of the usual ones: no gradient reaches the first layers.",
    task=deep_classification,
    trouble=ScaledInitialisation(0.01),
    onset=1,
    causes=("vanishing_gradients",),
)
LARGE_INITIALISATION = Failure(
    name="initialisation x10",
    what="All initial weights are ten times the usual ones: the first update is so large that numbers overflow.",
    task=deep_classification,
    trouble=ScaledInitialisation(10.0),
    onset=1,
    causes=("gradient_explosion", "overflow"),
)


class WrongGroup(FailurePoints):
    """Multiplies the learning rate of queries and keys by 100 for 20 steps."""

    def before(self, step: int, task: Task) -> None:
        if FIRST <= step <= LAST:
            task.optimizer.param_groups[0]["lr"] *= 100


class SparseEncoder(nn.Module):
    """Sparse binary codes: the largest values are on, and the gradient is that of a sigmoid.

    Bits that are seldom on are boosted, so that all are used.
    """

    def __init__(self) -> None:
        super().__init__()
        self.values = nn.Linear(COLUMNS, BITS)
        self.boosting = 0.5
        self.register_buffer("boost", torch.zeros(BITS))
        self.register_buffer("temperature", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        values = self.values(x) + self.boost
        smallest = values.topk(ACTIVE_BITS, -1).values[..., -1:].detach()
        soft = torch.sigmoid((values - smallest) / self.temperature)
        on = (values >= smallest).to(soft)
        if self.training:
            self.boost += self.boosting * (ACTIVE_BITS / BITS - on.detach().mean(0))
        code: Tensor = (on - soft).detach() + soft
        return code


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = SparseEncoder(), nn.Linear(BITS, COLUMNS)

    def forward(self, x: Tensor) -> Tensor:
        rebuilt: Tensor = self.decoder(self.encoder(x))
        return rebuilt


def sparse_autoencoder(seed: int) -> Task:
    def draw(generator: Generator) -> Batch:
        inputs, _ = classes(generator)
        return inputs, inputs

    torch.manual_seed(seed)
    model = Autoencoder()
    return Task(
        model,
        AdamW(model.parameters(), lr=5e-3),
        AUTOENCODER_STEPS,
        draw,
        loss=lambda model, batch: mse_loss(model(batch[0]), batch[1]),
        test=test_batches(draw),
    )


class WrongSign(FailurePoints):
    """Boosts the bits that are on most: the same ones win ever more often."""

    def before(self, step: int, task: Task) -> None:
        if step == COLLAPSE_STEP:
            assert isinstance(task.model, Autoencoder)
            task.model.encoder.boosting = -20.0


ATTENTION_LOGITS = Failure(
    name="attention logit blow-up",
    what="For twenty steps the queries and keys learn a hundred times too fast; attention then looks at one place.",
    task=scheduled_gpt,
    trouble=WrongGroup(),
    onset=FIRST + 1,
    causes=("learning_rate_jump", "attention_logit_growth"),
)
SDR_COLLAPSE = Failure(
    name="SDR collapse",
    what="From a step on, boosting has the wrong sign: the bits that are on most win ever more often.",
    task=sparse_autoencoder,
    trouble=WrongSign(),
    onset=COLLAPSE_STEP,
    causes=("sdr_collapse",),
)


STEP = 200
NO_CLEARING_FROM = 231
GOOD_SCALE, HUGE_SCALE = 2.0**12, 2.0**30


class RandomTargets(FailurePoints):
    """One batch has random targets and a hundred times the loss."""

    def batch(self, step: int, batch: Batch) -> Batch:
        if step != STEP:
            return batch
        inputs, targets = batch
        shuffled = torch.randperm(targets.numel(), generator=torch.Generator().manual_seed(0))
        return inputs, targets.flatten()[shuffled].view_as(targets)

    def loss(self, step: int, loss: Tensor) -> Tensor:
        return 100.0 * loss if step == STEP else loss


class NaNLoss(FailurePoints):
    def loss(self, step: int, loss: Tensor) -> Tensor:
        return loss * math.nan if step == STEP else loss


BAD_BATCH = Failure(
    name="GPT: bad batch",
    what="Random targets with a hundred times the loss, once, without clipping: Adam hardly moves for long after it.",
    task=plain_gpt,
    trouble=RandomTargets(),
    onset=STEP,
    causes=("bad_batch",),
)
NAN_BATCH = Failure(
    name="GPT: NaN batch",
    what="The loss is NaN at one step.",
    task=plain_gpt,
    trouble=NaNLoss(),
    onset=STEP,
    causes=("bad_batch", "loss_function"),
)


class NeverCleared(FailurePoints):
    """What happens with ``if step % accumulate == 0: optimizer.zero_grad()`` where the number is wrong."""

    def clears_gradients(self, step: int) -> bool:
        return step < NO_CLEARING_FROM


class ScaledInHalf(nn.Module):
    """A GPT whose gradients come back through half precision, scaled as in mixed precision made by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.gpt = tiny_gpt()
        self.scale = GOOD_SCALE

    def forward(self, inputs: Tensor) -> Tensor:
        scores: Tensor = self.gpt(inputs)
        if scores.requires_grad:
            scale = self.scale
            scores.register_hook(  # type: ignore[no-untyped-call]
                lambda gradient: (gradient * scale).to(torch.float16).float() / scale
            )
        return scores


def gpt_in_half(seed: int) -> Task:
    """Train a GPT with a scale that fits."""
    return language_task(seed, ScaledInHalf)


class ScaleTooLarge(FailurePoints):
    """Sets a scale with which every gradient overflows."""

    def before(self, step: int, task: Task) -> None:
        if step == STEP:
            assert isinstance(task.model, ScaledInHalf)
            task.model.scale = HUGE_SCALE


NO_ZERO_GRAD = Failure(
    name="accumulation bug",
    what="From a step on zero_grad() is missing: each step uses the gradients of all steps before it again.",
    task=regression_with_momentum,
    trouble=NeverCleared(),
    onset=NO_CLEARING_FROM + 1,
    causes=("gradients_not_cleared",),
)
HALF_OVERFLOW = Failure(
    name="GPT: fp16 overflow",
    what="A loss scale made by hand is 2^30 from a step on: every gradient that comes back is infinite.",
    task=gpt_in_half,
    trouble=ScaleTooLarge(),
    onset=STEP,
    causes=("gradient_non_finite", "fp16_scale", "overflow"),
)
