"""Looks at the first steps of a training for mistakes in its set-up."""

from __future__ import annotations

from mlflow_stability.probes.first_look.first_look import FirstLook

__all__ = ["FirstLook"]
