"""Which operation made the first NaN or infinity."""
