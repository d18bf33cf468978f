"""Reductions over many tensors, without waiting for the device."""
