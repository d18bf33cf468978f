"""One sink for each kind of data that records of a journal become in a run."""
