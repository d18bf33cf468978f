"""Writes the journal of a run and runs its detectors."""
