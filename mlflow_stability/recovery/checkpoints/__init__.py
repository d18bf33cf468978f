"""States on disk: writing, choosing, resuming."""
