"""What is drawn with characters."""
