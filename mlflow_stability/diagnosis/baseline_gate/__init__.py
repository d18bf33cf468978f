"""Whether a run is worse than its baseline."""
