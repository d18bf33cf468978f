"""What several processes that train together have measured, combined."""
