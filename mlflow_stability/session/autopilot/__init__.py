"""Skips, snapshots and rollbacks, decided together by all ranks."""
