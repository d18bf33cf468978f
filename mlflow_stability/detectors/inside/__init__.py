"""Judgements of activations, attention and representations."""
