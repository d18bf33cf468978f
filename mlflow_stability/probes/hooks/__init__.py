"""Everything installed into torch, and all of it taken out again."""
