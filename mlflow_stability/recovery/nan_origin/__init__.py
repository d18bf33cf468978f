"""Finds the operation that made the first NaN or infinity."""
