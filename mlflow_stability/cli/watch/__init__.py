"""Follows a run while it trains, and shows how it is."""
