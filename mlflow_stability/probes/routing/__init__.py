"""Finds the routers of mixtures of experts, and measures which experts they choose."""
