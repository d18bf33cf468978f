"""What was set, and where runs differ."""
