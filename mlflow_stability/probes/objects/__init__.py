"""Finds and names the models of a script."""

from mlflow_stability.probes.objects.optimizer_state import ZERO, holder_of_state, state_of

__all__ = ["ZERO", "holder_of_state", "state_of"]
