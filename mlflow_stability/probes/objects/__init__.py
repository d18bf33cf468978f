"""Finds and names the models of a script."""
