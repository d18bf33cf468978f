"""Sums rows of numbers over the processes of a training: the only exchange between them in the thread that trains.

In: rows of this process. Out: the sum of all rows, at once or some time later. Guarantees:
one process group on the host for each set of ranks, apart from the script's collectives, whatever splits the model; it
is made only where all processes are watched; where a process has died, leaves or does not answer, it is over for all
and says why.

A step has one exchange: where the autopilot acts, before the update. At the steps at which processes compare what they
have measured there is a second one, after the update, in the background. One alone would not do: a broken step must be
known before the update, what the update has changed is known only after it, and the last step of a training is recorded
whole, so that it cannot wait for the exchange of a next one.

Checkpoints are written by another thread, while the training goes on; it has a group of its own (`rank_store`).
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from mlflow_stability.probes.ranks.own_group import gloo_group
from mlflow_stability.probes.ranks.presence import Presence, Watched
from mlflow_stability.probes.ranks.rank_row import RankRow, Shape, Votes
from mlflow_stability.probes.step.readback import values_on_host

ANSWER_SECONDS = 120.0
"""For how long a process may leave the others without an answer."""
POLL_SECONDS = 0.0002


class Silence(Enum):
    """Why nothing is exchanged any more; the value is the sentence."""

    LOST = f"a process has ended, or its connection is lost, or it did not answer for {ANSWER_SECONDS:g} s"
    OFF_HERE = "measuring is off in this process"
    OFF_ELSEWHERE = "mlflow-stability was switched off in another process of this training"
    OUT_OF_STEP = "processes make different steps"
    OVER = "the training is over"


class RankExchange:
    """The processes of one training."""

    def __init__(self, ranks: Sequence[int], introduction: Any = None, votes: bool = False) -> None:
        """`introduction`: what this process has the others know of it. `votes`: they vote before each step."""
        distributed = torch.distributed
        self.votes = votes
        self.rank = tuple(ranks).index(distributed.get_rank())
        """The place of this process among them."""
        self.size = len(ranks)
        is_world = self.size == distributed.get_world_size()
        self._group = gloo_group(timedelta(seconds=ANSWER_SECONDS), None if is_world else ranks)
        met: list[Any] = [None] * self.size
        distributed.all_gather_object(met, (socket.gethostname(), introduction), group=self._group)
        self.hosts = [host for host, _ in met]
        self.names = [f"rank {rank} ({host})" for rank, host in zip(ranks, self.hosts, strict=True)]
        """What each process is called: its rank and its host."""
        self.introductions = [each for _, each in met]
        """What each process has said of itself."""
        self.silence: Silence | None = None
        """Why nothing is exchanged any more; None while all is well."""
        self.is_paused = False
        """Whether processes do not make the same steps (`Join`): each goes on alone meanwhile."""
        self.shape = Shape(self.size)
        """Of the next row: changes only by what the sum of a row has told all processes."""
        self.bring_home: Callable[[], None] = lambda: None
        """Waits for what was begun before, by which the shape may change."""
        self._row: Tensor | None = None
        self._work: Any = None
        self._since = 0.0

    def ask(self, row: RankRow) -> RankRow | None:
        """The sum of all rows, waited for; None where there will be none."""
        if self.is_paused:
            return None
        self.bring_home()
        if self.silence is not None:
            return None
        self.begin(row)
        return self._finished()

    def begin(self, row: RankRow) -> None:
        """Send a row, and wait for nobody; the one before has come back."""
        self._since = time.monotonic()
        self._row = torch.tensor(row.numbers(self.shape), dtype=torch.float64)
        try:
            self._work = torch.distributed.all_reduce(self._row, group=self._group, async_op=True)
        except (RuntimeError, ValueError):  # the script has taken the processes apart, or one has died
            self.end(Silence.LOST)

    def result(self, seconds: float = 0.0) -> RankRow | None:
        """The sum of the rows that were begun; None where it has not come within so many seconds, or never will."""
        give_up = time.monotonic() + seconds
        while self._work is not None and self.silence is None and not self._work.is_completed():
            now = time.monotonic()
            if now - self._since > ANSWER_SECONDS:
                self.end(Silence.LOST)
            elif now >= give_up:
                return None
            else:
                time.sleep(POLL_SECONDS)
        return self._finished()

    def leave(self) -> None:
        """Let the others know with one last row, and wait for nobody."""
        if self.silence is None and not self.is_paused and self._work is None:
            self.begin(RankRow(Votes(leaving=1.0)))
        self.end(Silence.OFF_HERE)

    def end(self, why: Silence) -> None:
        """Nothing is exchanged any more."""
        self.silence = self.silence or why

    def close(self) -> None:
        """The training is over: take the group down before the interpreter does, if the script has not yet.

        One of some ranks only stays until then: torch would give the next one its name.
        """
        self.end(Silence.OVER)
        in_flight = self._work is not None and not self._work.is_completed()
        if self.votes and not in_flight and torch.distributed.is_initialized():  # gloo would wait for what is in flight
            with contextlib.suppress(RuntimeError, ValueError):  # the script has taken it down with its own
                torch.distributed.destroy_process_group(self._group)

    def _finished(self) -> RankRow | None:
        """The sum of the rows, waited for."""
        if self._work is None or self._row is None or self.silence is not None:
            return None
        work, packed, self._work = self._work, self._row, None
        try:
            work.wait()
        except RuntimeError:
            self.end(Silence.LOST)
            return None
        row = RankRow.of(values_on_host(packed), self.shape)
        if row.votes.leaving > 0:
            self.end(Silence.OFF_ELSEWHERE)
        elif self.size not in (row.votes.steps, row.votes.agrees, row.votes.measures):
            self.end(Silence.OUT_OF_STEP)
            return None
        return row


class RankExchanges:
    """The exchanges of one session: whoever asks for the same ranks is given the same one."""

    def __init__(self, acts: bool = False, introduction: Callable[[], Any] = lambda: None) -> None:
        """`acts`: this session has the autopilot."""
        self.acts = acts
        self._introduction = introduction
        self._presence = Presence(acts)
        self._known: dict[tuple[int, ...], RankExchange] = {}
        self.is_paused = False
        """Whether processes do not make the same steps at the moment."""

    def announce(self) -> None:
        """Runs before the first step, so that the other processes know that this one is watched."""
        self._presence.announce()

    def between(self, ranks: Sequence[int], *, to_act: bool = False) -> RankExchange | None:
        """That of these ranks; None where not all of them are watched, or have the autopilot, where it is `to_act`."""
        key = tuple(ranks)
        if key not in self._known:
            watched = self._presence.of(key, to_act)
            if watched is Watched.SOME or (to_act and watched is not Watched.ALL_ACT):
                return None
            votes = watched is Watched.ALL_ACT and len(key) == torch.distributed.get_world_size()
            exchange = self._known[key] = RankExchange(key, self._introduction(), votes)
            exchange.is_paused = self.is_paused
        exchange = self._known[key]
        return exchange if exchange.votes or not to_act else None

    def pause(self, begin: bool) -> None:
        """Processes do not make the same steps for a while (`Join`): each goes on alone meanwhile."""
        self.is_paused = begin
        for each in self._known.values():
            each.is_paused = begin

    def leave(self) -> None:
        """What counts captures has failed here: the other processes go on without this one."""
        for each in self._known.values():
            each.leave()

    def close(self) -> None:
        """The session is over."""
        for each in self._known.values():
            each.close()
        self._known.clear()
        self._presence.forget()
