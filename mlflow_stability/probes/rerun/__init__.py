"""Runs a forward pass again, and undoes what it changed."""
