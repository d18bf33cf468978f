"""Reaches a tracking store, and explains what fails there."""
