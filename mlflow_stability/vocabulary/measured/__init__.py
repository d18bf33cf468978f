"""What is measured, and where."""
