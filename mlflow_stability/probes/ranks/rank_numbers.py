"""Combine the measurements of all processes of a training, with at most one exchange for each capture.

Guarantees: every process takes part in the same exchanges, because an earlier exchange decides which captures have one;
no process waits for another; where one leaves, dies or does not answer, all continue alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from mlflow_stability.probes.ranks.rank_exchange import ANSWER_SECONDS, RankExchange, Silence
from mlflow_stability.probes.ranks.rank_row import (
    Agreed,
    Layout,
    Measured,
    Orders,
    PeakWatch,
    RankTable,
    Shape,
    table_of,
)

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
        self._exchange = exchange
        self._layers_every = layers_every
        self._on_end = on_end
        self._agreed: Agreed | None = None
        self._layout = self._announced = Layout()
        self._sent: tuple[_Waiting, int] | None = None
        self._waiting: deque[_Waiting] = deque()
        self._captures = 0
        self._peaks = PeakWatch(exchange.size)
        self._end_is_reported = False
        exchange.bring_home = lambda: self.poll(ANSWER_SECONDS)

    @property
    def is_over(self) -> bool:
        return self._exchange.silence is not None

    @property
    def is_first(self) -> bool:
        return self._exchange.rank == 0

    @property
    def names(self) -> list[str]:
        return self._exchange.names

    @property
    def step(self) -> int | None:
        """The step of the recording that is being measured, or None if unknown."""
        return None if self._agreed is None else self._captures + 1 + self._agreed.offset

    def learn_layout(self, layout: Layout) -> None:
        self._layout = layout

    def take(self, measured: Measured, deliver: Deliver, alone: bool = False) -> None:
        """Queue the measurements of the next capture; `alone`: of a step that other processes may not make."""
        if not alone:
            self._captures += 1
            measured.capture = self._captures
            measured.peaks = self._peaks.take(measured.capture, measured.loss, measured.seconds)
        self._waiting.append(_Waiting(None if alone else measured, deliver))
        if len(self._waiting) > MAX_WAITING_CAPTURES:
            self._exchange.end(Silence.LOST)
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
        self._exchange.end(Silence.OVER)
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
        size = self._exchange.size
        if not agreed.layout_is_shared:
            return Shape(size)
        following = capture + 1
        while not self._is_due(following):
            following += 1
        layers = self._announced.layers if self._has_layers(following + agreed.offset) else 0
        return Shape(size, layers, self._announced.partial)

    def _send(self, measured: Measured, waiting: _Waiting) -> None:
        row = measured.row(self._exchange.rank, self._exchange.shape, self._layout.names)
        if self.is_first:
            before = 0 if self._agreed is None else self._agreed.offset
            offset = measured.step - measured.capture if measured.step else before
            row.orders = Orders(
                capture=float(measured.capture), offset=float(offset), layers_every=float(self._layers_every)
            )
        self._announced = self._layout
        self._sent = waiting, self._layout.names
        self._peaks.sent(measured.peaks)
        self._exchange.begin(row)

    def _receive(self, seconds: float) -> bool:
        assert self._sent is not None
        row = self._exchange.result(seconds)
        if row is None:
            return False
        (waiting, names), self._sent = self._sent, None
        if self.is_over:  # the last row of another process has no measurements
            waiting.deliver(None)
            return True
        table, self._agreed = table_of(row, self._exchange.size, names)
        self._exchange.shape = self._shape_after(round(row.orders.capture), self._agreed)
        waiting.deliver(table)
        return True

    def _go_on_alone(self) -> None:
        pending = [*([] if self._sent is None else [self._sent[0]]), *self._waiting]
        self._sent, self._waiting = None, deque()
        for waiting in pending:
            waiting.deliver(None)
        was_reported, self._end_is_reported = self._end_is_reported, True
        silence = self._exchange.silence
        if not was_reported and silence is not None and silence is not Silence.OFF_HERE:
            self._on_end(silence)
