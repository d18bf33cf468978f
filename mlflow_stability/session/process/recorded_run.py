"""A recording as who reads runs back asks for it: its run, once what was recorded so far is in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from weakref import WeakMethod

from mlflow_stability.session.output import TrainingOutput
from mlflow_stability.session.process.courier_link import CourierLink, DeliveringCourier, wait_for_delivery
from mlflow_stability.tracking.in_process import DeliveredState


class RecordedRun:
    """One recording; outlives its session, and holds nothing of the training."""

    def __init__(
        self, link: CourierLink, folder: Path, address: str, output: TrainingOutput, settle: Callable[[], None]
    ) -> None:
        """`settle`: a method that brings the last readings into the journal."""
        self._link = link
        self._folder = folder
        self._address = address
        self._output = output
        self._settle = WeakMethod(settle)

    def delivered(self, seconds: float) -> DeliveredState | None:
        """Wait until what was recorded so far is in the run; None where the run is not known by then."""
        settle = self._settle()
        if settle is not None:
            settle()
        late = wait_for_delivery([DeliveringCourier(self._link, seconds, self._output, seconds)])
        run_id = self._link.run(self._folder).run_id
        return DeliveredState(run_id, self._address, self._link.left() if late else "") if run_id else None
