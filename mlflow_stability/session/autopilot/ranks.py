"""Agreement of all processes of a training, once a capture: is the step broken, and what to do after it.

In: the flag of each process, and the orders of the first one, which decides. Out: the flag of all, and the same
orders everywhere after the same step. Guarantees: a process group of its own on the host, separate from the script's
collectives; every process takes part once a capture, also when its step guard has failed, and then no process guards
any more.
"""

from __future__ import annotations

import contextlib
import math
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from mlflow_stability.errors import StabilityError, TrainingDiverged
from mlflow_stability.probes.ranks import ANSWER_SECONDS, LOST, Presence, gloo_group
from mlflow_stability.probes.step import StepCapture
from mlflow_stability.recovery.rollback_state import Decision

FIELDS = 14
MOST_CONDITIONS = 1000
"""Which condition is met on which rank is one number, so that the largest of all ranks is that of one of them."""
NOT_TOLD = -1.0
"""The row has a place for each process's share of the squares: the largest number there is that share."""
NO_LOSS = -sys.float_info.max
"""Likewise the place of each process's loss, which only the last stages of a pipeline tell."""
NOT_A_NUMBER = sys.float_info.max
"""Stands for NaN there, which has no place in an order."""
NOT_ON_ALL = (
    "all ranks must skip, snapshot and roll back together, and autolog() was called on some of them only: call it on "
    "every rank"
)


@dataclass(slots=True)
class Orders:
    """The orders for the end of one step."""

    healthy: bool = False
    """The states that wait for their proof are one healthy step further."""
    trouble: bool = False
    """They may carry what led to trouble: drop them."""
    snapshot: bool = False
    checkpoint: bool = False
    rollback: Decision | None = None
    ending: Exception | None = None
    """What the training is to be ended with."""
    stop: int = 0
    """Which condition is met before this step, as `stop_number` has it; then all ranks skip it and end."""
    reset: bool = False
    """Reset the moments of the optimizers, and warm up."""
    cut: bool = False
    """Cut the learning rate for the rest of the training."""
    ahead: bool = False
    """A divergence may follow: write a checkpoint, and ease if that was asked for."""
    release: bool = False
    """End the reduction of the learning rate after a rollback: the weights were not to blame."""

    def joined(self, later: Orders) -> Orders:
        """Both, where a second step was read before the orders for the first were carried out."""
        return Orders(
            later.healthy and not self.trouble,
            self.trouble or later.trouble,
            rollback=self.rollback or later.rollback,
            ending=self.ending or later.ending,
            reset=self.reset or later.reset,
            cut=self.cut or later.cut,
            ahead=self.ahead or later.ahead,
            release=self.release or later.release,
        )

    def as_numbers(self, step: int) -> list[float]:
        """As they travel between processes; steps are counted backwards from `step`, for each process counts its own.

        The reason stays with the one who decides, for only that one records. The condition to stop on comes last: each
        process may write it there.
        """
        back = self.rollback
        where = [0.0, 1.0, 0.0, 1.0]
        if back is not None:
            where = [1.0 + step - back.target, back.easing_factor, back.easing_steps, back.lasting_share]
        flags = [self.healthy, self.trouble, self.snapshot, self.checkpoint, self.ending is not None]
        adjusts = map(float, (self.reset, self.cut, self.ahead, self.release))
        return [*map(float, flags), *map(float, where), *adjusts, float(self.stop)]

    @classmethod
    def from_numbers(cls, numbers: list[float], step: int) -> Orders:
        """Read them where they arrive."""
        healthy, trouble, snapshot, checkpoint, ends, back, factor, steps, lasting, *adjusts, stop = numbers
        decision = None
        if back > 0:
            target = step - (round(back) - 1)
            decision = Decision(
                "rollback", target=target, easing_factor=factor, easing_steps=round(steps), lasting_share=lasting
            )
        ending = TrainingDiverged("Training stopped by its first process.") if ends > 0 else None
        flags = healthy > 0, trouble > 0, snapshot > 0, checkpoint > 0
        return cls(*flags, decision, ending, round(stop), *(each > 0 for each in adjusts))


