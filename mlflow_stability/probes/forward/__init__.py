"""Observe forward passes, open probes inside them, and run one again without changing the training."""
