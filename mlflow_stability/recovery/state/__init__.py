"""Copies and restores the state of a training, in place."""
