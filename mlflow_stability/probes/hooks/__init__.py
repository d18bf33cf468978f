"""Installs and removes everything in torch."""
