"""The metrics of a run as clean curves, and functions of one curve."""
