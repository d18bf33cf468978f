"""Findings about the level of the loss."""
