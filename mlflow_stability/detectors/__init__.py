"""Judges: points go in, events come out; pure."""
