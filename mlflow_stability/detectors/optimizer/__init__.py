"""Judgements of steps, learning rate and weights."""
