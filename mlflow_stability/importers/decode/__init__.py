"""From bytes to clean lines and numbers."""
