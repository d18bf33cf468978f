"""The output formats: each module has a `FORMAT`, and loads what it needs when it is asked for."""
