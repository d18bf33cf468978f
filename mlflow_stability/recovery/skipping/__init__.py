"""A broken step changes nothing."""
