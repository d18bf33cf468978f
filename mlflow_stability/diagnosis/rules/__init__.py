"""Judgements of whole curves."""
