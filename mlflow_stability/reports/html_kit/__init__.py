"""What is drawn on a page."""
