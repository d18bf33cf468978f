"""Smaller steps after a rollback, and gradients clipped by the training's own statistics."""
