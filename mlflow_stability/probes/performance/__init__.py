"""Time, throughput, FLOPs, memory and progress."""
