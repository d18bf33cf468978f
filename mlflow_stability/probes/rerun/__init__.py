"""Runs a forward pass again without changing the training."""
