"""Describes model, optimizer and torch."""
