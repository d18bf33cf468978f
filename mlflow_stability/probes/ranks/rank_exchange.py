"""Sums rows of numbers over the processes of a training: the only exchange between them in the thread that trains.

A step has one exchange where the autopilot acts, before the update; at the steps at which processes compare what they
have measured there is a second one, after the update, in the background: what the update has changed is known only
then. Before the first one, processes find out by the store of torch.distributed whether all of them are watched. A
script that watches some ranks only waits half a second once, at its first step.

Guarantees: an earlier exchange decides which captures have one, so that every process takes part in the same ones; no
process waits for another to be measured; one process group on the host for each set of ranks, apart from the script's
collectives; it is made only where all processes are watched; where a process has died, leaves or does not answer, all
go on alone, and the exchange says why. Checkpoints, written by another thread, have a group of their own.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from itertools import count
from typing import Any

import torch
from torch import Tensor

from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.probes.ranks.rank_row import (
    Agreed,
    Layout,
    Measured,
    Orders,
    PeakWatch,
    RankRow,
    RankTable,
    Shape,
    Votes,
    table_of,
)
from mlflow_stability.probes.step.readback import values_on_host


def attempt() -> str:
    """Return how often torchrun has started this job again; keys in the store contain it."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")


def gloo_group(timeout: timedelta, ranks: Sequence[int] | None = None) -> Any:
    """Return a gloo group of these ranks, or of all; all of its members must call this."""
    with _keys_of_this_attempt():
        return torch.distributed.new_group(
            None if ranks is None else list(ranks),
            backend="gloo",
            timeout=timeout,
            use_local_synchronization=ranks is not None,
        )


@contextmanager
def _keys_of_this_attempt() -> Iterator[None]:
    """Have torch make groups with keys that no earlier attempt has written.

    torchrun may keep the store of an earlier attempt, and gloo would wait for processes that have ended.
    """
    if attempt() == "0":
        yield
        return
    torch_distributed: Any = torch.distributed  # `PrefixStore` is not among its exported names
    groups: Any = torch_api.process_groups.pg_map
    world = torch_distributed.group.WORLD
    backend, store = before = groups[world]
    groups[world] = backend, torch_distributed.PrefixStore(f"mlflow_stability/attempt_{attempt()}", store)
    try:
        yield
    finally:
        groups[world] = before


# Where all processes are watched, they have announced themselves before their first step.
PRESENT_SECONDS = 0.5
VERDICT_SECONDS = 30.0  # longest wait for the first rank, which is at its first step as well
_meetings = count()  # announcements of earlier sessions are still in the store


class Watched(Enum):
    SOME = b"some"
    ALL = b"all"
    ALL_ACT = b"all act"  # all, each with the autopilot


class Presence:
    def __init__(self, acts: bool) -> None:
        self._acts = acts
        self._announced = ""
        self._watched: dict[tuple[int, ...], Watched] = {}

    def announce(self) -> None:
        distributed = torch.distributed
        if self._announced or not distributed.is_available() or not distributed.is_initialized():
            return
        self._announced = f"mlflow_stability/{attempt()}/{next(_meetings)}"
        own = Watched.ALL_ACT if self._acts else Watched.ALL
        torch_api.default_store().set(self._key(distributed.get_rank()), own.value)

    def of(self, ranks: tuple[int, ...], to_act: bool = False) -> Watched:
        """Return which of these ranks are watched; with `to_act`, only whether all have the autopilot counts."""
        if ranks not in self._watched:
            self.announce()
            watched = self._decide(ranks, to_act)
            if watched is None:
                return Watched.ALL
            self._watched[ranks] = watched
        return self._watched[ranks]

    def forget(self) -> None:
        self._announced = ""
        self._watched.clear()

    # Returns None where the first rank has no autopilot, and so may never look for those that act.
    def _decide(self, ranks: tuple[int, ...], to_act: bool) -> Watched | None:
        store, own, first = torch_api.default_store(), torch.distributed.get_rank(), ranks[0]
        verdict = f"{self._announced}/of/{'-'.join(map(str, ranks))}"
        keys = [self._key(rank) for rank in ranks]
        if own == first:
            watched = Watched.SOME
            if _soon(lambda: store.check(keys)):
                announced = {bytes(store.get(key)) for key in keys}
                watched = Watched.ALL_ACT if announced == {Watched.ALL_ACT.value} else Watched.ALL
            store.set(verdict, watched.value)
            return watched
        if not _soon(lambda: store.check([self._key(first)])):
            store.delete_key(self._key(own))
            return Watched.SOME
        if to_act and bytes(store.get(self._key(first))) != Watched.ALL_ACT.value:
            return None
        store.wait([verdict], timedelta(seconds=VERDICT_SECONDS))
        return Watched(bytes(store.get(verdict)))

    def _key(self, rank: int) -> str:
        return f"{self._announced}/{rank}"


def _soon(condition: Callable[[], bool]) -> bool:
    until = time.monotonic() + PRESENT_SECONDS
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.005)
    return True


