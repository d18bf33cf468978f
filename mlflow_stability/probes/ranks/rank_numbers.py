"""Combines what all processes of a training have measured: at most one exchange for each capture.

In: what this process has measured of each capture, in order. Out: for each, in order, what all have measured together;
nothing where there was no exchange. Guarantees: every process takes part in the same exchanges, for which captures have
one depends only on what an earlier one has told all of them; nobody waits for another process; where one leaves, dies
or does not answer, all go on alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from mlflow_stability.probes.ranks.rank_exchange import RankExchange
from mlflow_stability.probes.ranks.rank_peaks import PeakWatch
from mlflow_stability.probes.ranks.sum_over_ranks import (
    LAYERS_EVERY,
    LEAVING,
    OFFSET,
    Agreed,
    Layout,
    Measured,
    RankTable,
    Shape,
    pack,
    unpack,
)

EVERY = 10
"""Every how many steps processes compare their losses; those of a split model exchange at each step."""
FIRST = (1, 2, 4)
"""Steps at which updates of the weights are measured as well."""
MOST_WAITING = 512
"""Of so many captures what was measured is kept while another process does not answer."""

NO_ANSWER = "a process did not answer"
Deliver = Callable[[RankTable | None], None]


@dataclass(frozen=True, slots=True)
class _Waiting:
    measured: Measured | None
    """None: this process makes steps that others do not."""
    deliver: Deliver


class RankNumbers:
    """The exchanges of one training."""

    def __init__(
        self, exchange: RankExchange, layers_every: int, on_end: Callable[[str], None] = lambda _: None
    ) -> None:
        self._exchange = exchange
        self._layers_every = layers_every
        self._on_end = on_end
        self._agreed: Agreed | None = None
        self._layout = self._announced = Layout()
        """The layers that are measured now, and those that the others were told of last."""
        self._sent: tuple[_Waiting | None, Shape, int] | None = None
        self._waiting: deque[_Waiting] = deque()
        self._captures = self._last_sent = 0
        self._peaks = PeakWatch(exchange.size)
        self._told = False

    @property
    def is_over(self) -> bool:
        """Whether processes go on alone."""
        return bool(self._exchange.over)

    @property
    def is_first(self) -> bool:
        """Whether this process is the one whose steps count."""
        return self._exchange.rank == 0

    @property
    def names(self) -> list[str]:
        """What each process is called: its rank and its host."""
        return self._exchange.names

    @property
    def step(self) -> int | None:
        """The step of the recording that is being measured, where it is known here."""
        return None if self._agreed is None else self._captures + 1 + self._agreed.offset

    @property
    def captures(self) -> int:
        """How many were measured."""
        return self._captures

    def learn_layout(self, layout: Layout) -> None:
        """These layers are measured from now on."""
        self._layout = layout

    def take(self, measured: Measured, deliver: Deliver, alone: bool = False) -> None:
        """What was measured of the next capture; `alone`: of a step that other processes may not make."""
        if not alone:
            self._captures += 1
            measured.capture = self._captures
            measured.peaks = self._peaks.take(measured.capture, measured.loss, measured.seconds)
        if self.is_over:
            deliver(None)
            return
        self._waiting.append(_Waiting(None if alone else measured, deliver))
        if len(self._waiting) > MOST_WAITING:
            self._end(NO_ANSWER)
        self.poll()

    def poll(self, seconds: float = 0.0) -> None:
        """Take in what has arrived, and send what is to be sent."""
        while True:
            if self._sent is not None and not self._arrived(seconds):
                return
            if not self._waiting:
                return
            waiting = self._waiting.popleft()
            measured = waiting.measured
            if measured is not None and self._is_due(measured.capture):
                self._send(measured, waiting)
            else:
                waiting.deliver(None)

    def leave(self, seconds: float) -> None:
        """A part of ours has failed here: let the others know with one last row, and go on alone."""
        if self.is_over:
            return
        self.poll(seconds)
        if self._sent is None and not self.is_over:
            capture = self._last_sent + 1
            while not self._is_due(capture):
                capture += 1
            self._send(Measured(capture), None, leaving=True)
        self._end("measuring is off in this process", tell=False)

    def close(self) -> None:
        """The training is over."""
        self._end("the training is over", tell=False)

    def _is_due(self, capture: int) -> bool:
        agreed = self._agreed
        if agreed is None or agreed.needs_norm:
            return True
        step = capture + agreed.offset
        return step % EVERY == 0 or step in FIRST or self._has_layers(step)

    def _has_layers(self, step: int) -> bool:
        every = 0 if self._agreed is None else self._agreed.layers_every
        return every > 0 and step % every == 0

    def _send(self, measured: Measured, waiting: _Waiting | None, leaving: bool = False) -> None:
        agreed = self._agreed
        shared = agreed is not None and agreed.layout_is_shared
        offset = 0 if agreed is None else agreed.offset
        layers = shared and self._has_layers(measured.capture + offset)
        shape = Shape(self._exchange.size, self._announced if shared else Layout(), layers, shared)
        row = pack(measured, self._exchange.rank, shape, self._layout.names)
        row[LEAVING] = float(leaving)
        if self.is_first:
            row[OFFSET] = float(measured.step - measured.capture if measured.step else offset)
            row[LAYERS_EVERY] = float(self._layers_every)
        self._announced, self._last_sent = self._layout, measured.capture
        self._sent = waiting, shape, self._layout.names
        self._peaks.sent(measured.peaks)
        self._exchange.begin(row)

    def _arrived(self, seconds: float) -> bool:
        assert self._sent is not None
        row = self._exchange.result(seconds)
        if row is None:
            if self._exchange.over:
                self._end(self._exchange.over)
                return True
            return False
        (waiting, shape, names), self._sent = self._sent, None
        table, self._agreed = unpack(row, shape, names)
        if waiting is not None:
            waiting.deliver(table)
        if self._agreed.somebody_leaves:
            self._end("measuring was switched off in another process of this training")
        return True

    def _end(self, why: str, tell: bool = True) -> None:
        """Go on alone."""
        self._exchange.end(why)
        tell, self._told = tell and not self._told, True
        left = [*([] if self._sent is None or self._sent[0] is None else [self._sent[0]]), *self._waiting]
        self._sent, self._waiting = None, deque()
        for each in left:
            each.deliver(None)
        if tell:
            self._on_end(why)
