"""Statistics of what modules put out."""
