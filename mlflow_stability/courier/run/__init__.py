"""Opens, tags and ends the run."""
