"""Carries orders from where they are decided to where they are carried out.

In: orders as they are decided, step by step. Out: what to do when the step at hand is over. In one process that is what
was decided last; where several train together, it is what the first of them said at the last gate, so that each does
the same after the same step.
"""

from __future__ import annotations

from collections.abc import Callable

from mlflow_stability.session.orders import Orders
from mlflow_stability.session.shared_vote import SharedVote


class Crew:
    """The processes of one training, as this one sees them."""

    def __init__(self, vote: SharedVote | None, decides: bool) -> None:
        self._vote = vote
        self._decides = decides
        self._orders = Orders()
        """To be carried out when this step is over."""
        self._to_say = Orders()
        """To be sent to all processes, this one among them, at the next gate."""

    @property
    def is_alone(self) -> bool:
        """Whether there is but one."""
        return self._vote is None

    @property
    def somebody_off(self) -> bool:
        """Whether the guard of a process has failed."""
        return self._vote is not None and self._vote.somebody_off

    def give(self, orders: Orders) -> None:
        """Something was decided; of several processes only the first one decides."""
        if self._vote is None:
            self._orders = self._orders.joined(orders)
        elif self._decides:
            self._to_say = self._to_say.joined(orders)

    def take(self) -> Orders:
        """What is to be done now."""
        orders, self._orders = self._orders, Orders()
        return orders

    def agree(self, done: bool) -> bool:
        """Whether all processes have done it; each must come here, whatever became of it."""
        return done if self._vote is None else self._vote.all_have(done)

    def forget(self) -> None:
        """The training was set back: what was decided of its steps is void."""
        self._orders, self._to_say = Orders(), Orders()

    def announce(self, cycle: object, step: int, due: Callable[[], tuple[bool, bool]]) -> bool:
        """Runs before the vote of a cycle; False where there is none, or it was held. `due`: what to keep, if asked."""
        if self._vote is None or not self._vote.begins(cycle):
            return False
        if self._decides:
            if not self._to_say.trouble and self._to_say.rollback is None:
                self._to_say.snapshot, self._to_say.checkpoint = due()
            self._vote.say(self._to_say, step)
        return True

    def hear(self, is_off: bool, step: int) -> None:
        """Runs after it: the orders are the same everywhere, but their reason is known only where they came from."""
        if self._vote is None:
            return
        mine, self._to_say = self._to_say, Orders()
        self._orders = self._vote.heard(is_off, step)
        if mine.rollback is not None:
            self._orders.rollback = mine.rollback
        self._orders.ending = mine.ending or self._orders.ending
