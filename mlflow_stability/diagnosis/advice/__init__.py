"""What to change."""