def stop_number(rank: int, condition: int) -> int:
    """The number that says which condition is met on which rank."""
    return 1 + rank * MOST_CONDITIONS + condition


def stop_named(number: int) -> tuple[int, int]:
    """The rank and the condition of such a number."""
    return divmod(number - 1, MOST_CONDITIONS)


class RankVote:
    """The voice of this process."""

    def __init__(self) -> None:
        self._group = gloo_group(timedelta(seconds=ANSWER_SECONDS))
        self.ranks_here = _ranks_here(self._group)
        """How many of the processes share this machine's memory."""
        self.paused = False
        """Whether some processes may make no step, because they have run out of batches (`Join`)."""
        self.silent = ""
        """Why other processes are not heard any more: then nothing is skipped or rolled back."""
        self._capture: object = None
        self._numbers = [0.0] * FIELDS
        self._received: list[float] | None = None
        self._size, self._rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
        self._squares: Tensor | None = None
        self._loss: Tensor | float | None = None
        self.loss: float | None = None
        """Of the last stages of a pipeline, in the capture that was voted on last; None where none was told."""
        self.norm: float | None = None
        """Of all gradients of a split model, in the capture that was voted on last; None where it was not told."""
        self.is_over = False
        """Whether this capture was settled before anybody looked at its gradients: nobody guards."""
        self.somebody_off = False
        """Whether the guard of a process has failed."""

    def begins(self, capture: StepCapture) -> bool:
        """Whether this is the first optimizer step of a capture."""
        if capture is self._capture:
            return False
        self._capture, self._received, self.is_over = capture, None, False
        self._squares, self.norm = capture.squares_here, None
        self._loss, self.loss = capture.loss_here, None
        self._numbers = [0.0] * FIELDS
        return True

    def set_orders(self, orders: Orders, step: int) -> None:
        """What the first process has to say with its next vote."""
        self._numbers = orders.as_numbers(step)

    def set_stop(self, condition: int) -> None:
        """A condition is met here before this step, which each process may say."""
        self._numbers[-1] = float(stop_number(torch.distributed.get_rank(), condition))

    def __call__(self, flag: Tensor) -> Tensor:
        """Exchange the flag, and with the first one of a capture the orders."""
        if self.somebody_off or self.paused or self.is_over:
            return flag
        # The host has waited for the flag: the squares are there too, and the norm needs no exchange of its own.
        return flag.new_full((), self._exchange(flag.item(), is_off=False, squares=self._squares))

    def received(self, is_off: bool, step: int) -> Orders:
        """The orders of this capture; sends now where nothing was asked about its gradients."""
        if self._received is None and not self.paused:
            self._exchange(0.0, is_off)
        return Orders.from_numbers(self._received or [0.0] * FIELDS, step)

    def all_have(self, done: bool) -> bool:
        """Whether every process says so."""
        row = torch.tensor([float(done)], dtype=torch.float64)
        if self.paused or not self._reduce(row, torch.distributed.ReduceOp.MIN):
            return False
        (least,) = row.tolist()
        return bool(least > 0)

    def largest(self, number: float) -> float:
        """The largest number that any process says; minus infinity where one does not answer."""
        row = torch.tensor([number], dtype=torch.float64)
        if self.paused or not self._reduce(row, torch.distributed.ReduceOp.MAX):
            return -math.inf
        return float(row.item())

    def leave(self) -> None:
        """Nobody votes any more: take the group down before the interpreter does, if the script has not yet."""
        if torch.distributed.is_initialized():
            with contextlib.suppress(RuntimeError, ValueError):  # the script has taken it down with its own
                torch.distributed.destroy_process_group(self._group)

    def _reduce(self, row: Tensor, operation: Any) -> bool:
        """Combine the rows of all processes; False where one of them has died or does not answer."""
        if self.silent:
            return False
        try:
            torch.distributed.all_reduce(row, operation, group=self._group)
        except (RuntimeError, ValueError):
            self.silent, self.somebody_off = f"{LOST}, or it did not answer for {ANSWER_SECONDS:g} s", True
            return False
        return True

    def go(self) -> None:
        """What counts captures has failed here: let the others know with one last row, and wait for nobody."""
        if not self.silent and not self.paused:
            self.silent, self.somebody_off = "this process measures no more", True
            told = [NOT_TOLD] * self._size + [NO_LOSS] * self._size
            row = torch.tensor([0.0, 1.0, 1.0, *[0.0] * FIELDS, *told], dtype=torch.float64)
            with contextlib.suppress(RuntimeError, ValueError):
                torch.distributed.all_reduce(row, torch.distributed.ReduceOp.MAX, group=self._group, async_op=True)

    def _exchange(self, flag: float, is_off: bool, squares: Tensor | None = None) -> float:
        first = self._received is None
        numbers = self._numbers if first else [0.0] * FIELDS
        shares, losses = [NOT_TOLD] * self._size, [NO_LOSS] * self._size
        if squares is not None and first:
            share = squares.item()
            shares[self._rank] = NOT_A_NUMBER if math.isnan(share) else share
        if self._loss is not None and first:
            loss = float(self._loss)
            losses[self._rank] = NOT_A_NUMBER if math.isnan(loss) else loss
        row = torch.tensor([flag, float(is_off), 0.0, *numbers, *shares, *losses], dtype=torch.float64)
        if not self._reduce(row, torch.distributed.ReduceOp.MAX):
            self._received = [0.0] * FIELDS
            return flag
        broken, somebody_off, gone, *numbers = row.tolist()
        shares, losses = numbers[FIELDS : FIELDS + self._size], numbers[FIELDS + self._size :]
        numbers = numbers[:FIELDS]
        told = [math.nan if each == NOT_A_NUMBER else each for each in losses if each > NO_LOSS]
        if first and told:
            self.loss = sum(told) / len(told)
        if first and min(shares) > NOT_TOLD:
            self.norm = math.nan if NOT_A_NUMBER in shares else math.sqrt(math.fsum(shares))
        self.somebody_off = self.somebody_off or somebody_off > 0
        if gone > 0:
            self.silent = "mlflow-stability was switched off in another process of this training"
        if first:
            self._received = numbers
        return float(broken)


