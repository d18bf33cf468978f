"""Where two runs part."""
