"""The formats of our files among a run's artifacts."""
