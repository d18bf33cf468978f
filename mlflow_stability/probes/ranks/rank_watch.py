"""Measurements of the steps of a training that several processes make together.

For each capture, in order: the gradient norm of the whole model, its weights, updates and momentum, of the model and by
layer. Guarantees: nothing for a process that trains alone; where the script's own clipping has returned the norm, it is
not measured again; a part that fails here contributes nothing, and the other processes know.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import fsum, isfinite
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from mlflow_stability.probes.gradient_norm import gradients_of, world_size
from mlflow_stability.probes.parameters.per_optimizer import ratio
from mlflow_stability.probes.probe import Guard
from mlflow_stability.probes.ranks.rank_exchange import (
    ANSWER_SECONDS,
    EVERY,
    FIRST,
    Deliver,
    RankExchanges,
    RankNumbers,
)
from mlflow_stability.probes.ranks.rank_row import Measured, RankTable, root
from mlflow_stability.probes.ranks.sharded_norms import (
    LocalSquares,
    MicroBatches,
    SplitLayerNorms,
    TrainingRanks,
    local_squares,
    momentum_of_own_part,
    training_ranks,
)
from mlflow_stability.probes.step.capture import StepCapture
from mlflow_stability.probes.step.readback import Block, signals_at
from mlflow_stability.vocabulary.measured.signal_type import SignalType, signals

SIGNALS = signals(
    SignalType("loss_ranks_mean", "mean of the losses of all ranks"),
    SignalType("loss_ranks_min", "least loss of all ranks", combined="min"),
    SignalType("loss_ranks_max", "largest loss of all ranks", combined="max"),
    SignalType("loss_ranks_argmax", "rank of the largest loss"),
    topic="loss_statistics",
)

LEAVE_SECONDS = 2.0  # longest wait for the last row of a process that leaves
NOT_ON_ALL = "autolog() was called on some ranks only, and a split model has no gradient norm or layers then"
QUANTITIES = {
    "norms": ("param_norm", "grad_param_ratio", "lr_ratio"),
    "updates": ("update_norm", "update_ratio"),
    "momentum": ("momentum_norm",),
}
LOSSES = ("loss_ranks_mean", "loss_ranks_min", "loss_ranks_max", "loss_ranks_argmax")
LAYER_QUANTITIES = {**QUANTITIES, "norms": ("param_norm", "grad_norm", "grad_param_ratio", "lr_ratio")}


@dataclass(slots=True)
class LocalShare:
    step: int = 0
    seconds: float = 0.0
    needs_norm: bool = False
    is_known: bool = True  # all gradients were measured
    squares: list[Tensor] = field(default_factory=list)
    partial: list[Tensor] = field(default_factory=list)
    whole: dict[str, Tensor] = field(default_factory=dict)
    by_layer: dict[str, Tensor] = field(default_factory=dict)

    @property
    def rows(self) -> list[Tensor]:
        return [*self.partial, *self.whole.values(), *self.by_layer.values()]


class RankWatch:
    def __init__(
        self,
        guard: Guard,
        exchanges: RankExchanges,
        layers_every: int = 100,
        budget_bytes: int | None = None,
        on_end: Callable[[str], None] = lambda _: None,
        on_table: Callable[[RankTable, Sequence[str]], None] = lambda _, __: None,
        on_meet: Callable[[Sequence[str], Sequence[Any]], None] = lambda _, __: None,
    ) -> None:
        self.is_on = False  # other processes train with this one
        self.is_split = False  # they share its parameters
        self.ranks: TrainingRanks | None = None
        self._exchanges = exchanges
        self._layers_every, self._budget, self._on_end = layers_every, budget_bytes, on_end
        self._numbers: RankNumbers | None = None
        self._norms: SplitLayerNorms | None = None
        self._optimizers: list[weakref.ref[Optimizer]] = []
        self._share = LocalShare()
        self._micro_batches = MicroBatches()
        self._step_ended = time.perf_counter()
        self._is_refused = False  # other processes of the training are not watched
        # Runs before the first step.
        self.announce: Callable[[], None] = guard("other processes", exchanges.announce)
        self._meet = guard("other processes", self._meet_others)
        self._gradients = guard("gradient norm", self._measure_gradients)
        self._before = guard("norms of split weights", self._before_step)
        self.after_step = guard("norms of split weights", self._after_step)
        self._collect = guard("norms of split weights", self._collect_norms)
        self._take = guard("other processes", self._take_share)
        self._poll = guard("other processes", self.poll)
        self._on_table = guard("comparison of ranks", on_table)
        self._on_meet = guard("comparison of ranks", on_meet)

    @property
    def waits(self) -> bool:
        """Whether all processes must know of a step before the next one, because they act together."""
        return self.is_on and self._exchanges.acts

    @property
    def has_stages(self) -> bool:
        """Whether processes have pipeline stages: only the last one has a loss."""
        return self.is_on and self.ranks is not None and self.ranks.stage_copies > 0

    def loss_of(self, losses: Sequence[float]) -> float | None:
        """Return the sum of the losses passed to `backward`; of a pipeline, the mean of its micro-batches."""
        if not losses:
            return None
        return sum(losses) / self._micro_batches.of(len(losses)) if self.has_stages else sum(losses)

    def with_loss(self, capture: StepCapture, values: Sequence[float], table: RankTable | None) -> Sequence[float]:
        """Return the values of a capture; of a pipeline, with the mean loss of all last stages."""
        if not self.has_stages:
            return values
        loss = capture.loss_of_all
        losses = [] if table is None else [other for other in table.losses if other is not None]
        if loss is None and losses:
            loss = sum(losses) / len(losses)
        if loss is None:
            return values
        rest, capture.losses = values[len(capture.losses) :], [loss]
        return [loss, *rest]

    def meet(self, optimizer: Optimizer) -> None:
        """Run before the step of an optimizer, which may be a new one."""
        if not any(reference() is optimizer for reference in self._optimizers):
            self._meet(optimizer)

    def backward_began(self) -> None:
        self._share.seconds = time.perf_counter() - self._step_ended

    def before_step(self, capture: StepCapture, optimizer: Optimizer, unscale: Tensor | None, step: int) -> None:
        """Run when gradients are complete; `step` is that of the recording, or 0."""
        self._poll(ANSWER_SECONDS if self.waits else 0.0)
        numbers = self._numbers
        if numbers is None or numbers.is_over or self._exchanges.is_paused or self.ranks is None:
            return
        at = step or numbers.step
        self._share.step = at or 0
        if not self.ranks.is_split:
            return
        self._gradients(capture, optimizer, unscale)
        if at is not None and (at % EVERY == 0 or at in FIRST or at % self._layers_every == 0):
            self._before(optimizer, unscale)

    def capture_ended(self, capture: StepCapture) -> LocalShare:
        self._collect()
        share, self._share = self._share, LocalShare()
        if capture.clips and self.has_stages:  # the norms of clipping are those of one stage
            capture.clips.clear()
        if capture.norm_of_all is not None:
            if len(share.squares) == 1 and not share.partial:  # known from the vote before the step
                share.needs_norm, share.squares = False, []
            else:
                capture.norm_of_all = None
        self._step_ended = time.perf_counter()
        return share

    def take(
        self,
        share: LocalShare,
        loss: float | None,
        values: Sequence[float],
        rows: Sequence[Sequence[float]],
        to: Deliver,
    ) -> None:
        """Exchange what has come to the host; `to` is called with what all processes measured, at once or later."""
        if self._take(share, loss, values, rows, to) is None:
            self.leave()
            to(None)

    def poll(self, seconds: float) -> None:
        """Receive what has arrived from the others, waiting at most so long."""
        if self._numbers is not None:
            self._numbers.poll(seconds)

    def pause(self, begin: bool) -> None:
        self._exchanges.pause(begin)

    def leave(self) -> None:
        """Leave the exchange: measuring has failed here, and the others go on alone."""
        self.poll(LEAVE_SECONDS)
        self._exchanges.leave()
        self.poll(0.0)

    def close(self) -> None:
        numbers, self._numbers, self.is_on = self._numbers, None, False
        self.is_split = False
        self._optimizers, self.ranks, self._norms, self._is_refused = [], None, None, False
        self._micro_batches = MicroBatches()
        if numbers is not None:
            numbers.close()
        self._exchanges.close()

    def tell(self, table: RankTable) -> None:
        """Run when the step of the table was recorded."""
        if self._numbers is not None and self._numbers.exchange.rank == 0:
            self._on_table(table, self._numbers.exchange.names)

    def blocks(self, table: RankTable, place: str, step: int) -> list[Block]:
        blocks = [
            Block(signals_at(QUANTITIES[key], place), tuple(_whole_numbers(key, squares, table.norm)))
            for key, squares in table.whole.items()
            if key != "momentum" or squares[0]
        ]
        losses = [loss for loss in table.losses if loss is not None]
        if step % EVERY == 0 and len(losses) == len(table.losses) and all(map(isfinite, losses)):
            highest = max(losses)
            rank = self.ranks.ranks[losses.index(highest)] if self.ranks is not None else 0
            numbers = fsum(losses) / len(losses), min(losses), highest, float(rank)
            blocks.append(Block(signals_at(LOSSES, place), numbers))
        layers = None if self._norms is None else self._norms.layers
        for key, squares in table.by_layer.items():
            if layers is None or (key == "momentum" and not any(squares)):
                continue
            count = len(layers.names)
            columns = [squares[at : at + count] for at in range(0, len(squares), count)]
            signals = signals_at(LAYER_QUANTITIES[key], *layers.names)
            by_layer = [_layer_numbers(key, [column[at] for column in columns]) for at in range(count)]
            values = [layer[at] for at in range(len(LAYER_QUANTITIES[key])) for layer in by_layer]
            kept = [at for at, value in enumerate(values) if value == value or signals[at].quantity == "param_norm"]
            blocks.append(Block(tuple(signals[at] for at in kept), tuple(values[at] for at in kept)))
        return blocks

    def _living(self) -> list[Optimizer]:
        return [optimizer for reference in self._optimizers if (optimizer := reference()) is not None]

    def _meet_others(self, optimizer: Optimizer) -> None:
        living = [*self._living(), optimizer]
        self._optimizers = [weakref.ref(held) for held in living]
        ranks = training_ranks(living)
        if ranks is None or (self.ranks is not None and self.ranks.ranks != ranks.ranks):
            return
        if self._numbers is None:
            exchange = None if self._is_refused else self._exchanges.between(ranks.ranks)
            if exchange is None:
                if ranks.is_split and not self._is_refused:
                    self._on_end(NOT_ON_ALL)
                self._is_refused = True
                return
            self._numbers = RankNumbers(exchange, self._layers_every, lambda why: self._on_end(why.value))
            self.is_on = True
            if self._numbers.exchange.rank == 0:
                self._on_meet(exchange.names, exchange.introductions)
        self.ranks = ranks
        self.is_split = ranks.is_split
        if ranks.is_split:
            self._norms = SplitLayerNorms(ranks, self._budget)
            self._norms.learn(living)

    def _measure_gradients(self, capture: StepCapture, optimizer: Optimizer, unscale: Tensor | None) -> None:
        assert self.ranks is not None
        gradients = set(map(id, gradients_of(optimizer)))
        local: LocalSquares | None = None
        if self.has_stages and capture.losses:
            capture.loss_here = sum(capture.losses) / self._micro_batches.of(len(capture.losses))
        if capture.clips:
            capture.gradients |= gradients
            if len(capture.clips) == 1 and capture.clips[0].order == 2.0 and gradients <= capture.clips[0].gradients:
                if not self.has_stages:
                    return
                local = self._clipped_stage(capture, gradients)
        self._share.needs_norm, self._share.is_known = True, False
        local = local_squares(optimizer, self.ranks, unscale) if local is None else local
        if local is not None:
            self._share.is_known = True
            self._share.squares.append(local.squares)
            if local.partial is not None:
                self._share.partial.append(local.partial)
            elif len(self._share.squares) == 1 and len(self.ranks.ranks) == world_size():  # all of whom vote
                capture.squares_here = local.squares

    def _clipped_stage(self, capture: StepCapture, gradients: set[int]) -> LocalSquares | None:
        """Return the squares by the norm that clipping took of this stage; None if it is not of one optimizer.

        Each process that has this stage has taken the same norm.
        """
        clip = capture.clips[0]
        if self.ranks is None or len(clip.gradients) != len(gradients):
            capture.copied = True
            return None
        capture.clipped_by_stage = True
        norm = torch.as_tensor(clip.norm, dtype=torch.float64)
        norm = norm if clip.scale is None else norm / clip.scale.to(norm)
        return LocalSquares(norm.square() / self.ranks.stage_copies, None)

    def _before_step(self, optimizer: Optimizer, unscale: Tensor | None) -> None:
        norms = self._norms
        if norms is not None:
            if not norms.knows(optimizer):
                norms.learn(self._living())
            norms.before_step(optimizer, unscale)

    def _after_step(self, optimizer: Optimizer, skipped: bool) -> None:
        share = self._share
        if self._norms is not None:
            self._norms.after_step(optimizer, skipped)
        elif self._numbers is not None and share.step and share.step % EVERY == 0:
            own = momentum_of_own_part(optimizer)
            if own is not None:
                share.whole["momentum"] = share.whole["momentum"] + own if "momentum" in share.whole else own

    def _collect_norms(self) -> None:
        share, norms = self._share, self._norms
        if norms is not None and self._numbers is not None:
            by_layer = bool(share.step) and share.step % self._layers_every == 0
            share.whole, share.by_layer = norms.take(by_layer)
            self._numbers.layout = norms.layout(sum(map(len, share.partial)))

    def _take_share(
        self,
        share: LocalShare,
        loss: float | None,
        values: Sequence[float],
        rows: Sequence[Sequence[float]],
        to: Deliver,
    ) -> bool:
        if self._numbers is None:
            return False
        arrived = iter(rows)
        partial = [value for _ in share.partial for value in next(arrived)]
        whole = {key: next(arrived) for key in share.whole}
        by_layer = {key: next(arrived) for key in share.by_layer}
        measured = Measured(
            0,
            share.step,
            loss,
            share.seconds,
            squares=sum(values) if share.needs_norm and share.is_known else None,
            needs_norm=share.needs_norm,
            partial=partial,
            whole=whole,
            by_layer=by_layer,
        )
        self._numbers.take(measured, to, alone=self._exchanges.is_paused)
        return True


def _whole_numbers(key: str, squares: Sequence[float], norm: float | None = None) -> Sequence[float]:
    norms = [root(square) for square in squares]
    if key == "norms":
        weights, force, move = norms
        force = force if norm is None else norm
        return weights, ratio(force, weights), ratio(move, weights)
    if key == "updates":
        return norms[1], ratio(norms[1], norms[0])
    return norms


def _layer_numbers(key: str, squares: Sequence[float]) -> Sequence[float]:
    whole = _whole_numbers(key, squares)
    return (whole[0], root(squares[1]), *whole[1:]) if key == "norms" else whole
