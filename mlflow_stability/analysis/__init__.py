"""Asks: a run id or a path in, what is known of it out."""
