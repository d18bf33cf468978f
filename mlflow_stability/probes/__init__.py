"""Measure a training through torch hooks without changing it."""
