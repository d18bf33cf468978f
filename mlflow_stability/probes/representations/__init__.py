"""Ranks of dense representations, diversity of sparse codes."""