ANSWER_SECONDS = 120.0  # without an answer a process counts as lost
POLL_SECONDS = 0.0002


class Silence(Enum):
    """Why nothing is exchanged any more; the value is a sentence."""

    LOST = f"a process has ended, or its connection is lost, or it did not answer for {ANSWER_SECONDS:g} s"
    OFF_HERE = "measuring is off in this process"
    OFF_ELSEWHERE = "mlflow-stability was switched off in another process of this training"
    OUT_OF_STEP = "processes make different steps"
    OVER = "the training is over"


class RankExchange:
    def __init__(self, ranks: Sequence[int], introduction: Any = None, votes: bool = False) -> None:
        distributed = torch.distributed
        self.votes = votes
        self.rank = tuple(ranks).index(distributed.get_rank())  # place of this process among them
        self.size = len(ranks)
        is_world = self.size == distributed.get_world_size()
        self._group = gloo_group(timedelta(seconds=ANSWER_SECONDS), None if is_world else ranks)
        met: list[Any] = [None] * self.size
        distributed.all_gather_object(met, (socket.gethostname(), introduction), group=self._group)
        self.hosts = [host for host, _ in met]
        self.names = [f"rank {rank} ({host})" for rank, host in zip(ranks, self.hosts, strict=True)]
        self.introductions = [introduction for _, introduction in met]  # what each process says of itself
        self.silence: Silence | None = None
        self.is_paused = False  # in `Join` processes do not make the same steps: each goes on alone
        self.shape = Shape(self.size)  # of the next row; changes only by the sum of a row
        self.bring_home: Callable[[], None] = lambda: None  # waits for the row in flight, which may change the shape
        self._row: Tensor | None = None
        self._work: Any = None
        self._since = 0.0

    def ask(self, row: RankRow) -> RankRow | None:
        """Send a row and wait for the sum of all; None if there will be none."""
        if self.is_paused:
            return None
        self.bring_home()
        if self.silence is not None:
            return None
        self.begin(row)
        return self._finished()

    def begin(self, row: RankRow) -> None:
        """Send a row without waiting; the one before has come back."""
        self._since = time.monotonic()
        self._row = torch.tensor(row.numbers(self.shape), dtype=torch.float64)
        try:
            self._work = torch.distributed.all_reduce(self._row, group=self._group, async_op=True)
        except (RuntimeError, ValueError):  # the script has taken the processes apart, or one has died
            self.end(Silence.LOST)

    def result(self, seconds: float = 0.0) -> RankRow | None:
        """Return the sum of the rows in flight, or None if it does not arrive within `seconds`."""
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
        """Tell the others with a last row, without waiting."""
        if self.silence is None and not self.is_paused and self._work is None:
            self.begin(RankRow(Votes(leaving=1.0)))
        self.end(Silence.OFF_HERE)

    def end(self, why: Silence) -> None:
        self.silence = self.silence or why

    def close(self) -> None:
        """Destroy the group before the interpreter ends, if the script has not done so.

        A group of some ranks only stays until then: torch would give the next one its name.
        """
        self.end(Silence.OVER)
        in_flight = self._work is not None and not self._work.is_completed()
        if self.votes and not in_flight and torch.distributed.is_initialized():  # gloo would wait for what is in flight
            with contextlib.suppress(RuntimeError, ValueError):  # the script has destroyed it with its own
                torch.distributed.destroy_process_group(self._group)

    def _finished(self) -> RankRow | None:
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
    """The exchanges of one session, one for each set of ranks."""

    def __init__(self, acts: bool = False, introduction: Callable[[], Any] = lambda: None) -> None:
        self.acts = acts
        self._introduction = introduction
        self._presence = Presence(acts)
        self._exchanges: dict[tuple[int, ...], RankExchange] = {}
        self.is_paused = False

    def announce(self) -> None:
        self._presence.announce()

    def between(self, ranks: Sequence[int], *, to_act: bool = False) -> RankExchange | None:
        """Return the exchange of these ranks; None if not all are watched, or, with `to_act`, have the autopilot."""
        key = tuple(ranks)
        if key not in self._exchanges:
            watched = self._presence.of(key, to_act)
            if watched is Watched.SOME or (to_act and watched is not Watched.ALL_ACT):
                return None
            votes = watched is Watched.ALL_ACT and len(key) == torch.distributed.get_world_size()
            exchange = self._exchanges[key] = RankExchange(key, self._introduction(), votes)
            exchange.is_paused = self.is_paused
        exchange = self._exchanges[key]
        return exchange if exchange.votes or not to_act else None

    def pause(self, begin: bool) -> None:
        """Begin or end a time in which processes do not make the same steps (`Join`)."""
        self.is_paused = begin
        for exchange in self._exchanges.values():
            exchange.is_paused = begin

    def leave(self) -> None:
        """Leave all exchanges: measuring has failed here, and the other processes go on alone."""
        for exchange in self._exchanges.values():
            exchange.leave()

    def close(self) -> None:
        for exchange in self._exchanges.values():
            exchange.close()
        self._exchanges.clear()
        self._presence.forget()


