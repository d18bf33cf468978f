"""The dashboard of a run."""
