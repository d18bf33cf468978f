"""Looks at the first steps of a training for mistakes in its set-up."""