EVERY = 10  # steps between comparisons of losses; processes of a split model exchange at each step
FIRST = (1, 2, 4)  # steps at which weight updates are measured as well
MAX_WAITING_CAPTURES = 512

Deliver = Callable[[RankTable | None], None]


@dataclass(frozen=True, slots=True)
class _Waiting:
    measured: Measured | None  # none for a step that other processes may not make
    deliver: Deliver


class RankNumbers:
    def __init__(
        self, exchange: RankExchange, layers_every: int, on_end: Callable[[Silence], None] = lambda _: None
    ) -> None:
        self.exchange = exchange
        self._layers_every = layers_every
        self._on_end = on_end
        self._agreed: Agreed | None = None
        self.layout = self._announced = Layout()
        self._sent: tuple[_Waiting, int] | None = None
        self._waiting: deque[_Waiting] = deque()
        self._captures = 0
        self._peaks = PeakWatch(exchange.size)
        self._end_is_reported = False
        exchange.bring_home = lambda: self.poll(ANSWER_SECONDS)

    @property
    def is_over(self) -> bool:
        return self.exchange.silence is not None

    @property
    def step(self) -> int | None:
        """The step of the recording that is being measured, or None if unknown."""
        return None if self._agreed is None else self._captures + 1 + self._agreed.offset

    def take(self, measured: Measured, deliver: Deliver, alone: bool = False) -> None:
        """Queue the measurements of the next capture; `alone`: of a step that other processes may not make."""
        if not alone:
            self._captures += 1
            measured.capture = self._captures
            measured.peaks = self._peaks.take(measured.capture, measured.loss, measured.seconds)
        self._waiting.append(_Waiting(None if alone else measured, deliver))
        if len(self._waiting) > MAX_WAITING_CAPTURES:
            self.exchange.end(Silence.LOST)
        self.poll()

    def poll(self, seconds: float = 0.0) -> None:
        """Receive what has arrived, and send the next row."""
        while not self.is_over:
            if self._sent is not None and not self._receive(seconds):
                break
            if not self._waiting or self.is_over:
                break
            waiting = self._waiting.popleft()
            measured = waiting.measured
            if measured is not None and self._is_due(measured.capture):
                self._send(measured, waiting)
                continue
            waiting.deliver(None)
        if self.is_over:
            self._go_on_alone()

    def close(self) -> None:
        self._end_is_reported = True
        self.exchange.end(Silence.OVER)
        self._go_on_alone()

    def _is_due(self, capture: int) -> bool:
        agreed = self._agreed
        if agreed is None or agreed.needs_norm:
            return True
        step = capture + agreed.offset
        return step % EVERY == 0 or step in FIRST or self._has_layers(step)

    def _has_layers(self, step: int) -> bool:
        every = 0 if self._agreed is None else self._agreed.layers_every
        return every > 0 and step % every == 0

    # The shape of all rows from here to the next one with measurements.
    def _shape_after(self, capture: int, agreed: Agreed) -> Shape:
        size = self.exchange.size
        if not agreed.layout_is_shared:
            return Shape(size)
        following = capture + 1
        while not self._is_due(following):
            following += 1
        layers = self._announced.layers if self._has_layers(following + agreed.offset) else 0
        return Shape(size, layers, self._announced.partial)

    def _send(self, measured: Measured, waiting: _Waiting) -> None:
        row = measured.row(self.exchange.rank, self.exchange.shape, self.layout.names)
        if self.exchange.rank == 0:
            before = 0 if self._agreed is None else self._agreed.offset
            offset = measured.step - measured.capture if measured.step else before
            row.orders = Orders(
                capture=float(measured.capture), offset=float(offset), layers_every=float(self._layers_every)
            )
        self._announced = self.layout
        self._sent = waiting, self.layout.names
        self._peaks.sent(measured.peaks)
        self.exchange.begin(row)

    def _receive(self, seconds: float) -> bool:
        assert self._sent is not None
        row = self.exchange.result(seconds)
        if row is None:
            return False
        (waiting, names), self._sent = self._sent, None
        if self.is_over:  # the last row of another process has no measurements
            waiting.deliver(None)
            return True
        table, self._agreed = table_of(row, self.exchange.size, names)
        self.exchange.shape = self._shape_after(round(row.orders.capture), self._agreed)
        waiting.deliver(table)
        return True

    def _go_on_alone(self) -> None:
        pending = [*([] if self._sent is None else [self._sent[0]]), *self._waiting]
        self._sent, self._waiting = None, deque()
        for waiting in pending:
            waiting.deliver(None)
        was_reported, self._end_is_reported = self._end_is_reported, True
        silence = self.exchange.silence
        if not was_reported and silence is not None and silence is not Silence.OFF_HERE:
            self._on_end(silence)
