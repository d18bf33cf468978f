"""Progress of the delivery, in files that other processes read."""

from __future__ import annotations

from mlflow_stability.courier.progress.delivered import Delivered
from mlflow_stability.courier.progress.json_file import read_page, write_page
from mlflow_stability.courier.progress.status import CourierStatus, StatusPage

__all__ = ["CourierStatus", "Delivered", "StatusPage", "read_page", "write_page"]
