"""File formats of this package among a run's artifacts."""
