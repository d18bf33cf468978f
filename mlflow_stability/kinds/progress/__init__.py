"""Findings about what a training learns: plateaus, overfitting, repeated data."""
