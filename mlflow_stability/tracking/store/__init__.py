"""Connects to a tracking store, and explains its errors."""

from __future__ import annotations

from mlflow_stability.tracking.store.address import (
    absolute_uri,
    default_uri,
    is_sqlite,
    same_store,
    strip_credentials,
    tracking_uri_for,
    without_credentials,
)

# What loads MLflow is imported from its own module: a training needs addresses, and no MLflow.
__all__ = [
    "absolute_uri",
    "default_uri",
    "is_sqlite",
    "same_store",
    "strip_credentials",
    "tracking_uri_for",
    "without_credentials",
]
