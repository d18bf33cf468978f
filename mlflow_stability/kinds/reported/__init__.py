"""Findings that are reported, not detected."""
