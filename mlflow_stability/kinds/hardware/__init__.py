"""Findings about time, memory and throughput."""
