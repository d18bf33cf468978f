"""From rows to a run's history."""
