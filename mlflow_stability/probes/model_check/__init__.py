"""Checks a model as it is now: its settings, its values, and one batch."""
