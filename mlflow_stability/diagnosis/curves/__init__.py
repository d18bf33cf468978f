"""The metrics of a run as clean curves, and what can be read off one."""
