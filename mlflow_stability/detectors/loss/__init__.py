"""Judgements of the loss."""
