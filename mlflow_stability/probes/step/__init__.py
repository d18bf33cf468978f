"""One training step, from its backward phase to its reading."""
