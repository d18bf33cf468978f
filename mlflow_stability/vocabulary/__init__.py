"""Frozen dataclasses and enums that all other packages share."""
