"""The report of a comparison, one file for each form."""
