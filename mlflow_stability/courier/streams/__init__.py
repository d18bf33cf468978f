"""One stream for each kind of data that goes from a journal into a run."""
