"""One run, and what is known of it."""
