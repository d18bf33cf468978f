"""One sink for each kind of data that goes into a run, and for each tool beside it."""
