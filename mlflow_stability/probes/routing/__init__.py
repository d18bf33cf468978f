"""Finds the routers of mixtures of experts, and measures which experts they choose."""

from mlflow_stability.probes.routing.router_probe import RouterProbe

__all__ = ["RouterProbe"]
