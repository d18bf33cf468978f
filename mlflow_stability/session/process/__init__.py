"""Starts the courier process; detects the end of threads and of the process."""

from __future__ import annotations

from mlflow_stability.session.process.courier_link import (
    CourierLink,
    DeliveringCourier,
    RecordedRun,
    Say,
    wait_for_delivery,
)
from mlflow_stability.session.process.process_end import CellEnd, EndingWatch, ThreadEnd, closing_of, process_exit

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
