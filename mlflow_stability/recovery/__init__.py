"""Skip broken steps, restore a good state after a divergence, find the origin of a NaN."""
