"""Reports on the batch of a broken step."""
