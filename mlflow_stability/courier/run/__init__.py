"""Open, tag and end the run."""
