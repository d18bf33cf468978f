"""Writes into one run."""
