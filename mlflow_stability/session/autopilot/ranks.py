"""Agreement of all ranks: whether a step is broken, and what to do after it.

Guarantees: every rank takes part once a capture, also when its guard has failed; then no rank guards any more. Rows and
their exchange are those of `probes.ranks`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.distributed
from torch import Tensor

from mlflow_stability.errors import StabilityError, TrainingDiverged
from mlflow_stability.probes.ranks.rank_exchange import RankExchange, RankExchanges, Silence
from mlflow_stability.probes.ranks.rank_row import Orders, RankRow, Sums, Votes, norm_of
from mlflow_stability.probes.step.capture import StepCapture
from mlflow_stability.recovery.rollback_state import NOTHING, Decision, StopPlace

NOT_ON_ALL = (
    "all ranks must skip, snapshot and roll back together, and autolog() was called on some of them only, or without "
    "guard and rollback: call it on every rank with the same options"
)


FLAGS = ("healthy", "trouble", "snapshot", "checkpoint", "reset", "cut", "ahead", "release")
"""Fields of a decision that the orders hold as numbers."""


def orders_of(decision: Decision, step: int) -> Orders:
    """Encode a decision on `step`; its reason stays on the rank that decides."""
    flags = {name: float(getattr(decision, name)) for name in FLAGS}
    orders = Orders(**flags, ends=float(decision.ending is not None))
    if not decision.rolls_back:
        return orders
    return orders._replace(
        steps_back=1.0 + step - decision.target,
        easing_factor=decision.easing_factor,
        easing_steps=float(decision.easing_steps),
        lasting_share=decision.lasting_share,
    )


def decision_of(row: RankRow, step: int) -> Decision:
    """Decode a decision; `step`: the current one of this rank."""
    orders = row.orders
    decision = Decision(
        ending=TrainingDiverged("Training stopped by its first process.") if orders.ends > 0 else None,
        # Of several ranks where a condition is met, all name the same one.
        stop=StopPlace(*min(row.conditions.items())) if row.conditions else None,
        **{name: getattr(orders, name) > 0 for name in FLAGS},
    )
    if orders.steps_back <= 0:
        return decision
    return replace(
        decision,
        action="rollback",
        target=step - (round(orders.steps_back) - 1),
        easing_factor=orders.easing_factor,
        easing_steps=round(orders.easing_steps),
        lasting_share=orders.lasting_share,
    )


class Ranks:
    """Ranks of a training in one process: every decision is its own."""

    is_alone = True
    here = 1  # number of ranks that share this machine's memory
    somebody_off = False  # the guard of a rank has failed
    norm: float | None = None  # gradient norm of a sharded model from the last vote, if any
    loss: float | None = None  # loss of the last pipeline stages from the last vote, if any
    pending: Decision | None = None  # what to do when this step is over
    any_broken: Callable[[Tensor], Tensor] | None = None  # combines the flags of all ranks; None with one rank

    @property
    def silence(self) -> Silence | None:
        """Why other ranks are not heard any more; None while they are."""
        return None

    def begin(self, _decides: bool, /) -> None:
        """Start another recording; `_decides`: this rank records, and so decides for all."""
        self.pending = None

    def give(self, decision: Decision) -> None:
        """Add a decision; only rank 0 decides."""
        self.pending = decision if self.pending is None else self.pending.joined(decision)

    def agree(self, done: bool) -> bool:
        """Collective: whether all ranks are done."""
        return done

    def target_of_first(self, step: int) -> int:
        """Collective: return the step of rank 0; -1: none."""
        return step

    def forget(self) -> None:
        """Drop pending decisions after a rollback."""
        self.pending = None

    def announce(
        self, _capture: StepCapture, _step: int, _due: Callable[[], tuple[bool, bool]], _stop: int | None = None, /
    ) -> bool:
        """Prepare the vote of a capture; False without one.

        `_due`: what to keep. `_stop`: index of the condition that is met here.
        """
        return False

    def receive(self, _is_off: bool, _step: int, _ends_vote: bool = False, /) -> bool:
        """Take the decision of the vote; return whether a condition ends the training before this step.

        `_ends_vote`: there is no further vote on this capture.
        """
        return False


class SeveralRanks(Ranks):
    """Several ranks, as one of them sees them."""

    is_alone = False

    def __init__(self, exchange: RankExchange, settle: Callable[[], None]) -> None:
        """`settle` waits for pending readings: all ranks send theirs before they agree."""
        self._exchange, self._settle = exchange, settle
        self.here = exchange.hosts.count(exchange.hosts[exchange.rank])
        self.any_broken = self._any_broken
        self._decides = False
        self._to_send: Decision = NOTHING  # the decision to send with the next vote
        self._capture: StepCapture | None = None
        self._mine = RankRow()  # what this rank sends with the first vote on this capture
        self._received: RankRow | None = None
        self._is_over = False  # this capture was settled before its gradients were checked: no rank guards

    @property
    def silence(self) -> Silence | None:
        return self._exchange.silence

    def begin(self, decides: bool) -> None:
        self._decides = decides
        self.forget()

    def give(self, decision: Decision) -> None:
        if self._decides:
            self._to_send = self._to_send.joined(decision)

    def agree(self, done: bool) -> bool:
        self._settle()
        row = self._ask(RankRow(Votes(agrees=1.0, done=float(done))))
        return row is not None and row.votes.done == self._exchange.size

    def target_of_first(self, step: int) -> int:
        self._settle()
        orders = Orders(next_target=1.0 + step if self._decides else 0.0)
        row = self._ask(RankRow(Votes(agrees=1.0), orders))
        return -1 if row is None else round(row.orders.next_target) - 1

    def forget(self) -> None:
        super().forget()
        self._to_send = NOTHING

    def announce(
        self, capture: StepCapture, step: int, due: Callable[[], tuple[bool, bool]], stop: int | None = None
    ) -> bool:
        if capture is self._capture:
            return False
        self._capture, self._received, self._is_over = capture, None, False
        self.norm = self.loss = None
        self._mine = RankRow(conditions={} if stop is None else {self._exchange.rank: stop})
        if self._decides:
            if not self._to_send.trouble and not self._to_send.rolls_back:
                ring, disk = due()
                self._to_send = replace(self._to_send, snapshot=ring, checkpoint=disk)
            self._mine.orders = orders_of(self._to_send, step)
        return True

    def receive(self, is_off: bool, step: int, ends_vote: bool = False) -> bool:
        self._is_over = ends_vote
        if self._received is None and not self._exchange.is_paused:  # nothing was asked about its gradients
            self._vote(False, is_off=is_off)
        own, self._to_send = self._to_send, NOTHING
        decision = NOTHING if self._received is None else decision_of(self._received, step)
        if own.rolls_back:
            decision = replace(own, stop=decision.stop)
        self.pending = replace(decision, ending=own.ending or decision.ending)
        return decision.stop is not None

    def _any_broken(self, flag: Tensor) -> Tensor:
        if self.somebody_off or self._exchange.is_paused or self._is_over:
            return flag
        # The host has waited for the flag: the squares are there too, and the norm needs no exchange of its own.
        return flag.new_full((), float(self._vote(flag.item() > 0, has_waited=True)))

    def _vote(self, broken: bool, *, is_off: bool = False, has_waited: bool = False) -> bool:
        """Exchange the flag, and with the first vote of a capture everything else."""
        row = self._mine if self._received is None else RankRow()
        row.votes = Votes(steps=1.0, broken=float(broken), guard_off=float(is_off))
        is_first = self._received is None
        if is_first and self._capture is not None:
            capture = self._capture
            sums = Sums()
            if capture.squares_here is not None and has_waited:
                sums = sums._replace(squares=float(capture.squares_here), with_squares=1.0)
            if capture.loss_here is not None:
                sums = sums._replace(loss=float(capture.loss_here), with_loss=1.0)
            row.sums = sums
        answer = self._ask(row)
        if is_first:
            self._received = RankRow() if answer is None else answer
        if answer is None:
            return broken
        if is_first:
            self.norm = norm_of(answer, self._exchange.size)
            self.loss = answer.sums.loss / answer.sums.with_loss if answer.sums.with_loss else None
        return answer.votes.broken > 0

    def _ask(self, row: RankRow) -> RankRow | None:
        answer = self._exchange.ask(row)
        has_failed = self.silence is not None or (answer is not None and answer.votes.guard_off > 0)
        self.somebody_off = self.somebody_off or has_failed
        return answer


def ranks_of_training(exchanges: RankExchanges, settle: Callable[[], None]) -> Ranks:
    """Return the ranks of torch.distributed; StabilityError where not all have the autopilot."""
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized() or distributed.get_world_size() == 1:
        return Ranks()
    exchange = exchanges.between(range(distributed.get_world_size()), to_act=True)
    if exchange is None:
        raise StabilityError(NOT_ON_ALL)
    return SeveralRanks(exchange, settle)