def _ranks_here(group: Any) -> int:
    """How many processes of the training run on this machine; each must ask."""
    hosts = [""] * torch.distributed.get_world_size()
    here = socket.gethostname()
    torch.distributed.all_gather_object(hosts, here, group=group)
    return hosts.count(here)


def shared_vote() -> RankVote | None:
    """A vote where several processes train together through torch.distributed; else None."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    ranks = torch.distributed.get_world_size()
    if ranks == 1:
        return None
    if not Presence("autopilot").all_here(range(ranks)):
        raise StabilityError(NOT_ON_ALL)
    return RankVote()


class Ranks:
    """The processes of a training, where there is but one: what is given is taken, and every answer is its own."""

    is_alone = True
    somebody_off = False
    """Whether the guard of a process has failed."""
    silent = ""
    """Why other processes are not heard any more; empty while they are."""
    norm: float | None = None
    """Of all gradients of a split model, as the last vote has told it; None where nobody asked."""
    loss: float | None = None
    """Of the last stages of a pipeline, as the last vote has told it."""

    def __init__(self) -> None:
        self._orders = Orders()
        """To be carried out when this step is over."""
        self.has_orders = False
        """Whether any were given since they were taken last."""

    def pause(self, _begin: bool, /) -> None:
        """Ask nobody for a while: some may have run out of batches."""

    def give(self, orders: Orders) -> None:
        """Something was decided; of several processes only the first one decides."""
        self._orders = self._orders.joined(orders) if self.has_orders else orders
        self.has_orders = True

    def take(self) -> Orders:
        """What is to be done now."""
        orders, self._orders, self.has_orders = self._orders, Orders(), False
        return orders

    def agree(self, done: bool) -> bool:
        """Whether all processes have done it; each must come here, whatever its own result is."""
        return done

    def told_by_first(self, step: int) -> int:
        """The step that the first process says, which decides; each must come here. -1: none."""
        return step

    def forget(self) -> None:
        """The training was rolled back: what was decided of its steps is void."""
        self._orders, self.has_orders = Orders(), False

    def announce(
        self, _capture: StepCapture, _step: int, _due: Callable[[], tuple[bool, bool]], _stop: int | None = None, /
    ) -> bool:
        """Runs before the vote of a capture; False where there is none, or it is over.

        `_due`: what to keep. `_stop`: which condition to stop on is met here.
        """
        return False

    def receive(self, _is_off: bool, _step: int, _ends_vote: bool = False, /) -> int:
        """Runs after it; returns which condition ends the training before this step; 0: none.

        `_ends_vote`: nobody is asked again about this capture.
        """
        return 0


class SeveralRanks(Ranks):
    """Several processes, as this one sees them."""

    is_alone = False

    def __init__(self, vote: RankVote, decides: bool) -> None:
        super().__init__()
        self._vote = vote
        self._decides = decides
        self._to_send = Orders()
        """To be sent to all processes, this one among them, at the next step."""

    @property
    def somebody_off(self) -> bool:  # type: ignore[override] # alone it never changes
        """Whether the guard of a process has failed."""
        return self._vote.somebody_off

    @property
    def silent(self) -> str:  # type: ignore[override]
        """Why other processes are not heard any more; empty while they are."""
        return self._vote.silent

    @property
    def norm(self) -> float | None:  # type: ignore[override]
        """Of all gradients of a split model."""
        return self._vote.norm

    @property
    def loss(self) -> float | None:  # type: ignore[override]
        """Of the last stages of a pipeline."""
        return self._vote.loss

    def pause(self, begin: bool) -> None:
        """Ask nobody for a while: some may have run out of batches."""
        self._vote.paused = begin

    def give(self, orders: Orders) -> None:
        """Send what was decided with the next vote; only the first process decides."""
        if self._decides:
            self._to_send = self._to_send.joined(orders)

    def agree(self, done: bool) -> bool:
        """Whether all processes have done it; each must come here, whatever its own result is."""
        return self._vote.all_have(done)

    def told_by_first(self, step: int) -> int:
        """The step that the first process says, which decides; each must come here. -1: none."""
        return int(max(self._vote.largest(float(step) if self._decides else -1.0), -1.0))

    def forget(self) -> None:
        """The training was rolled back: what was decided of its steps is void."""
        super().forget()
        self._to_send = Orders()

    def announce(
        self, capture: StepCapture, step: int, due: Callable[[], tuple[bool, bool]], stop: int | None = None
    ) -> bool:
        """Put the orders of the first process, and the condition that is met here, into the vote that follows."""
        if not self._vote.begins(capture):
            return False
        if self._decides:
            if not self._to_send.trouble and self._to_send.rollback is None:
                self._to_send.snapshot, self._to_send.checkpoint = due()
            self._vote.set_orders(self._to_send, step)
        if stop is not None:
            self._vote.set_stop(stop)
        return True

    def receive(self, is_off: bool, step: int, ends_vote: bool = False) -> int:
        """Take the orders of the vote, the same on all ranks; their reason is known only where they came from."""
        self._vote.is_over = ends_vote
        mine, self._to_send = self._to_send, Orders()
        self._orders, self.has_orders = self._vote.received(is_off, step), True
        if mine.rollback is not None:
            self._orders.rollback = mine.rollback
        self._orders.ending = mine.ending or self._orders.ending
        return self._orders.stop


def ranks_of(vote: RankVote | None, decides: bool) -> Ranks:
    """The processes of a training; `decides`: whether this one records, and so decides for all."""
    return Ranks() if vote is None else SeveralRanks(vote, decides)
