"""Words, names and sentences."""
