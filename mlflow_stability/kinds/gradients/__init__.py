"""Findings about gradients and weights by layer."""
