"""Time, throughput, operations, memory and progress."""
