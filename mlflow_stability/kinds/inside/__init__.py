"""Findings about activations, attention and representations."""
