"""Skip broken steps, restore a good state when training diverges, and find the origin of a NaN."""
