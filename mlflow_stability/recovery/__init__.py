"""Skips broken steps, restores a good state when training diverges, and finds the origin of a NaN."""
