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

from mlflow_stability.probes.ranks.rank_exchange import ANSWER_SECONDS, RankExchange, Silence
from mlflow_stability.probes.ranks.rank_peaks import PeakWatch
from mlflow_stability.probes.ranks.rank_row import Agreed, Layout, Measured, Orders, RankTable, Shape, table_of

EVERY = 10
"""Every how many steps processes compare their losses; those of a split model exchange at each step."""
FIRST = (1, 2, 4)
"""Steps at which updates of the weights are measured as well."""
MOST_WAITING = 512
"""Of so many captures what was measured is kept while another process does not answer."""

Deliver = Callable[[RankTable | None], None]


@dataclass(frozen=True, slots=True)
class _Waiting:
    measured: Measured | None
    """None: this process makes steps that others do not."""
    deliver: Deliver


class RankNumbers:
    """The captures of one training, as all its processes measure them."""

    def __init__(
        self, exchange: RankExchange, layers_every: int, on_end: Callable[[Silence], None] = lambda _: None
    ) -> None:
        self._exchange = exchange
        self._layers_every = layers_every
        self._on_end = on_end
        self._agreed: Agreed | None = None
        self._layout = self._announced = Layout()
        """The layers that are measured now, and those that the others were told of last."""
        self._sent: tuple[_Waiting, int] | None = None
        self._waiting: deque[_Waiting] = deque()
        self._captures = 0
        """How many were measured."""
        self._peaks = PeakWatch(exchange.size)
        self._end_is_reported = False
        exchange.bring_home = lambda: self.poll(ANSWER_SECONDS)

    @property
    def is_over(self) -> bool:
        """Whether processes go on alone."""
        return self._exchange.silence is not None

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

    def learn_layout(self, layout: Layout) -> None:
        """These layers are measured from now on."""
        self._layout = layout

    def take(self, measured: Measured, deliver: Deliver, alone: bool = False) -> None:
        """What was measured of the next capture; `alone`: of a step that other processes may not make."""
        if not alone:
            self._captures += 1
            measured.capture = self._captures
            measured.peaks = self._peaks.take(measured.capture, measured.loss, measured.seconds)
        self._waiting.append(_Waiting(None if alone else measured, deliver))
        if len(self._waiting) > MOST_WAITING:
            self._exchange.end(Silence.LOST)
        self.poll()

    def poll(self, seconds: float = 0.0) -> None:
        """Take in what has arrived, and send what is to be sent."""
        while not self.is_over:
            if self._sent is not None and not self._arrived(seconds):
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
        """The training is over."""
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

    def _shape_after(self, capture: int, agreed: Agreed) -> Shape:
        """The shape of all rows from here to the next one with measurements, after that of this capture."""
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

    def _arrived(self, seconds: float) -> bool:
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
        left = [*([] if self._sent is None else [self._sent[0]]), *self._waiting]
        self._sent, self._waiting = None, deque()
        for each in left:
            each.deliver(None)
        reports, self._end_is_reported = not self._end_is_reported, True
        if reports and self._exchange.silence not in (None, Silence.OFF_HERE):
            assert self._exchange.silence is not None
            self._on_end(self._exchange.silence)
