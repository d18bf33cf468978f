"""The report of runs, one file for each form."""
