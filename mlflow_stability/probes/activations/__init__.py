"""Statistics of module outputs."""
