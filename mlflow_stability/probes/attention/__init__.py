"""Entropy, logits and maps of attention heads."""
