"""Starts the courier process; detects the end of threads and of the process."""

from __future__ import annotations

from mlflow_stability.session.process.cell_end import CellEnd
from mlflow_stability.session.process.courier_link import CourierLink, DeliveringCourier, Say, wait_for_delivery
from mlflow_stability.session.process.process_end import EndingWatch, closing_of, process_exit
from mlflow_stability.session.process.recorded_run import RecordedRun
from mlflow_stability.session.process.thread_end import ThreadEnd

__all__ = [
    "CellEnd",
    "CourierLink",
    "DeliveringCourier",
    "EndingWatch",
    "RecordedRun",
    "Say",
    "ThreadEnd",
    "closing_of",
    "process_exit",
    "wait_for_delivery",
]
