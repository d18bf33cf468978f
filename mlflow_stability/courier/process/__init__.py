"""Who delivers, and whether the training lives."""
