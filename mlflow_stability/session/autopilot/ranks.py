"""Agreement of all processes of a training, once a capture: is the step broken, and what to do after it.

In: the flag of each process, and the decision of the first one. Out: the flag of all, and the same decision
everywhere after the same step. Guarantees: a process group of its own on the host, separate from the script's
collectives; every process takes part once a capture, also when its step guard has failed, and then no process guards
any more.
"""

from __future__ import annotations

import contextlib
import math
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from enum import Enum
from typing import Any, NamedTuple

import torch
import torch.distributed
from torch import Tensor

from mlflow_stability.errors import StabilityError, TrainingDiverged
from mlflow_stability.probes.ranks import ANSWER_SECONDS, LOST, Presence, gloo_group
from mlflow_stability.probes.step import StepCapture
from mlflow_stability.recovery.rollback_state import NOTHING, Decision, StopPlace

NOT_TOLD = -1.0
"""The row has a place for each process's share of the squares: the largest number there is that share."""
NO_LOSS = -sys.float_info.max
"""Likewise the place of each process's loss, which only the last stages of a pipeline tell."""
NOT_A_NUMBER = sys.float_info.max
"""Stands for NaN there, which has no place in an order."""
MOST_CONDITIONS = 1000
"""Which condition is met on which rank is one number, so that the largest of all ranks is that of one of them."""
NOT_ON_ALL = (
    "all ranks must skip, snapshot and roll back together, and autolog() was called on some of them only: call it on "
    "every rank"
)


class Silence(Enum):
    """Why other processes are not heard any more; the value is the sentence."""

    LOST = f"{LOST}, or it did not answer for {ANSWER_SECONDS:g} s"
    OFF_HERE = "this process measures no more"
    OFF_ELSEWHERE = "mlflow-stability was switched off in another process of this training"


class VoteRow(NamedTuple):
    """What a process says once a capture; of each field the largest number of all processes counts.

    The fields from `healthy` to `release` are the decision of the first process. Behind them comes a place for each
    process's share of the squares, and one for its loss.
    """

    broken: float = 0.0
    """The flag of the guard."""
    guard_off: float = 0.0
    """Above zero where the guard of a process has failed."""
    gone: float = 0.0
    """Above zero where a process measures no more."""
    healthy: float = 0.0
    trouble: float = 0.0
    snapshot: float = 0.0
    checkpoint: float = 0.0
    ends: float = 0.0
    steps_back: float = 0.0
    """One more than the steps from the target of a rollback to the present one, for each process counts its own."""
    easing_factor: float = 0.0
    easing_steps: float = 0.0
    lasting_share: float = 0.0
    reset: float = 0.0
    cut: float = 0.0
    ahead: float = 0.0
    release: float = 0.0
    stop: float = 0.0
    """Which condition is met on which rank, as `with_stop` writes it; any process may."""

    def with_decision(self, decision: Decision, step: int) -> VoteRow:
        """The same with a decision on `step`; its reason stays here, for only the process that decides records."""
        row = self._replace(
            healthy=float(decision.healthy),
            trouble=float(decision.trouble),
            snapshot=float(decision.snapshot),
            checkpoint=float(decision.checkpoint),
            ends=float(decision.ending is not None),
            reset=float(decision.reset),
            cut=float(decision.cut),
            ahead=float(decision.ahead),
            release=float(decision.release),
        )
        if not decision.rolls_back:
            return row
        return row._replace(
            steps_back=1.0 + step - decision.target,
            easing_factor=decision.easing_factor,
            easing_steps=float(decision.easing_steps),
            lasting_share=decision.lasting_share,
        )

    def with_stop(self, place: StopPlace) -> VoteRow:
        """The same where a condition is met on a rank."""
        return self._replace(stop=1.0 + place.rank * MOST_CONDITIONS + place.condition)

    def decision(self, step: int) -> Decision:
        """The decision, where it arrives; `step`: the present one of this process."""
        decision = Decision(
            healthy=self.healthy > 0,
            trouble=self.trouble > 0,
            snapshot=self.snapshot > 0,
            checkpoint=self.checkpoint > 0,
            ending=TrainingDiverged("Training stopped by its first process.") if self.ends > 0 else None,
            stop=StopPlace(*divmod(round(self.stop) - 1, MOST_CONDITIONS)) if self.stop > 0 else None,
            reset=self.reset > 0,
            cut=self.cut > 0,
            ahead=self.ahead > 0,
            release=self.release > 0,
        )
        if self.steps_back <= 0:
            return decision
        return replace(
            decision,
            action="rollback",
            target=step - (round(self.steps_back) - 1),
            easing_factor=self.easing_factor,
            easing_steps=round(self.easing_steps),
            lasting_share=self.lasting_share,
        )


