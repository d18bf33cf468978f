"""Write the journal of a run and run its detectors."""
