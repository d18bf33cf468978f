"""Questions that people who train models ask, answered from a run: a table of questions, and one of decisions."""