class RankVote:
    """One exchange a capture: the flag of each process, and the decision of the first one."""

    def __init__(self) -> None:
        self._group = gloo_group(timedelta(seconds=ANSWER_SECONDS))
        self.ranks_here = _ranks_here(self._group)
        """How many of the processes share this machine's memory."""
        self.paused = False
        """Whether some processes may make no step, because they have run out of batches (`Join`)."""
        self.silence: Silence | None = None
        """Why other processes are not heard any more: then nothing is skipped or rolled back."""
        self._capture: object = None
        self._mine = VoteRow()
        self._received: VoteRow | None = None
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
        self._mine = VoteRow()
        return True

    def say(self, decision: Decision, step: int) -> None:
        """What the first process says with its next vote."""
        self._mine = self._mine.with_decision(decision, step)

    def say_stop(self, condition: int) -> None:
        """A condition is met here before this step, which each process may say."""
        self._mine = self._mine.with_stop(StopPlace(self._rank, condition))

    def __call__(self, flag: Tensor) -> Tensor:
        """Exchange the flag, and with the first one of a capture the decision."""
        if self.somebody_off or self.paused or self.is_over:
            return flag
        # The host has waited for the flag: the squares are there too, and the norm needs no exchange of its own.
        return flag.new_full((), self._exchange(flag.item(), is_off=False, squares=self._squares))

    def received(self, is_off: bool, step: int) -> Decision:
        """The decision of this capture; sends now where nothing was asked about its gradients."""
        if self._received is None and not self.paused:
            self._exchange(0.0, is_off)
        return NOTHING if self._received is None else self._received.decision(step)

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
        if self.silence is not None:
            return False
        try:
            torch.distributed.all_reduce(row, operation, group=self._group)
        except (RuntimeError, ValueError):
            self.silence, self.somebody_off = Silence.LOST, True
            return False
        return True

    def go(self) -> None:
        """What counts captures has failed here: let the others know with one last row, and wait for nobody."""
        if self.silence is None and not self.paused:
            self.silence, self.somebody_off = Silence.OFF_HERE, True
            row = self._packed(VoteRow(guard_off=1.0, gone=1.0), *self._nothing_told())
            with contextlib.suppress(RuntimeError, ValueError):
                torch.distributed.all_reduce(row, torch.distributed.ReduceOp.MAX, group=self._group, async_op=True)

    def _nothing_told(self) -> tuple[list[float], list[float]]:
        """No process's share of the squares, and no loss."""
        return [NOT_TOLD] * self._size, [NO_LOSS] * self._size

    def _packed(self, row: VoteRow, shares: list[float], losses: list[float]) -> Tensor:
        return torch.tensor([*row, *shares, *losses], dtype=torch.float64)

    def _unpacked(self, packed: Tensor) -> tuple[VoteRow, list[float], list[float]]:
        numbers, fields = packed.tolist(), len(VoteRow._fields)
        return VoteRow(*numbers[:fields]), numbers[fields : fields + self._size], numbers[fields + self._size :]

    def _exchange(self, flag: float, is_off: bool, squares: Tensor | None = None) -> float:
        is_first = self._received is None
        mine = (self._mine if is_first else VoteRow())._replace(broken=flag, guard_off=float(is_off))
        shares, losses = self._nothing_told()
        if squares is not None and is_first:
            share = squares.item()
            shares[self._rank] = NOT_A_NUMBER if math.isnan(share) else share
        if self._loss is not None and is_first:
            loss = float(self._loss)
            losses[self._rank] = NOT_A_NUMBER if math.isnan(loss) else loss
        packed = self._packed(mine, shares, losses)
        if not self._reduce(packed, torch.distributed.ReduceOp.MAX):
            self._received = VoteRow()
            return flag
        row, shares, losses = self._unpacked(packed)
        told = [math.nan if each == NOT_A_NUMBER else each for each in losses if each > NO_LOSS]
        if is_first and told:
            self.loss = sum(told) / len(told)
        if is_first and min(shares) > NOT_TOLD:
            self.norm = math.nan if NOT_A_NUMBER in shares else math.sqrt(math.fsum(shares))
        self.somebody_off = self.somebody_off or row.guard_off > 0
        if row.gone > 0:
            self.silence = Silence.OFF_ELSEWHERE
        if is_first:
            self._received = row
        return row.broken


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
    """The processes of a training, where there is but one: what is given is done, and every answer is its own."""

    is_alone = True
    somebody_off = False
    """Whether the guard of a process has failed."""
    silence: Silence | None = None
    """Why other processes are not heard any more; None while they are."""
    norm: float | None = None
    """Of all gradients of a split model, as the last vote has told it; None where nobody asked."""
    loss: float | None = None
    """Of the last stages of a pipeline, as the last vote has told it."""
    pending: Decision | None = None
    """What is to be done when this step is over."""

    def pause(self, _begin: bool, /) -> None:
        """Ask nobody for a while: some may have run out of batches."""

    def give(self, decision: Decision) -> None:
        """Something was decided; of several processes only the first one decides."""
        self.pending = decision if self.pending is None else self.pending.joined(decision)

    def agree(self, done: bool) -> bool:
        """Whether all processes have done it; each must come here, whatever its own result is."""
        return done

    def told_by_first(self, step: int) -> int:
        """The step that the first process says, which decides; each must come here. -1: none."""
        return step

    def forget(self) -> None:
        """The training was rolled back: what was decided of its steps is void."""
        self.pending = None

    def announce(
        self, _capture: StepCapture, _step: int, _due: Callable[[], tuple[bool, bool]], _stop: int | None = None, /
    ) -> bool:
        """Runs before the vote of a capture; False where there is none, or it is over.

        `_due`: what to keep. `_stop`: which condition to stop on is met here.
        """
        return False

    def receive(self, _is_off: bool, _step: int, _ends_vote: bool = False, /) -> bool:
        """Runs after it; returns whether a condition ends the training before this step.

        `_ends_vote`: nobody is asked again about this capture.
        """
        return False


