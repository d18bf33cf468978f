"""Keeps MLflow's automatic logging away from what we compute ourselves.

In: nothing. Out: a `with` block in which no fitted model adds a run, a parameter or a metric to the user's store.
Promised: MLflow is not loaded for it, and what the user had switched on is on again afterwards.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_autologging() -> Iterator[None]:
    """`mlflow.autolog()` logs every model of scikit-learn that is fitted in this process, ours as well."""
    known = sys.modules.get("mlflow.utils.autologging_utils")
    if known is None or getattr(known, "_AUTOLOGGING_GLOBALLY_DISABLED", False):
        yield
        return
    with known.disable_autologging():
        yield
