"""Opens and closes looks into a forward pass."""
