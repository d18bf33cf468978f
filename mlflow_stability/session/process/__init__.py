"""The courier process, and the ends of threads and of the process."""
