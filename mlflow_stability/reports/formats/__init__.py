"""The output formats: each module has a `FORMAT`."""
