"""Read a run or a log by id or path; diagnose, compare, load."""
