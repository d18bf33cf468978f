"""One word and one sentence about a run."""
