"""Judgements of time, memory and throughput."""
