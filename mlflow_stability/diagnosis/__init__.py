"""Concludes: the history of a run goes in, a diagnosis comes out."""
