"""Judgements of gradients."""
