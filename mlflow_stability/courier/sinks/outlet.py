"""What an outlet is: a sink beside the run, for people and for other tools.

Outlets do not need the tracking server: alerts are most welcome while it is away.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

from mlflow_stability.alerts.metrics import PrometheusExporter
from mlflow_stability.alerts.outlet_settings import OutletSettings
from mlflow_stability.courier.process.training_process import TrainingState
from mlflow_stability.courier.sinks.sink import Sink
from mlflow_stability.journal.record import Record
from mlflow_stability.vocabulary.measured import StepReading
from mlflow_stability.vocabulary.run import Closing, Returned

_logger = logging.getLogger("mlflow_stability.courier")


def _say_nothing(_: str) -> None:
    """Where no training is there to pass it on."""


@dataclass(frozen=True, slots=True)
class OutletPlan:
    """What a session's recordings are delivered to beside their runs."""

    settings: OutletSettings = field(default_factory=OutletSettings)
    say: Callable[[str], None] = _say_nothing
    """Has the training say something on its console, once."""
    prometheus: PrometheusExporter | None = None
    """The port that all recordings of the session share."""


def outlet_plan(settings: OutletSettings, say: Callable[[str], None]) -> OutletPlan:
    """The plan for the recordings of one session."""
    port = settings.prometheus_port
    return OutletPlan(settings, say, None if port is None else PrometheusExporter(port, say))


class Outlet(Sink):
    """A sink beside the run. An error switches it off: the run is what matters."""

    def __init__(self, plan: OutletPlan, until: int = 0) -> None:
        super().__init__(until)
        self.done = False
        """Nothing is left to send, or it was given up."""
        self.awaited = True
        """The end of the training should wait for it a little."""
        self.closing: Closing | None = None
        """How the training ended, as its journal says."""
        self.returned: Closing | None = None
        """How it ended if no other step comes."""
        self._plan = plan

    @property
    def full(self) -> bool:
        """Whether nothing more is taken for the moment."""
        return self.done

    def take(self, record: Record) -> None:
        """Take a record, and note how the training ended."""
        if isinstance(record, StepReading):
            self.returned = None
        elif isinstance(record, Returned):
            self.returned = Closing(**asdict(record))
        elif isinstance(record, Closing):
            self.closing = record
        try:
            self._take(record)
        except Exception as error:  # whatever it is, everything else is delivered
            self._switch_off(error)

    def flush(self, state: TrainingState) -> bool:
        """Do what is due; True if there is more to do at once. Waits for no network, and never raises."""
        try:
            return not self.done and self._flush(state)
        except Exception as error:
            self._switch_off(error)
            return False

    def is_over(self, state: TrainingState) -> bool:
        """Whether everything was taken that will ever come."""
        return not self.more and (self.closing is not None or state.closing is not None or not state.alive)

    def _take(self, record: Record) -> None:
        raise NotImplementedError

    def _flush(self, state: TrainingState) -> bool:
        raise NotImplementedError

    def _switch_off(self, error: Exception) -> None:
        self.done, self.awaited = True, False
        name = type(self).__name__
        _logger.error("%s failed", name, exc_info=error)
        self._plan.say(
            f"{name} failed ({type(error).__name__}) and is switched off; the courier's log has the traceback. "
            "Training and its run are not affected."
        )
