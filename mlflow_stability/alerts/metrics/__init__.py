"""Signals in other tools: their names, and the ways there."""
