"""Connects to a tracking store, and explains its errors."""
