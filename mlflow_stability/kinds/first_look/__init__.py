"""Quiet mistakes in the set-up of a training, which a look at its first steps shows."""
