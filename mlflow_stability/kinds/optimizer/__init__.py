"""Findings about steps, the learning rate and updates."""