class SeveralRanks(Ranks):
    """Several processes, as this one sees them."""

    is_alone = False

    def __init__(self, vote: RankVote, decides: bool) -> None:
        self._vote = vote
        self._decides = decides
        self._to_send: Decision = NOTHING
        """To be sent to all processes, this one among them, at the next step."""

    def pause(self, begin: bool) -> None:
        """Ask nobody for a while: some may have run out of batches."""
        self._vote.paused = begin

    def give(self, decision: Decision) -> None:
        """Send what was decided with the next vote; only the first process decides."""
        if self._decides:
            self._to_send = self._to_send.joined(decision)

    def agree(self, done: bool) -> bool:
        """Whether all processes have done it; each must come here, whatever its own result is."""
        agreed = self._vote.all_have(done)
        self._take_over()
        return agreed

    def told_by_first(self, step: int) -> int:
        """The step that the first process says, which decides; each must come here. -1: none."""
        return int(max(self._vote.largest(float(step) if self._decides else -1.0), -1.0))

    def forget(self) -> None:
        """The training was rolled back: what was decided of its steps is void."""
        super().forget()
        self._to_send = NOTHING

    def announce(
        self, capture: StepCapture, step: int, due: Callable[[], tuple[bool, bool]], stop: int | None = None
    ) -> bool:
        """Put the decision of the first process, and the condition that is met here, into the vote that follows."""
        if not self._vote.begins(capture):
            return False
        if self._decides:
            if not self._to_send.trouble and not self._to_send.rolls_back:
                ring, disk = due()
                self._to_send = replace(self._to_send, snapshot=ring, checkpoint=disk)
            self._vote.say(self._to_send, step)
        if stop is not None:
            self._vote.say_stop(stop)
        return True

    def receive(self, is_off: bool, step: int, ends_vote: bool = False) -> bool:
        """Take the decision of the vote, the same on all ranks; its reason is known only where it came from."""
        self._vote.is_over = ends_vote
        mine, self._to_send = self._to_send, NOTHING
        told = self._vote.received(is_off, step)
        if mine.rolls_back:
            told = replace(mine, stop=told.stop)
        self.pending = replace(told, ending=mine.ending or told.ending)
        self._take_over()
        return told.stop is not None

    def _take_over(self) -> None:
        """What the vote has told of the processes."""
        vote = self._vote
        self.somebody_off, self.silence, self.norm, self.loss = vote.somebody_off, vote.silence, vote.norm, vote.loss


def ranks_of(vote: RankVote | None, decides: bool) -> Ranks:
    """The processes of a training; `decides`: whether this one records, and so decides for all."""
    return Ranks() if vote is None else SeveralRanks(vote, decides)
