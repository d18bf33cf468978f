"""Skipped steps, snapshots and rollbacks, decided together by all ranks."""
