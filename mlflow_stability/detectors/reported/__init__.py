"""Findings that are reported, not detected: their names, meanings and remedies."""
