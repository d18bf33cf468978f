"""One stream for each kind of file that lies beside a journal and goes into the run."""
