"""Reports the batch of a broken step."""
