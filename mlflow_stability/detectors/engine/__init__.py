"""What detectors are built from."""
