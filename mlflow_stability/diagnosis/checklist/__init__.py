"""Questions that people who train models ask, answered from a run."""
