"""What a run should know about itself."""
