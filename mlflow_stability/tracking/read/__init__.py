"""Reads runs back."""
